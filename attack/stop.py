"""Attacks that would stop others: sessions that hang, locks, work without an end, deletion that never comes."""

import threading
import time

from tests.waiting import eventually

from attack import routes
from attack.arena import Arena, Breach
from attack.party import Party
from attack.table import attack

_HELD_S = 15
_LATE_S = 40.0
"""How long after its time limit a statement may still run: a cancel, and a terminate."""


def _held(arena: Arena, statement: str, database: str | None = None) -> threading.Thread:
    """A transaction of the attacker that has run the statement and keeps its locks for a while."""
    database = database or arena.attacker.database
    held = routes.in_background(arena.attacker, statement, f"select pg_sleep({_HELD_S})")
    eventually(lambda: any("pg_sleep" in str(query) for _, _, query in arena.busy(database)))
    return held


def _others_go_on(arena: Arena, held: threading.Thread, what: str) -> None:
    """Whatever shares a session with the attacker's maintenance answers while the attacker still holds its lock."""
    attacker, victim = arena.attacker, arena.victim
    crowd = [
        threading.Thread(target=lambda: attacker.query("select pg_sleep(0.5) as slept"), daemon=True) for _ in range(12)
    ]
    for thread in crowd:
        thread.start()
    for number in range(3):
        for answer in (
            victim.ask("read", "GET", "/health"),
            victim.query("select 1 as one", headers={"Idempotency-Key": f"{what}-{number}"}),
            victim.transaction("select 1 as one", headers={"Tuplegate-Transaction-Id": routes.chosen_id()}),
        ):
            if answer.status != 200:
                raise Breach(f"{what} stopped another's request: {answer.status} {answer.text[:300]}")
    if not held.is_alive():
        raise Breach(f"others' requests were answered only after {what} had let go")
    for thread in (*crowd, held):
        thread.join()


@attack(quick=False)
def settings_of_the_own_role_are_held(arena: Arena) -> None:
    """A transaction that holds ALTER ROLE … SET on its own role keeps nobody else waiting."""
    attacker = arena.attacker
    role = f"{attacker.database}_w"
    settings = "select 1 from pg_db_role_setting s join pg_roles r on r.oid = s.setrole where r.rolname = %s"
    for _ in range(10):
        attacker.must("alter role current_user set work_mem = '1MB'")
        held = _held(arena, "alter role current_user set work_mem = '2MB'", role[:-2])
        if arena.look(settings, [role], attacker.database):
            _others_go_on(arena, held, "a held ALTER ROLE SET")
            return
        held.join()  # a new connection had the settings taken away before they were held
    raise Breach("the settings were taken away each time before they could be held: the attack was not tried")


@attack(quick=False)
def the_own_password_is_held(arena: Arena) -> None:
    """A transaction that holds ALTER ROLE … PASSWORD on its own role keeps nobody else waiting."""
    arena.attacker.must("alter role current_user password 'another'")
    held = _held(arena, "alter role current_user password 'yet another'")
    _others_go_on(arena, held, "a held ALTER ROLE PASSWORD")


@attack(quick=False)
def catalogs_are_locked(arena: Arena) -> None:
    """Locks that a tenant can take on its own relations and schemas keep no shared session of the service waiting."""
    arena.attacker.must("create table locked (a int)")
    held = _held(arena, "lock table locked in access exclusive mode")
    for route in (routes.tables, routes.storage, routes.dump):
        route(arena)
    _others_go_on(arena, held, "a locked table")


_GRANTS = (
    "grant select on public.bait to {role}",
    "alter default privileges grant select on tables to {role}",
    "grant usage on schema public to {role}",
    "grant execute on function public.granted() to {role}",
    "create policy p_{role} on public.bait to {role} using (true)",
    "grant usage on type public.granted_type to {role}",
    "grant select on large object {large} to {role}",
    "grant usage on sequence public.granted_sequence to {role}",
)


def _grant_everything(attacker: Party, other: str) -> None:
    attacker.must("create table public.bait (a int)")
    attacker.must("create function public.granted() returns int language sql as 'select 1'")
    attacker.must("create domain public.granted_type as int")
    attacker.must("create sequence public.granted_sequence")
    large = attacker.value("select lo_create(0)")
    for grant in _GRANTS:
        for role in (f"{other}_w", f"{other}_r"):
            attacker.query(grant.format(role=role, large=large))


@attack()
def grants_to_the_roles_of_another(arena: Arena) -> None:
    """Rights that a tenant gives to another tenant's roles keep neither a reset nor a deletion from being done."""
    for tell in ("reset", "delete"):
        other = arena.another()
        _grant_everything(arena.attacker if tell == "reset" else arena.another(), other.database)
        if tell == "reset":
            answer = other.ask("admin", "POST", "/admin/reset")
            if answer.status != 200:
                raise Breach(f"the other's reset: {answer.status} {answer.text[:300]}")
        status, text = arena.operate("DELETE", f"/v1/organizations/{other.id}")
        if status != 200:
            raise Breach(f"the other's organization cannot be deleted: {status} {text[:300]}")


@attack(quick=False)
def a_stuck_deletion_stops_no_other(arena: Arena) -> None:
    """While a grant to a role is held open, others are made and deleted, and the held one goes when it is let go."""
    other, third = arena.another(), arena.another()
    arena.attacker.must("create table public.bait (a int)")
    held = _held(arena, f"grant select on public.bait to {other.database}_w")
    deleting = threading.Thread(target=lambda: arena.operate("DELETE", f"/v1/organizations/{other.id}"), daemon=True)
    deleting.start()
    status, text = arena.operate("DELETE", f"/v1/organizations/{third.id}")
    fourth = arena.another()
    reset = fourth.ask("admin", "POST", "/admin/reset")
    if status != 200 or reset.status != 200:
        raise Breach(f"another deletion: {status} {text[:200]}; another reset: {reset.status} {reset.text[:200]}")
    if not held.is_alive():
        raise Breach("others waited until the grant was let go")
    held.join()
    deleting.join()


_COMMENTS = 75_000
"""0.3 MB of comments. The engine's scanner takes the square of that, without looking at interrupts."""

_ENDLESS = {
    "comments in front": "/**/" * _COMMENTS + "select 1",
    "comments behind": "select 1 " + "/**/" * _COMMENTS,
    "comments in a transaction": "/**/" * _COMMENTS + "select 1",
    "comments in DO": "do $$ begin perform 1 " + "/**/" * _COMMENTS + "; end $$",
    "operators": "select 1 " + "-/**/" * _COMMENTS + "1",
}


def _ends(arena: Arena, what: str, sql: str, *, in_transaction: bool = False) -> None:
    attacker = arena.attacker
    database = attacker.database
    if in_transaction:
        attacker.transaction(sql, timeout_ms=1000)
    else:
        attacker.query(sql, timeout_ms=1000)
    deadline = time.monotonic() + _LATE_S
    while arena.busy(database):
        if time.monotonic() > deadline:
            raise Breach(f"{what}: the engine still works at it {_LATE_S:g} s after its time limit of 1 s")
        time.sleep(0.2)


@attack(quick=False)
def a_text_that_the_engine_reads_for_ever(arena: Arena) -> None:
    """No text of comments or operators keeps a server process busy that neither a cancel nor a terminate ends."""
    for what, sql in _ENDLESS.items():
        _ends(arena, what, sql, in_transaction="transaction" in what)


@attack()
def a_long_text_blocks_the_service(arena: Arena) -> None:
    """A text of ten megabytes, whatever it is made of, keeps no other request of the worker waiting for its scan."""
    size = 9_900_000
    for text in (
        "/* " * (size // 6) + "*/ " * (size // 6) + "select 1",
        ";" * size + "select 1",
        "--\n" * (size // 3) + "select 1",
        "set " + "/* */" * (size // 5) + "a = 1",
        "/*+ STREAM */" + " " * size + "select 1",
        "select " + "(" * 1_000_000,
        "select '" + "'" * size,
        "insert into t values (" + "1," * (size // 2) + "1)",
    ):
        sender = threading.Thread(target=lambda sql=text: arena.attacker.query(sql, timeout_ms=1000), daemon=True)
        sender.start()
        while sender.is_alive():
            health = arena.victim.ask("read", "GET", "/health")
            if health.status != 200:
                raise Breach(f"while {text[:30]}… was read: {health.status} {health.text[:300]}")
            time.sleep(0.02)


@attack()
def an_extensions_code_stops_the_engine(arena: Arena) -> None:
    """Using an extension that the service offers does not crash the engine, also on a machine it was not built for."""
    attacker = arena.attacker
    uses = {
        "vector": "select '[1,2,3]'::vector <-> '[3,1,2]'::vector as d, '[1,2,3]'::vector <=> '[3,1,2]'::vector as e",
        "cube": "select cube(array[1,2,3]) <-> cube(array[3,2,1]) as d",
        "ltree": "select 'a.b.c'::ltree ~ '*.b.*'::lquery as d",
        "hstore": "select 'a=>1'::hstore -> 'a' as d",
        "pg_trgm": "select similarity('word', 'words') as d",
        "intarray": "select array[1,2,3] & array[2,3] as d",
        "seg": "select '1 .. 2'::seg && '2 .. 3'::seg as d",
        "fuzzystrmatch": "select levenshtein('kitten', 'sitting') as d",
        "unaccent": "select unaccent('Hôtel') as d",
        "citext": "select 'A'::citext = 'a' as d",
        "isn": "select isbn('978-0-393-04002-9') as d",
    }
    for name, sql in uses.items():
        if not attacker.query(f"create extension if not exists {name}").succeeded:
            continue  # it is not offered, which is safe
        answer = attacker.query(sql)
        if answer.status != 200:
            raise Breach(f"{name}: {answer.status} {answer.text[:200]}")


@attack()
def a_chain_of_domains(arena: Arena) -> None:
    """A long chain of domains, and deep arrays and composites, get an answer and no internal error."""
    attacker = arena.attacker
    attacker.must(
        "do $$ begin execute 'create domain d0 as int'; for i in 1..1200 loop"
        " execute format('create domain d%s as d%s', i, i - 1); end loop; end $$"
    )
    attacker.query("select 1::d1200 as a")
    attacker.query("select array[1::d1200] as a")
    attacker.query("select $1::d1200 as a", [1])
    attacker.query("select $1::d1200[] as a", [[1, 2]])
    attacker.query("/*+ STREAM */ select 1::d1200 as a")
    attacker.transaction("select 1::d1200 as a")
    attacker.must("create table of_domains (a d1200)")
    attacker.ask("write", "GET", "/tables")
    attacker.must(
        "do $$ begin execute 'create type c0 as (a int)'; for i in 1..60 loop"
        " execute format('create type c%s as (a c%s[])', i, i - 1); end loop; end $$"
    )
    attacker.query("select null::c60 as a, array[null::c60] as b")


@attack()
def a_failed_attempt_poisons_a_connection(arena: Arena) -> None:
    """Whatever error a statement ends with, the next requests on its connection are answered."""
    attacker = arena.attacker
    attacker.must("create table poisoned (a int primary key)")
    for sql in (
        "select 1 / 0",
        "select pg_sleep(10)",
        "do $$ begin raise exception using errcode = 'XX000'; end $$",
        "do $$ begin raise exception using errcode = '40001'; end $$",
        "do $$ begin raise exception using errcode = '57P01'; end $$",
        "do $$ begin raise exception using errcode = '25P02'; end $$",
        "insert into poisoned select 1 from generate_series(1, 2)",
        "prepare p as select 1",
        "declare c cursor with hold for select 1 / (2 - i) from generate_series(1, 3) i",
        "create temp table t as select 1 / (2 - i) from generate_series(1, 3) i",
        "create temp table pg_class (a int)",
        "listen everything",
        "discard all",
        "create index concurrently on poisoned ((1 / (a - a)))",
        "vacuum poisoned, poisoned",
        "reindex table concurrently poisoned",
        "select set_config('app.left', 'x', false), 1 / 0",
        "drop schema pg_temp",
        "drop owned by current_user cascade",
    ):
        attacker.query(sql, timeout_ms=200)
        attacker.transaction("select 1 as one", sql, timeout_ms=200)
        for scope in ("write", "read"):
            answer = attacker.query("select 1 as one", scope=scope)
            if not answer.succeeded:
                raise Breach(f"after {sql!r}: {answer.text[:300]}")


@attack(quick=False)
def every_connection_is_taken(arena: Arena) -> None:
    """A tenant that keeps all its connections busy and its queue full takes nobody else's."""
    attacker = arena.attacker
    crowd = [
        threading.Thread(target=lambda: attacker.query("select pg_sleep(2)", timeout_ms=4000), daemon=True)
        for _ in range(80)
    ]
    for thread in crowd:
        thread.start()
    newcomer = arena.another()
    answer = newcomer.query("select 1 as one")
    for thread in crowd:
        thread.join()
    if not answer.succeeded:
        raise Breach(f"a new tenant was not served: {answer.text[:300]}")
