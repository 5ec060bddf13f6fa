"""What every server is asked to do, and the table it is asked about. The statements are the same for all of them."""

from dataclasses import dataclass
from enum import StrEnum

USERS = 10_000
STREAMED = 100_000
MARK = "@"  # stands for a random number; unlike the percent sign, a query string can hold it as it is


class Workload(StrEnum):
    POINT = "point"
    POINT_PARAMETER = "point-parameter"
    INSERT = "insert"
    ROWS = "rows-1000"
    TRANSACTION = "transaction"
    STREAM = "stream"
    NEON = "neon-driver"

    @property
    def label(self) -> str:
        return _LABELS[self]

    @property
    def writes(self) -> bool:
        return self in (Workload.INSERT, Workload.TRANSACTION)


_LABELS = {
    Workload.POINT: "point read, literal",
    Workload.POINT_PARAMETER: "point read, parameter",
    Workload.INSERT: "insert of one row",
    Workload.ROWS: "1,000 rows",
    Workload.TRANSACTION: "transaction of two statements",
    Workload.STREAM: "stream of 100,000 rows",
    Workload.NEON: "point read by Neon's driver",
}
LOADS = tuple(workload for workload in Workload if workload not in (Workload.STREAM, Workload.NEON))
"""Those of which every request is the same bytes but for a number, so that a generator of load can send them."""

_POINT = "select id, name, email from bench_users where id = "
POINT = f"{_POINT}{MARK}"
INSERT = f"insert into bench_events (user_id, note) values ({MARK}, 'a note of a usual length')"
ROWS = "select id, name, email, score, created from bench_users order by id limit 1000"
TRANSACTION = (INSERT, f"update bench_counters set count = count + 1 where id = {MARK}")
STREAM = "select id, name, email, score, created from bench_streamed order by id"


def point_with(placeholder: str) -> str:
    """The point read with a parameter, written as the server's dialect writes it."""
    return f"{_POINT}{placeholder}"


@dataclass(frozen=True)
class Dialect:
    """How an engine spells the few things that differ."""

    key: str
    float_type: str
    time_type: str
    time_of_g: str
    series: str  # up to {n}, as a FROM item with the column g
    finish: tuple[str, ...]

    def tables(self) -> list[str]:
        user_columns = f"(id integer primary key, name text, email text, score {self.float_type}, created"
        values = f"g, 'name' || g, 'user' || g || '@example.org', g * 1.1, {self.time_of_g}"
        return [
            f"create table bench_users {user_columns} {self.time_type})",
            f"create table bench_streamed {user_columns} {self.time_type})",
            "create table bench_counters (id integer primary key, count integer not null)",
            f"create table bench_events (id {self.key}, user_id integer not null, note text not null)",
            f"insert into bench_users select {values} from {self.series.format(n=USERS)}",
            f"insert into bench_streamed select {values} from {self.series.format(n=STREAMED)}",
            f"insert into bench_counters select g, 0 from {self.series.format(n=USERS)}",
            *self.finish,
        ]


POSTGRESQL = Dialect(
    key="bigint generated always as identity primary key",
    float_type="float8",
    time_type="timestamptz",
    time_of_g="timestamptz '2026-01-01 00:00:00Z' + g * interval '1 second'",
    series="generate_series(1, {n}) g",
    finish=tuple(f"vacuum analyze bench_{name}" for name in ("users", "streamed", "counters", "events")),
)
SQLITE = Dialect(
    key="integer primary key",
    float_type="real",
    time_type="text",
    time_of_g="strftime('%Y-%m-%dT%H:%M:%SZ', 1767225600 + g, 'unixepoch')",
    series="(with recursive s(g) as (select 1 union all select g + 1 from s where g < {n}) select g from s)",
    finish=(),
)
