"""The driver of PEP 249 beside psycopg, on the same engine: a large result as Python values."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import psycopg
from tests.service import Service

from bench.measure import Line
from tuplegate import dbapi

ROUNDS = 9
ROWS = 100_000
STATEMENT = (
    "select i as id, 'name ' || i as name, i * 1.5::float8 as price,"
    " timestamptz '2026-01-01' + i * interval '1 s' as at, i % 2 = 0 as is_even"
    f" from generate_series(1, {ROWS}) i"
)


def measure(service: Service) -> list[Line]:
    """Rounds of both, one after the other. The whole transaction counts: begin, the rows, and its end."""
    with (
        psycopg.connect(service.writer, options="-c default_transaction_isolation=serializable") as theirs,
        dbapi.connect(service.url, api_key=service.key) as ours,
    ):
        assert _fetch(ours) == _fetch(theirs)
        pairs = [(_time(lambda: _fetch(ours)), _time(lambda: _fetch(theirs))) for _ in range(ROUNDS)]
    ratios = [a / b for a, b in pairs]
    note = (
        f"psycopg {statistics.median(b for _, b in pairs) * 1000:.0f} ms; rounds {min(ratios):.2f} to {max(ratios):.2f}"
    )
    return [Line("DB-API, 100,000 rows x 5 / psycopg's time", statistics.median(ratios), 2.5, True, note)]


def _fetch(connection: Any) -> list[tuple[Any, ...]]:
    cursor = connection.cursor()
    cursor.execute(STATEMENT)
    rows: list[tuple[Any, ...]] = cursor.fetchall()
    connection.rollback()
    return rows


def _time(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
