"""Attacks that would slow others down or use up what all share: processors, memory, locks, disk."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.workers import workers

from attack import routes
from attack.arena import SMALL_BYTES, Arena, Breach
from attack.party import Answer, Party
from attack.table import attack

_GROWTH_MAX_BYTES = 200 * 2**20
_ROOM_BYTES = 12 * 2**20
"""How far beyond its size a database may get: what is in flight when it is measured, and what records may take."""


def _at_once(attacker: Party, count: int, sql: str, timeout_ms: int = 3000) -> None:
    threads = [
        threading.Thread(target=lambda: attacker.query(sql, timeout_ms=timeout_ms), daemon=True) for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@attack()
def processors(arena: Arena) -> None:
    """A tenant that computes with all its connections leaves the others without errors."""
    _at_once(arena.attacker, 32, "select sum(i::numeric * i) from generate_series(1, 100000000) i")


@attack(quick=False)
def parallel_workers(arena: Arena) -> None:
    """A tenant that asks for every parallel worker leaves the others without errors."""
    arena.attacker.must("create table wide as select i, md5(i::text) t from generate_series(1, 200000) i")
    sql = "select count(*) from wide a, wide b where a.t > b.t"
    settings = (
        "set max_parallel_workers_per_gather = 1000",
        "set parallel_setup_cost = 0",
        "set debug_parallel_query = on",
    )
    threads = [
        threading.Thread(target=lambda: arena.attacker.transaction(*settings, sql, timeout_ms=3000), daemon=True)
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@attack(quick=False)
def memory_of_the_engine(arena: Arena) -> None:
    """Statements that ask for all memory fail by themselves, and no other process of the engine."""
    for sql in (
        "select array_agg(repeat('x', 1000000)) from generate_series(1, 100000)",
        "select string_agg(repeat('x', 1000000), '') from generate_series(1, 1000)",
        "select jsonb_agg(i) from generate_series(1, 100000000) i",
        "with recursive r(a) as (select repeat('x', 1000) union all select a || a from r) select length(a) from r",
    ):
        _at_once(arena.attacker, 3, sql, 4000)
    arena.attacker.transaction(
        "set work_mem = '100GB'", "select count(distinct (i, md5(i::text))) from generate_series(1, 5000000) i",
        timeout_ms=4000,
    )  # fmt: skip


@attack(quick=False)
def notifications_to_oneself(arena: Arena) -> None:
    """Notifications that a tenant sends to itself do not grow the worker's memory without bound."""
    before = _memory(arena)
    most = before
    sql = (
        "do $$ begin execute 'listen mine'; for i in 1..30000 loop"
        " perform pg_notify('mine', i || repeat('x', 7900)); end loop; end $$"
    )
    sender = threading.Thread(target=lambda: arena.attacker.query(sql, timeout_ms=20_000), daemon=True)
    sender.start()
    while sender.is_alive():
        most = max(most, _memory(arena))
        time.sleep(0.02)
    most = max(most, _memory(arena))
    if most - before > _GROWTH_MAX_BYTES:
        raise Breach(f"the workers' memory grew by {(most - before) >> 20} MB")


@attack()
def notices_without_end(arena: Arena) -> None:
    """Notices that a statement raises do not grow the worker's memory without bound."""
    before = _memory(arena)
    sql = "do $$ begin for i in 1..60000 loop raise notice '%', repeat('x', 8000); end loop; end $$"
    sender = threading.Thread(target=lambda: arena.attacker.query(sql), daemon=True)
    sender.start()
    most = before
    while sender.is_alive():
        most = max(most, _memory(arena))
        time.sleep(0.02)
    if most - before > _GROWTH_MAX_BYTES:
        raise Breach(f"the workers' memory grew by {(most - before) >> 20} MB")


def _memory(arena: Arena) -> int:
    """Bytes of memory that the workers have now."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in workers(arena.service))
    return pages * 4096


def _must_end(answer: Answer, *bounds: str) -> None:
    """An attack that comes to none of the bounds that it names shows nothing."""
    if answer.sqlstate not in bounds:
        raise Breach(f"it did not come to its bound, {' or '.join(bounds)}: {answer.status} {answer.text[:300]}")


@attack(quick=False)
def temporary_files(arena: Arena) -> None:
    """Sorting more than fits spills to disk within a bound."""
    sql = "select count(*) from (select md5(i::text) m from generate_series(1, 100000000) i order by 1) s"
    with ThreadPoolExecutor(4) as threads:
        for sort in [threads.submit(arena.attacker.query, sql, timeout_ms=60000) for _ in range(4)]:
            _must_end(sort.result(), "53400")


@attack(quick=False, tier="small")
def a_deferred_trigger_fills_the_database(arena: Arena) -> None:
    """Rows that a deferred trigger inserts at COMMIT count against the size of the database."""
    attacker = arena.attacker
    attacker.must("create table filled (a text) with (autovacuum_enabled = off)")
    attacker.must("create table starter as select generate_series(1, 100) as a")
    attacker.must(
        "create function fill() returns trigger language plpgsql as $$ begin"
        " insert into filled select md5(i::text || random()) || repeat(md5(random()::text), 20)"
        " from generate_series(1, 8000) i; return null; end $$"
    )
    attacker.must(
        "create constraint trigger late after delete on starter deferrable initially deferred"
        " for each row execute function fill()"
    )
    attacker.must("create table first as select generate_series(1, 100) as a")
    attacker.must(
        "create function again() returns trigger language plpgsql as $$ begin"
        " set constraints all deferred; delete from starter where a = old.a; return null; end $$"
    )
    attacker.must(
        "create constraint trigger earlier after delete on first deferrable initially deferred"
        " for each row execute function again()"
    )
    _fill(arena)
    for number in range(1, 11):
        attacker.query(f"delete from starter where a = {number}")
        attacker.query(f"delete from first where a = {number + 20}")
        attacker.transaction(f"delete from first where a = {number + 40}")
    _within_size(arena)


def _fill(arena: Arena) -> None:
    """Until the service refuses more."""
    attacker = arena.attacker
    attacker.must("create table plenty (a int, b text) with (autovacuum_enabled = off)")
    for _ in range(200):
        sql = "insert into plenty select i, md5(random()::text) from generate_series(1, 5000) i"
        if attacker.query(sql).sqlstate == "53100":
            return
    raise Breach("the database takes rows without end")


def _within_size(arena: Arena) -> None:
    database = arena.attacker.database
    size = int(arena.look("select pg_database_size(%s)", [database], database)[0][0])
    if size > SMALL_BYTES + _ROOM_BYTES:
        raise Breach(f"a database of at most {SMALL_BYTES >> 20} MB has {size >> 20} MB")


@attack(tier="small")
def answers_that_are_kept_fill_the_database(arena: Arena) -> None:
    """Answers that are kept for Idempotency-Keys count against the size of the database, those of read keys too."""
    sql = "select string_agg(md5(i::text || random()), '') as noise from generate_series(1, 28000) i"
    for number in range(45):
        scope = "read" if number % 3 else "write"
        arena.attacker.query(sql, scope=scope, headers={"Idempotency-Key": f"full-{number}"})
    _within_size(arena)


@attack(quick=False, tier="small")
def ids_fill_the_database(arena: Arena) -> None:
    """Records of chosen ids and aborts do not grow a database beyond its size."""
    arena.attacker.must("create table filled as select md5(i::text) from generate_series(1, 400000) i")
    for _ in range(50):
        arena.attacker.ask("read", "POST", f"/v1/transaction/{routes.chosen_id()}/abort")
        arena.attacker.transaction("select 1 as one", headers={"Tuplegate-Transaction-Id": routes.chosen_id()})
    _within_size(arena)
