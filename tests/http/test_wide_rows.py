"""Rows that are very wide: what a worker holds of them has a bound, whatever comes, and however often at once."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.needs import needs
from tests.servers import needs_linux
from tests.service import Service, Sql, make_key, running_service
from tests.workers import peak_mb

WIDE = "select repeat('x', 3000000) from generate_series(1, {})"
"""A hundred of them are 300 MB, and come together."""


@pytest.fixture(scope="module")
def small() -> Iterator[Service]:
    """A service that may hold little."""
    with running_service("--http-memory-mb", "16") as running:
        yield running


@pytest.fixture(scope="module")
def reading(small: Service) -> Iterator[Sql]:
    """With a key that may only read: of another one's statement, what it has done would be in doubt."""
    with small.client(make_key(small, "read")) as client:
        yield Sql(client)


@pytest.fixture
def sql(small: Service) -> Iterator[Sql]:
    with small.client() as client:
        yield Sql(client)


@needs_linux
def test_answers_that_are_made_at_once_take_turns(small: Service, sql: Sql) -> None:
    """Eight of them are 200 MB; each is there to its last byte."""
    before = peak_mb(small)
    lengths: list[int] = []

    def ask() -> None:
        rows = sql.rows("select repeat('x', 100000) as text from generate_series(1, 250)")
        lengths.append(sum(len(row["text"]) for row in rows))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lengths == [25_000_000] * 8
    assert peak_mb(small) - before < 250


@needs_linux
@pytest.mark.parametrize("route", ["query", "transaction", "a part of the rows"])
def test_rows_that_are_too_wide_together_are_refused(small: Service, sql: Sql, reading: Sql, route: str) -> None:
    before = peak_mb(small)
    if route == "transaction":
        body: dict[str, Any] = {"statements": ["create table wide_was_here ()", WIDE.format(200)]}
        answer = sql.client.post("/v1/transaction", json=body).json()
        assert not sql.value("select to_regclass('wide_was_here') is not null")
        error = answer["error"]
    elif route == "query":
        error = reading.fails(WIDE.format(200))
    else:
        assert len(reading.rows(WIDE.format(200), max_rows=2)) == 2
        error = reading.fails(WIDE.format(200), max_rows=90)
    assert error["sqlstate"] == "54000"
    assert "64 MiB" in error["message"]
    assert "nothing was applied" in error["message"]
    assert "stream" in error["hint"]
    assert peak_mb(small) - before < 150
    assert sql.value("select 1") == 1


@needs("postgresql")  # others do not write so much at once
@needs_linux
def test_what_writes_is_never_refused_for_its_rows(small: Service, sql: Sql) -> None:
    """It would have been applied, or not, and nobody would know."""
    before = peak_mb(small)
    sql("create table written (id int, text text)")
    answer = sql("insert into written select n, repeat('x', 3000000) from generate_series(1, 60) n returning id, text")
    assert answer["truncated"]
    assert answer["affected_rows"] == 60
    assert sql.value("select count(*) from written") == 60
    assert peak_mb(small) - before < 200


@needs_linux
def test_wide_rows_are_streamed(small: Service, sql: Sql) -> None:
    """Few of them are fetched at a time, however many were before they grew."""
    before = peak_mb(small)
    with _stream(
        sql, "select repeat('x', case when n < 400 then 10 else n * 100 end) from generate_series(1, 800) n"
    ) as answer:
        text = answer.read().decode()
    assert "event: done" in text
    assert len(text) > 24_000_000
    assert peak_mb(small) - before < 150


def test_a_stream_whose_rows_grow_too_fast_says_so(sql: Sql) -> None:
    with _stream(
        sql, "select repeat('x', case when n < 600 then 1 else 3000000 end) from generate_series(1, 900) n"
    ) as answer:
        text = answer.read().decode()
    assert "event: done" not in text
    assert '"54000"' in text
    assert "stream of their own" in text
    assert sql.value("select 1") == 1


def _stream(sql: Sql, text: str) -> Any:
    return sql.client.stream("POST", "/v1/query", json={"sql": f"/*+ STREAM */ {text}"})
