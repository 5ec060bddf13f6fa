"""The operations of the workload as statements, in several ways to write each, and what their rows say."""

import itertools
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.histories import Append, Read, Transaction, Values
from tests.service import Sql

KEYS = 10
GENERATION = 800
"""Transactions of all clients after which the keys are new ones."""

Op = Append | Read
Statement = dict[str, Any]


class _Numbers(dict[str, int]):
    """Texts of numbers as numbers, each of which is there once: long histories hold the same ones over and over."""

    def __missing__(self, text: str) -> int:
        self[text] = number = int(text)
        return number


_number = _Numbers()


def create_table(sql: Sql, table: str) -> None:
    """A key, the same once more without an index, and the values as text. Beside it is a table for `once`."""
    sql(f"create table {table} (k int primary key, name text, v text)")
    sql(f"create table {table}_once (value int primary key)")


def drop_table(sql: Sql, table: str) -> None:
    sql(f"drop table {table}")
    sql(f"drop table {table}_once")


def statements_of(table: str, op: Op, rng: random.Random) -> list[Statement]:
    """An operation in one of the ways to write it. The last statement of a read gives the list."""
    key = int(op.key)
    if isinstance(op, Read):
        if rng.random() < 0.5:
            return [{"sql": f"select v from {table} where k = $1", "params": [key]}]
        return [{"sql": f"select v from {table} where name = $1", "params": [f"n{key}"]}]
    if rng.random() < 0.5:
        return [upsert_of(table, op)]
    row = [key, f"n{key}", str(op.value)]
    absent = f"not exists (select 1 from {table} where k = $1)"
    return [
        {"sql": f"update {table} set v = v || ',' || $2 where k = $1", "params": [key, str(op.value)]},
        {"sql": f"insert into {table} select $1::int, $2::text, $3::text where {absent}", "params": row},
    ]


def upsert_of(table: str, op: Append) -> Statement:
    """An append as one statement."""
    upsert = f"insert into {table} values ($1, $2, $3) on conflict (k) do update set v = {table}.v || ',' || $3"
    return {"sql": upsert, "params": [int(op.key), f"n{op.key}", str(op.value)]}


def once(table: str, op: Append) -> Statement:
    """An append as one statement that fails when it is run a second time: 23505. It returns the list."""
    upsert = upsert_of(table, op)
    upsert["sql"] = f"with once as (insert into {table}_once values ($4) returning 1) {upsert['sql']} returning v"
    upsert["params"].append(op.value)
    return upsert


def alone(table: str, op: Op, rng: random.Random) -> Statement:
    """An operation as a single statement, which gives the list as it is then."""
    return statements_of(table, op, rng)[0] if isinstance(op, Read) else once(table, op)


def parsed(rows: list[Any]) -> Values:
    return tuple(map(_number.__getitem__, rows[0][0].split(","))) if rows else ()


def rows_of(result: dict[str, Any]) -> list[Any] | None:
    """None where they were left out: a repeat may be answered without them, and says so."""
    return None if result.get("truncated") else result["rows"]


def found(ops: Sequence[Op], rows: Iterable[list[Any] | None]) -> tuple[Op, ...]:
    """The operations with what the reads among them gave; without those whose rows were left out."""
    pairs = zip(ops, rows, strict=True)
    seen = (_found_read(op, row) if isinstance(op, Read) else [op] for op, row in pairs)
    return tuple(itertools.chain.from_iterable(seen))


def found_alone(op: Op, rows: list[Any] | None) -> tuple[Op, ...]:
    """The same for `alone`."""
    read = _found_read(op, rows)
    return tuple(read) if isinstance(op, Read) else (op, *read)


def _found_read(op: Op, rows: list[Any] | None) -> list[Op]:
    return [] if rows is None else [Read(op.key, parsed(rows))]


def random_ops(rng: random.Random, numbers: "itertools.count[int]", generation: int = 0) -> list[Op]:
    ops: list[Op] = []
    for _ in range(rng.randint(1, 4)):
        key = str(generation * KEYS + rng.randrange(KEYS))
        ops.append(Read(key) if rng.random() < 0.5 else Append(key, next(numbers)))
    return ops


def final_lists(sql: Sql, table: str) -> dict[str, Values]:
    rows = sql.rows(f"select k, v from {table}", row_mode="arrays")
    return {str(key): parsed([[values]]) for key, values in rows}


def save_history(history: Iterable[Transaction], path: Path) -> None:
    """Writes a line of JSON for every transaction."""
    with path.open("w") as file:
        for one in history:
            ops = [{"op": type(op).__name__, **asdict(op)} for op in one.ops]
            row = {"id": one.id, "outcome": one.outcome.value, "began": one.began, "ended": one.ended, "ops": ops}
            file.write(json.dumps(row) + "\n")
