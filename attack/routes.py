"""Every route of the service as an attacker would use it: what hostile objects are run under.

A route must answer, and never with an internal error; whether it succeeds in a hostile database is the tenant's matter.
"""

import random
import threading
from itertools import count
from typing import Protocol

from attack.arena import Arena
from attack.party import Party
from tuplegate.data_plane.capabilities.matrix import PROBES


class Route(Protocol):
    """A function of this module, or one like them."""

    __name__: str

    def __call__(self, arena: Arena) -> None: ...


_numbers = count(1)

STATEMENTS = (
    "select 1 as a",
    "select a from loot where a = 1",
    "select * from loot where a = $1",
    "insert into loot values (3)",
    "update loot set a = a",
    "delete from loot where a = 3",
    "with x as (insert into loot values (4) returning a) select * from x",
    "values (1), (2)",
    "table loot",
    "do $$ begin null; end $$",
    "explain select * from loot",
    "show search_path",
    "create table if not exists made (a int)",
    "drop table if exists made",
    "vacuum loot",
    "select set_config('app.x', '1', false)",
    "select current_setting('transaction_isolation')",
)


def queries(arena: Arena) -> None:
    for scope in ("write", "read"):
        for sql in STATEMENTS:
            arena.attacker.query(sql, [1] if "$1" in sql else None, scope=scope)
    arena.attacker.query("select $1::int[] as a, $2::jsonb as b", [[1, 2], {"a": 1}])
    arena.attacker.ask("write", "POST", "/query", content="select 1", headers={"Content-Type": "text/plain"})


def repeated(arena: Arena) -> None:
    """What comes often is prepared on its connection."""
    for number in range(12):
        arena.attacker.query(f"select a from loot where a = {number}", scope=("write", "read")[number % 2])


def streams(arena: Arena) -> None:
    for scope in ("write", "read"):
        arena.attacker.query("/*+ STREAM */ select * from generate_series(1, 20) i", scope=scope)
        arena.attacker.query("select * from loot", scope=scope, headers={"Accept": "application/x-ndjson"})
    arena.attacker.query("/*+ STREAM */ insert into loot values (5) returning a")


def transactions(arena: Arena) -> None:
    attacker = arena.attacker
    attacker.transaction("insert into loot values (6)", "select * from loot")
    attacker.transaction("select * from loot", scope="read")
    attacker.transaction("select * from loot", read_only=True)
    for path in ("public, pg_catalog", "pg_temp, public, pg_catalog"):
        id = chosen_id()
        headers = {"Tuplegate-Transaction-Id": id}
        attacker.transaction(f"set search_path = {path}", "insert into loot values (7)", headers=headers)
        attacker.ask("write", "GET", f"/v1/transaction/{id}")
        attacker.ask("read", "GET", f"/v1/transaction/{id}")
        attacker.ask("write", "POST", f"/v1/transaction/{id}/abort")
    attacker.ask("write", "POST", f"/v1/transaction/{chosen_id()}/abort")
    attacker.transaction("create temp table t (a int)", "insert into t values (1)", "select * from t")
    attacker.transaction("notify hello", headers={"Tuplegate-Transaction-Id": chosen_id()})


def idempotent(arena: Arena) -> None:
    for scope, sql in (("write", "insert into loot values (8)"), ("read", "select 1 as a"), ("write", "select 1")):
        headers = {"Idempotency-Key": f"key-{next(_numbers)}"}
        for _ in range(2):
            arena.attacker.query(sql, scope=scope, headers=headers)
        headers = {"Idempotency-Key": f"key-{next(_numbers)}", "Tuplegate-Transaction-Id": chosen_id()}
        for _ in range(2):
            arena.attacker.transaction("set search_path = public, pg_catalog", sql, scope=scope, headers=headers)


def tables(arena: Arena) -> None:
    for scope in ("write", "read", "admin"):
        arena.attacker.ask(scope, "GET", "/tables")


def storage(arena: Arena) -> None:
    arena.attacker.ask("admin", "GET", "/storage/test")


def bench(arena: Arena) -> None:
    arena.attacker.ask("admin", "GET", "/bench?seconds=1&concurrency=2")


def probes(arena: Arena) -> None:
    """A few at a time: all of them take seconds."""
    for name in random.Random(next(_numbers)).sample(probe_names(arena), 12):
        arena.attacker.ask("admin", "GET", f"/capabilities/{name}")


def all_probes(arena: Arena) -> None:
    for name in probe_names(arena):
        arena.attacker.ask("admin", "GET", f"/capabilities/{name}")
    if not arena.broken_probes:
        arena.attacker.ask("admin", "GET", "/capabilities")


def dump(arena: Arena) -> None:
    arena.attacker.ask("admin", "GET", "/v1/databases/main/dump", control=True)


def clone(arena: Arena) -> None:
    name = f"copy-{next(_numbers)}"
    body = {"name": name, "clone_of": "main"}
    arena.attacker.ask("admin", "POST", "/v1/databases", control=True, json=body)
    headers = {"Tuplegate-Database": name}
    arena.attacker.query("select * from loot", scope="admin", headers=headers)
    arena.attacker.transaction(
        "insert into loot values (9)", scope="admin", headers={**headers, "Tuplegate-Transaction-Id": chosen_id()}
    )
    arena.attacker.ask("admin", "DELETE", f"/v1/databases/{name}", control=True)


def reset(arena: Arena) -> None:
    arena.attacker.ask("admin", "POST", "/admin/reset")


def control(arena: Arena) -> None:
    for path in ("/v1/databases", "/v1/databases/main", "/v1/usage", "/v1/organization", "/v1/audit"):
        arena.attacker.ask("admin", "GET", path, control=True)


QUICK: tuple[Route, ...] = (queries, repeated, streams, transactions, idempotent, tables, storage, dump, clone, control)
LONG: tuple[Route, ...] = (bench, all_probes)
"""Beside the quick ones. A reset comes last, since it takes the hostile objects away."""


def run_all(arena: Arena, *, long: bool = False) -> None:
    last: tuple[Route, ...] = (*(LONG if long else (probes,)), reset)
    for route in (*QUICK, *last):
        route(arena)


def chosen_id() -> str:
    return f"txn_attack{next(_numbers):010d}"


def probe_names(arena: Arena) -> list[str]:
    return [name for name in PROBES if name not in arena.broken_probes]


def in_background(party: Party, *statements: str) -> threading.Thread:
    """Begin a transaction that holds what it has until its statements end."""
    thread = threading.Thread(target=lambda: party.transaction(*statements), daemon=True)
    thread.start()
    return thread
