"""Attacks that would make the attacker somebody else: the superuser, the owner of the records, another tenant."""

from attack import routes, witness
from attack.arena import Arena, Breach
from attack.party import Party
from attack.table import attack

_TEMP_TYPES = (
    "bytea", "text", "bool", "timestamptz", "float8", "oid", "int8", "int4", "name", "record", "regclass", "json",
    "interval", "regrole", "aclitem", "regprocedure",
)  # fmt: skip
_TEMP_TABLES = (
    "pg_class", "pg_proc", "pg_namespace", "pg_roles", "pg_database", "pg_settings", "pg_locks", "pg_type",
    "pg_attribute", "pg_db_role_setting", "pg_stat_activity", "secret", "begun", "verdict", "answer",
)  # fmt: skip


def spring(attacker: Party, name: str = "spring") -> None:
    """Make a function that takes anything as text, notes who runs it and shows what it was given."""
    attacker.must(
        f"create or replace function public.{name}(given pg_catalog.text) returns pg_catalog.bool language plpgsql as"
        f" $$ begin raise notice 'SPRUNG % %', session_user, given; perform public.note('{name}'); return true; end $$"
    )
    attacker.must(f"grant execute on function public.{name}(pg_catalog.text) to public")


@attack()
def a_domain_in_pg_temp_takes_the_place_of_a_type(arena: Arena) -> None:
    """A domain that a tenant makes in pg_temp is never taken for a type that the service's own functions name."""
    attacker = arena.attacker
    witness.install(attacker)
    spring(attacker)
    for type in _TEMP_TYPES:
        base = "text" if type == "record" else type
        domain = f"create domain pg_temp.{type} as pg_catalog.{base} check (public.spring(value::pg_catalog.text))"
        for path in ((), ("set search_path = pg_temp, public, pg_catalog",)):
            for header in ("Tuplegate-Transaction-Id", "Idempotency-Key"):
                headers = {header: routes.chosen_id()}
                answer = attacker.transaction(domain, *path, "insert into loot values (1)", headers=headers)
                _unsprung(answer.text, type)
        statement = f"do $do$ begin execute $${domain}$$; end $do$"
        _unsprung(attacker.query(statement, headers={"Idempotency-Key": f"one-{type}"}).text, type)


def _unsprung(text: str, what: str) -> None:
    """A function of the service that has met the object also fails later, when the object is gone: XX000."""
    if "SPRUNG" in text or "XX000" in text:
        raise Breach(f"pg_temp.{what} was used by a function of the service: {text[:600]}")


@attack()
def a_table_in_pg_temp_takes_the_place_of_a_catalog(arena: Arena) -> None:
    """A table or view that a tenant makes in pg_temp is never read or written in place of one of the service's."""
    attacker = arena.attacker
    witness.install(attacker)
    attacker.must(
        "create function public.fires() returns trigger language plpgsql as"
        " $$ begin raise notice 'SPRUNG %', current_user; perform public.note('trigger'); return new; end $$"
    )
    for table in _TEMP_TABLES:
        made = f"create temp table {table} (id text, state text, at timestamptz, value bytea, oid oid)"
        fires = f"create trigger fires before insert on pg_temp.{table} for each row execute function public.fires()"
        answer = attacker.transaction(made, fires, headers={"Tuplegate-Transaction-Id": routes.chosen_id()})
        _unsprung(answer.text, table)
        answer = attacker.transaction(made, fires, headers={"Idempotency-Key": f"table-{table}"})
        _unsprung(answer.text, table)


@attack()
def the_secret_of_the_records_is_shown(arena: Arena) -> None:
    """No tenant reads the secret that authenticates records, nor writes or reads a record itself."""
    attacker = arena.attacker
    for sql in (
        "table tuplegate.secret",
        "table tuplegate.begun",
        "table tuplegate.verdict",
        "table tuplegate.answer",
        "select tuplegate.begin('txn_forged', 'x')",
        "select tuplegate.decide('txn_forged', 'committed', 'x')",
        "select * from tuplegate.look('txn_forged', 'x')",
        "select tuplegate.is_genuine('begin/txn_forged', 'x')",
        "insert into tuplegate.verdict values ('txn_forged', 'committed')",
        "select pg_get_functiondef(oid) from pg_proc where proname = 'is_genuine' and prosrc ~ '[0-9a-f]{32}'",
    ):
        for scope in ("write", "read"):
            answer = attacker.query(sql, scope=scope)
            if answer.succeeded and any(value is not None for row in answer.rows for value in row.values()):
                raise Breach(f"{scope}: {sql} gave {answer.text[:300]}")
    if attacker.ask("write", "GET", "/v1/transaction/txn_forged").status != 404:
        raise Breach("a forged record is answered")


_OPERATORS = (">=", "=", "<>", "||", "~", "~~", "!~", "~*", "<", ">", "<=", "+", "-", "/", "->", "->>")
_OPERAND_TYPES = ("oid", "int4", "int8", "text", "name", '"char"', "regclass", "pg_node_tree", "timestamptz", "float8")


def _body(returns: str) -> str:
    """Of a hostile operator's function, to stand inside a literal."""
    return witness.body("operator", returns=returns).replace("'", "''")


_TWIN_OPERATORS = f"""
do $do$
declare l text; r text; o text; f text; n int := 0; s text;
begin
  foreach s in array array['public', session_user::text] loop
    foreach l in array array[{", ".join(f"'{each}'" for each in _OPERAND_TYPES)}] loop
      foreach r in array array[{", ".join(f"'{each}'" for each in _OPERAND_TYPES)}] loop
        n := n + 1;
        f := concat('twin_', n);
        execute format('create function %I.%I(pg_catalog.%s, pg_catalog.%s) returns pg_catalog.bool language plpgsql as'
                       ' $f$ {_body("true")} $f$', s, f, l, r);
        execute format('create function %I.%I(pg_catalog.%s, pg_catalog.%s) returns pg_catalog.text language plpgsql as'
                       ' $f$ {_body("$2::pg_catalog.text")} $f$', s, concat(f, 't'), l, r);
        foreach o in array array[{", ".join(f"'{each}'" for each in _OPERATORS)}] loop
          begin
            execute format('create operator %I.%s (leftarg = pg_catalog.%s, rightarg = pg_catalog.%s,'
                           ' function = %I.%I)',
                           s, o, l, r, s, case when o in ('||', '->', '->>') then concat(f, 't') else f end);
          exception when others then null;
          end;
        end loop;
      end loop;
    end loop;
    execute format('grant usage on schema %I to public', s);
    execute format('grant execute on all functions in schema %I to public', s);
  end loop;
end $do$
"""


def twin_operators(attacker: Party) -> None:
    """Define every operator that the service's SQL uses for every pair of types, in public and in the role's schema."""
    attacker.must(f"create schema {attacker.database}_w")
    attacker.must(_TWIN_OPERATORS)


@attack()
def operators_in_public_run_in_the_services_own_queries(arena: Arena) -> None:
    """No query of the service's own calls an operator of a tenant, whatever operand types it was made for."""
    witness.install(arena.attacker)
    twin_operators(arena.attacker)
    # Counted by the statistics of functions: the only callers are queries that no tenant has written.
    before = _twin_calls(arena)
    routes.tables(arena)
    routes.storage(arena)
    for scope in ("write", "read"):
        for statement in ("select 1 as a", "show search_path", "do $$ begin null; end $$", "table public.loot"):
            arena.attacker.query(statement, scope=scope)
        arena.attacker.query("select 1 as a", scope=scope, headers={"Idempotency-Key": f"twin-{scope}"})
    arena.attacker.transaction("select 1 as a", headers={"Tuplegate-Transaction-Id": routes.chosen_id()})
    # Statistics are passed on when a connection is idle for a while; what was counted before is forced out.
    arena.attacker.query("select pg_stat_force_next_flush()")
    arena.attacker.query("select pg_stat_force_next_flush()", scope="read")
    called = _twin_calls(arena) - before
    if called:
        raise Breach(f"the service's own queries called {called} operators of the tenant")


def _twin_calls(arena: Arena) -> int:
    sql = "select coalesce(sum(calls), 0) from pg_stat_user_functions where funcname ~ '^twin_'"
    return int(arena.look(sql, database=arena.attacker.database)[0][0])


@attack(quick=False)
def operators_and_functions_under_all_routes(arena: Arena) -> None:
    """No twin of an operator or function that the service uses runs as anybody but the tenant, under any route."""
    witness.install(arena.attacker)
    twin_operators(arena.attacker)
    routes.run_all(arena, long=True)


@attack(quick=False)
def rights_are_given_to_the_services_roles(arena: Arena) -> None:
    """Grants, default rights, policies and ownership that name the service's roles make nobody run a tenant's code."""
    attacker = arena.attacker
    witness.install(attacker)
    spring(attacker)
    attacker.must("create table public.bait (a int, b text default current_user)")
    attacker.must("alter table public.bait enable row level security")
    attacker.must("create policy p on public.bait using (public.spring(a::text))")
    found = arena.look("select rolname from pg_roles where rolname !~ '^(pg|tg)_'", database=arena.attacker.database)
    roles = [str(name) for (name,) in found]
    for role in roles:
        for sql in (
            f'grant all on public.bait to "{role}"',
            f'grant execute on function public.spring(text) to "{role}"',
            f'alter default privileges grant all on tables to "{role}"',
            f'create policy "p_{role}" on public.bait to "{role}" using (public.spring(a::text))',
            f'alter table public.bait owner to "{role}"',
            f'alter function public.spring(text) owner to "{role}"',
            f'grant "{role}" to current_user',
            f'set role "{role}"',
            f'set session authorization "{role}"',
            f'reassign owned by current_user to "{role}"',
            f'create schema s authorization "{role}"',
            f'alter default privileges for role "{role}" grant all on tables to current_user',
        ):
            attacker.query(sql)
    routes.run_all(arena)


@attack()
def an_extension_becomes_the_tenants(arena: Arena) -> None:
    """No tenant owns, replaces or adds to a member of an extension that a superuser's script has made."""
    attacker = arena.attacker
    witness.install(attacker)
    attacker.must("create schema mine")
    attacker.must("create extension if not exists hstore")
    for sql in (
        "alter extension hstore set schema mine",
        "create or replace function hstore_in(cstring) returns hstore language internal as 'int4in'",
        "alter function hstore_out(hstore) owner to current_user",
        "alter type hstore owner to current_user",
        "create or replace function exist(hstore, text) returns bool language sql as 'select true'",
        "alter operator family gin_hstore_ops using gin rename to other",
    ):
        answer = attacker.query(sql)
        if answer.succeeded and not sql.startswith("alter extension hstore set schema"):
            raise Breach(f"{sql} was allowed")


@attack(quick=False)
def settings_make_the_service_load_or_log(arena: Arena) -> None:
    """Settings that a role gives itself reach neither the service's sessions nor libraries nor logs."""
    attacker = arena.attacker
    witness.install(attacker)
    for setting in (
        "session_preload_libraries = 'dblink'",
        "local_preload_libraries = 'dblink'",
        "search_path = 'public, pg_catalog'",
        "default_transaction_isolation = 'read committed'",
        "default_transaction_read_only = 'off'",
        "statement_timeout = '1ms'",
        "role = 'tuplegate'",
        "session_authorization = 'tuplegate'",
        "log_min_messages = 'debug5'",
        "default_tablespace = 'pg_global'",
        "check_function_bodies = 'off'",
        "transaction_timeout = '1ms'",
        "idle_session_timeout = '1ms'",
        "client_connection_check_interval = '1ms'",
        "row_security = 'off'",
        "lock_timeout = '1ms'",
    ):
        for sql in (
            f"alter role current_user set {setting}",
            f"alter role current_user in database {{}} set {setting}",
        ):
            attacker.query(sql.format(attacker.database))
            for scope in ("write", "read"):
                attacker.query("select 1 as one", scope=scope)
    routes.run_all(arena)
