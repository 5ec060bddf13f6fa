"""Attacks that would weaken a promise: isolation, read-only keys, clean connections, durability."""

import json
import socket
import time
from urllib.parse import urlsplit

import psycopg

from attack import routes, witness
from attack.arena import SEED, Arena, Breach
from attack.party import Party
from attack.table import attack

_TRIES = 15
_HIDDEN = {
    "adjacent literals": "do 'begin perform s'\n'et_config(''app.left'', ''something'', false); end'",
    "an escape": r"do E'begin perform s\x65t_config(\'app.left\', \'something\', false); end'",
    "an octal escape": r"do E'begin perform s\145t_config(\'app.left\', \'something\', false); end'",
    "an adjacent seed": f"do 'begin perform sets'\n'eed({SEED}); end'",
    "an escaped seed": rf"do E'begin perform sets\u0065ed({SEED}); end'",
    "a quoted name": 'set "app"."left" = \'something\'',
    "comments in a name": "set app/**/./**/\"left\" = 'something'",
    "a lazy commit": r"do E'begin perform s\x65t_config(\'synchronous\x5fcommit\', \'off\', false); end'",
}
"""SQL inside a function that leaves something on a connection without naming how in the function's source."""


@attack()
def code_hides_what_it_sets(arena: Arena) -> None:
    """Code that changes settings or the seed leaves nothing behind, however it spells that."""
    attacker = arena.attacker
    witness.install(attacker)
    attacker.must("drop function leave_traces, escalate, note, foreign_seen")
    left = []
    for number, (what, sql) in enumerate(_HIDDEN.items()):
        attacker.must(
            f"create function hides_{number}() returns int language plpgsql as $f$ begin {sql}; return 1; end $f$"
        )
        attacker.must(f"grant execute on function hides_{number} to public")
        for scope in ("write", "read"):
            for _ in range(3):
                attacker.query(f"select hides_{number}() as a", scope=scope)
                left += [f"{what}, {scope} key: {trace}" for trace in _traces(arena, scope)]
        attacker.must(f"drop function hides_{number}")
    if left:
        raise Breach(f"left on a connection: {'; '.join(sorted(set(left)))}")


@attack()
def code_hides_in_an_extension(arena: Arena) -> None:
    """A function that a tenant adds to an extension leaves nothing behind: only the extension's own code is trusted."""
    attacker = arena.attacker
    left = []
    for number, extension in enumerate(("pg_trgm", "citext", "vector", "hstore")):
        if not attacker.query(f"create extension if not exists {extension}").succeeded:
            continue
        attacker.must(
            f"create function joins_{number}() returns int language plpgsql as $$ begin"
            f" perform set_config('app.left', 'something', false), setseed({SEED}),"
            " set_config('synchronous_commit', 'off', false); return 1; end $$"
        )
        attacker.query(f"alter extension {extension} add function joins_{number}()")
        attacker.query("select 1 as one")
        for scope in ("write", "read"):
            for _ in range(3):
                attacker.query(f"select joins_{number}() as a", scope=scope)
                left += [f"{extension}, {scope} key: {trace}" for trace in _traces(arena, scope)]
        attacker.query(f"alter extension {extension} drop function joins_{number}()")
        attacker.query(f"drop function joins_{number}")
    if left:
        raise Breach(f"left on a connection: {'; '.join(sorted(set(left)))}")


_TRACES = (
    "select current_setting('app.left', true) as left_over, random() as random,"
    " current_setting('synchronous_commit') as commits, current_setting('transaction_isolation') as isolation"
)


def _traces(arena: Arena, scope: str) -> list[str]:
    answer = arena.attacker.query(_TRACES, scope=scope)
    if not answer.succeeded:
        return [answer.text[:200]]
    row = answer.rows[0]
    traces = []
    if row["left_over"] is not None:
        traces.append(f"app.left is {row['left_over']!r}")
    if float(row["random"]) in arena.seeded:
        traces.append("the seed")
    if row["commits"] != "on":
        traces.append(f"synchronous_commit is {row['commits']}")
    if row["isolation"] != "serializable":
        traces.append(f"isolation is {row['isolation']}")
    return traces


@attack()
def a_client_leaves_after_making_code(arena: Arena) -> None:
    """A client that leaves while its CREATE FUNCTION is answered leaves no connection trusted that must not be."""
    attacker = arena.attacker
    left = []
    for number in range(_TRIES):
        name = f"made_{number}"
        attacker.query("select 1 as one")
        _leave(attacker, _makes(name), (number % 12) * 0.0005)
        deadline = time.monotonic() + 0.2
        while time.monotonic() < deadline:
            if attacker.query(f"select {name}() as a").succeeded:
                left += _traces(arena, "write")
                break
        attacker.query(f"drop function if exists {name}")
        # A database without code again, of which the service has heard.
        attacker.query("select 1 as one")
    if left:
        raise Breach(f"{len(left)} of {_TRIES} times something was left: {left[0]}")


def _makes(name: str) -> str:
    return (
        f"create function {name}() returns int language plpgsql as"
        " $$ begin perform set_config('app.left', 'something', false); return 1; end $$"
    )


def _leave(attacker: Party, sql: str, after_s: float) -> None:
    """Send a request and close the connection a moment later, without reading."""
    address = urlsplit(attacker.service.url)
    body = json.dumps({"sql": sql}).encode()
    head = (
        f"POST /v1/query HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {attacker.keys['write']}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    with socket.create_connection((str(address.hostname), int(address.port or 0))) as sock:
        sock.sendall(head + body)
        time.sleep(after_s)


@attack()
def a_read_key_writes(arena: Arena) -> None:
    """A read key writes nothing, whatever the tenant grants to its role and whatever code it calls."""
    attacker = arena.attacker
    witness.install(attacker)
    attacker.must(f"grant all on all tables in schema public to {attacker.database}_r")
    attacker.must(f"grant create on schema public to {attacker.database}_r")
    attacker.must(
        "create function public.writes() returns int language plpgsql security definer as"
        " $$ begin perform public.leave_traces(); insert into loot values (9); return 1; end $$"
    )
    attacker.must("create view public.writing as select public.writes() as a")
    for sql in (
        "insert into loot values (9)",
        "select public.writes()",
        "table public.writing",
        "select set_config('transaction_read_only', 'off', false), public.writes()",
        "select set_config('default_transaction_read_only', 'off', false)",
        "do $$ begin set transaction_read_only = off; insert into loot values (9); end $$",
        "do $$ begin commit; set transaction read write; insert into loot values (9); end $$",
        "do $$ begin rollback; perform public.writes(); end $$",
        "/*+ STREAM */ select public.writes()",
        "create table public.written (a int)",
        "create temp table written (a int)",
        "select lo_create(0)",
        "select nextval('public.numbers')",
        "explain analyze insert into loot values (9)",
        "with w as (insert into loot values (9) returning a) select * from w",
        "copy loot from program 'echo 9'",
        "refresh materialized view public.kept",
        "alter role current_user set default_transaction_read_only = off",
        "prepare w as insert into loot values (9)",
        "vacuum loot",
        "analyze loot",
        "notify written",
    ):
        attacker.query(sql, scope="read")
        attacker.transaction(sql, "insert into loot values (9)", scope="read", read_only=False)
    rows = arena.look("select count(*) from public.loot", database=attacker.database)[0][0]
    if rows:
        raise Breach(f"the read key has written {rows} rows")


@attack()
def a_statement_changes_its_isolation(arena: Arena) -> None:
    """Nothing that a statement sets, by itself or in code, makes this or a later transaction less than serializable."""
    attacker = arena.attacker
    witness.install(attacker)
    weaker = []
    for sql in (
        "set transaction_isolation = 'read committed'",
        "set session characteristics as transaction isolation level read committed",
        "set default_transaction_isolation = 'read committed'",
        "select set_config('transaction_isolation', 'read committed', false)",
        "select set_config('default_transaction_isolation', 'read committed', false)",
        'set "default_transaction_isolation" to "read committed"',
        "reset all",
        "discard all",
        "reset default_transaction_isolation",
        "do $$ begin set default_transaction_isolation = 'read committed'; end $$",
        "do $$ begin set transaction isolation level read committed; end $$",
        "set local transaction isolation level read committed",
        "alter role current_user set default_transaction_isolation = 'read committed'",
        "select public.leave_traces()",
    ):
        isolation = "select current_setting('transaction_isolation') as isolation"
        attacker.query(sql)
        answers = [attacker.query(isolation), attacker.query(isolation, scope="read")]
        inside = attacker.transaction(sql, isolation)
        if inside.succeeded:
            [row] = inside.body["results"][1]["rows"]
            weaker += [] if row["isolation"] == "serializable" else [f"in a transaction after {sql}: {row}"]
        weaker += [f"after {sql}: {answer.text[:200]}" for answer in answers if "serializable" not in answer.text]
    if weaker:
        raise Breach("; ".join(weaker))


_NAMES_MAX = 12_500


@attack(quick=False)
def one_statement_begins_thousands_of_transactions(arena: Arena) -> None:
    """VACUUM or ANALYZE of one table, named thousands of times, makes no other tenant's write skew commit."""
    attacker, other = arena.attacker, arena.another()
    attacker.must("create table v0 (a int)")
    other.must("create table skew (id int primary key, v int)")
    for verb in ("vacuum", "analyze", "vacuum (analyze, skip_locked)"):
        other.must("delete from skew")
        other.must("insert into skew values (1, 1), (2, 1)")
        slow = routes.in_background(
            other,
            "select sum(v) as seen from skew",
            "select pg_sleep(25)",
            "update skew set v = v - 1 where id = 2 and (select sum(v) from skew) >= 2",
        )
        time.sleep(1)
        other.must("update skew set v = v - 1 where id = 1 and (select sum(v) from skew) >= 2")
        for _ in range(3):
            attacker.query(f"{verb} " + ", ".join(["v0"] * _NAMES_MAX), timeout_ms=20_000)
        slow.join()
        if int(other.value("select sum(v) from skew")) == 0:
            raise Breach(f"{verb} of {_NAMES_MAX} names let a write skew of another tenant commit")


@attack()
def a_commit_is_made_lazy(arena: Arena) -> None:
    """An answer is sent only when its commit is on disk, whatever a trigger sets while it commits."""
    attacker = arena.attacker
    attacker.must("create table written (a int)")
    attacker.must(
        "create function lazy() returns trigger language plpgsql as $$ begin"
        " perform set_config('synchronous_commit', 'off', false);"
        " raise notice 'LSN %', pg_current_wal_insert_lsn(); return null; end $$"
    )
    attacker.must(
        "create constraint trigger late after insert on written deferrable initially deferred"
        " for each row execute function lazy()"
    )
    lazy = 0
    with psycopg.connect(arena.service.conninfo("tuplegate"), autocommit=True) as engine:
        for number in range(_TRIES):
            sql = f"do $$ begin insert into written values ({number}); end $$"
            answer = attacker.query(sql)
            flushed = engine.execute("select pg_current_wal_flush_lsn()").fetchall()[0][0]
            notices = [str(notice.get("message", "")) for notice in answer.body.get("notices", [])]
            positions = [notice.removeprefix("LSN ") for notice in notices if notice.startswith("LSN ")]
            lazy += bool(positions) and _position(positions[-1]) > _position(str(flushed))
    if lazy:
        raise Breach(f"{lazy} of {_TRIES} answers came before their commit was on disk")


def _position(text: str) -> int:
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)
