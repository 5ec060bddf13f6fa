"""The workloads of `GET /bench` and `make bench`: their tables and statements."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

ROWS = 10_000
"""Rows in the table that is read."""

SETUP = (
    "create table {schema}.bench_users (id int primary key, name text, email text, score float8,"
    " created timestamptz default now())",
    "insert into {schema}.bench_users select g, 'name' || g, 'user' || g || '@example.org', g * 1.1"
    f" from generate_series(1, {ROWS}) g",
    "create table {schema}.bench_events (id bigint generated always as identity primary key, user_id int, note text)",
)
TIDY = "vacuum analyze {schema}.bench_users"
"""Makes reads as fast as they are in a table that was used for a while, on engines that know it."""
POINT_READ = "select id, name, email from {schema}.bench_users where id = {id}"
INSERT = "insert into {schema}.bench_events (user_id, note) values ({id}, 'note {id}')"
UPDATE = "update {schema}.bench_users set score = score + 1 where id = {id}"
SCAN = "select id, name, email, score, created from {schema}.bench_users order by id limit 1000"
STREAM = "select id, name from {schema}.bench_users"


class RunKind(Enum):
    """The way in which the statements of a workload are run."""

    QUERY = auto()
    TRANSACTION = auto()
    STREAM = auto()


@dataclass(frozen=True, slots=True)
class Workload:
    """One operation runs all of its statements, with a random {id}."""

    name: str
    kind: RunKind
    texts: tuple[str, ...]

    def statements(self, schema: str, draw: Callable[[], int] = lambda: random.randint(1, ROWS)) -> list[str]:  # noqa: S311
        id = draw()
        return [text.format(schema=schema, id=id) for text in self.texts]


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("point_read", RunKind.QUERY, (POINT_READ,)),
        Workload("insert", RunKind.QUERY, (INSERT,)),
        Workload("transaction", RunKind.TRANSACTION, (UPDATE, INSERT)),
        Workload("scan", RunKind.QUERY, (SCAN,)),
        Workload("stream", RunKind.STREAM, (STREAM,)),
    )
}
