"""The check of the whole after an attack: what must hold whatever a tenant has tried."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psycopg
from tests.control import disagreements
from tests.workers import workers

from attack import witness
from attack.arena import Arena, Row
from attack.party import Answer, Party

SETTLE_S = 20.0
"""How long the service may take to clear up after an attack."""

_SETTINGS = (
    "transaction_isolation", "transaction_read_only", "default_transaction_isolation", "default_transaction_read_only",
    "search_path", "statement_timeout", "lock_timeout", "synchronous_commit", "role", "session_authorization",
    "TimeZone", "DateStyle", "work_mem", "client_encoding", "row_security",
)  # fmt: skip
_CLEAN = (
    "select "
    + ", ".join(f"pg_catalog.current_setting('{name}') as \"{name}\"" for name in _SETTINGS)
    + ", pg_catalog.current_setting('app.left', true) as left_over, session_user as session, current_user as effective"
    + ", pg_catalog.random() as random, pg_catalog.pg_sleep(0.03) as slept, pg_catalog.current_database() as database"
)
_AT_ONCE = 3

_MIGHTY = """
select rolname from pg_roles where rolname ~ '^tg_'
   and (rolsuper or rolcreaterole or rolcreatedb or rolbypassrls or rolreplication)
union all
select rolname from pg_roles where rolname ~ '^tg_' and rolname !~ '^tg_[^_]+_[wrd]$'
union all
select m.rolname || ' in ' || g.rolname from pg_auth_members a join pg_roles m on m.oid = a.member
  join pg_roles g on g.oid = a.roleid where m.rolname ~ '^tg_.*_[wr]$'
union all
select 'database ' || d.datname from pg_database d join pg_roles r on r.oid = d.datdba where r.rolname ~ '^tg_'
"""
_OWNS = """
select n.nspname || '.' || c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
  join pg_roles r on r.oid = c.relowner
 where n.nspname in ('pg_catalog', 'information_schema', 'tuplegate') and r.rolname ~ '^tg_'
union all
select n.nspname || '.' || p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace
  join pg_roles r on r.oid = p.proowner
 where n.nspname in ('pg_catalog', 'information_schema', 'tuplegate') and r.rolname ~ '^tg_'
"""
_SCRATCH = "select nspname from pg_namespace where nspname ~ '^tuplegate_scratch_'"


@dataclass(frozen=True)
class Standing:
    """What an attack finds, and what must be the same after it."""

    servers: list[Row]
    workers: list[int]
    settings: dict[str, dict[str, Any]]


def stand(arena: Arena) -> Standing:
    settings = {scope: _settings(arena.attacker.query(_CLEAN, scope=scope)) for scope in ("write", "read")}
    return Standing(_servers(arena), sorted(workers(arena.service)), settings)


def breaches(arena: Arena, before: Standing) -> list[str]:
    """What does not hold; empty where everything does. The attacker's organization is deleted in passing."""
    attacker = arena.attacker
    wrong = [f"an internal error: {sent}" for sent in attacker.sent if " -> 500 " in sent]
    wrong += _traces_left(attacker, before)
    wrong += _state_of_engine(arena, before)
    databases = _databases(arena)
    wrong += _owned(arena, databases)
    wrong += _eventually(f"server processes still work for {attacker.name}", lambda: _working(arena, databases))
    wrong += _eventually("prepared transactions are left", lambda: _prepared(arena, databases))
    wrong += _eventually("scratch schemas are left", lambda: _scratch(arena, databases))
    wrong += _deletion(arena)
    wrong += _of_victim(arena)
    health = arena.victim.ask("read", "GET", "/health")
    if health.status != 200:
        wrong.append(f"the service is not healthy: {health.text}")
    return wrong


def _settings(answer: Answer) -> dict[str, Any]:
    if not answer.succeeded:
        return {"failed": answer.text[:300]}
    row = answer.rows[0]
    return {name: row[name] for name in (*_SETTINGS, "left_over")} | {
        "session": str(row["session"]).removeprefix(row["database"]),
        "effective": str(row["effective"]).removeprefix(row["database"]),
        "session_authorization": str(row["session_authorization"]).removeprefix(row["database"]),
    }


def _traces_left(attacker: Party, before: Standing) -> list[str]:
    """Plain requests with either key find nothing of what came before, on whatever connection they run."""
    wrong = []
    for scope, expected in before.settings.items():
        with ThreadPoolExecutor(_AT_ONCE) as at_once:
            answers = list(at_once.map(lambda _, scope=scope: attacker.query(_CLEAN, scope=scope), range(_AT_ONCE)))
        for answer in answers:
            found = _settings(answer)
            changed = {name: value for name, value in found.items() if expected.get(name) != value}
            if changed:
                wrong.append(f"the next plain request of the {scope} key found {changed}")
    if attacker.query("insert into public.loot values (2)", scope="read").succeeded:
        wrong.append("a read key wrote")
    return wrong


def _state_of_engine(arena: Arena, before: Standing) -> list[str]:
    wrong = []
    if _servers(arena) != before.servers:
        wrong.append("the server of the catalog, the victim's or the bystander's was restarted")
    if sorted(workers(arena.service)) != before.workers:
        wrong.append("a worker was restarted")
    for database in _databases(arena):
        wrong += [f"too mighty: {name}" for (name,) in arena.look(_MIGHTY, database=database)]
    return wrong


def _servers(arena: Arena) -> list[Row]:
    """The starts of the servers of others, and of a part of each that is started anew after any process has crashed."""
    checkpointer = "pg_stat_activity where backend_type = 'checkpointer'"
    sql = f"select pg_postmaster_start_time(), max(backend_start) from {checkpointer}"
    others = ("tuplegate", arena.victim.database, arena.bystander.party.database)
    return [arena.look(sql, database=database)[0] for database in others]


def _databases(arena: Arena) -> list[str]:
    rows = arena.look(
        "select engine_name from public.database d join public.organization o on o.id = d.organization"
        " where o.name = %s and d.state = 'active'",
        [arena.attacker.name],
    )
    return [str(name) for (name,) in rows]


def _owned(arena: Arena, databases: list[str]) -> list[str]:
    wrong = []
    for database in databases:
        wrong += [f"{database} has taken over {name}" for (name,) in arena.look(_OWNS, database=database)]
        if arena.look(witness.FOREIGN_CALLS, database=database)[0][0]:
            wrong.append(f"hostile code ran as somebody else: {_notes(arena, database)}")
    return wrong


def _notes(arena: Arena, database: str) -> list[Row]:
    try:
        return arena.look(witness.FOREIGN_NOTES, database=database)
    except psycopg.Error as exc:
        return [(str(exc),)]


def _working(arena: Arena, databases: list[str]) -> list[Row]:
    return [row for database in databases for row in arena.busy(database)]


def _prepared(arena: Arena, databases: list[str]) -> list[Row]:
    sql = "select gid from pg_prepared_xacts where database = current_database()"
    return [row for database in databases for row in arena.look(sql, database=database)]


def _scratch(arena: Arena, databases: list[str]) -> list[Row]:
    found = [row for database in databases for row in arena.look(_SCRATCH, database=database)]
    return [row for row in found if row[0] not in arena.own_schemas]


def _deletion(arena: Arena) -> list[str]:
    """The organizations of the attack can be deleted, and nothing of them stays."""
    wrong = []
    for party in (arena.attacker, *arena.others):
        status, text = arena.operate("DELETE", f"/v1/organizations/{party.id}")
        if status not in (200, 404):
            wrong.append(f"{party.name} cannot be deleted: {status} {text}")
    return wrong + _eventually("the catalog and the engine disagree", lambda: _disagreements(arena))


def _disagreements(arena: Arena) -> list[str]:
    found = disagreements(arena.service)
    return [] if found.none else [str(found)]


def _reads(arena: Arena) -> int:
    """How often the coveted table was read."""
    sql = "select seq_scan + coalesce(idx_scan, 0) from pg_stat_user_tables where relname = 'coveted'"
    return int(arena.look(sql, database=_victims(arena))[0][0])


def _victims(arena: Arena) -> str:
    rows = arena.look(
        "select engine_name from public.database d join public.organization o on o.id = d.organization"
        " where o.name = 'victim'"
    )
    return str(rows[0][0])


def _of_victim(arena: Arena) -> list[str]:
    wrong = []
    if any(arena.marker in text for text in arena.attacker.texts):
        wrong.append("the victim's data was in an answer to the attacker")
    if _reads(arena) > arena.own_reads:
        wrong.append("the victim's table was read")
    arena.own_reads += 1
    if arena.look("select secret from public.coveted", database=_victims(arena)) != [(arena.marker,)]:
        wrong.append("the victim's data was changed")
    return wrong


def _eventually(what: str, left: Callable[[], list[Any]]) -> list[str]:
    deadline = time.monotonic() + SETTLE_S
    while found := left():
        if time.monotonic() > deadline:
            return [f"{what}: {found[:5]}"]
        time.sleep(0.05)
    return []
