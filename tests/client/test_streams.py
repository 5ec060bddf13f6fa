"""Streams: rows as they come, and an end that is told from a break."""

import asyncio
import tracemalloc

import pytest

from tests.client.faults import PASS, relay
from tests.service import Service
from tuplegate.client import AsyncClient, Client, DivisionByZero, UndefinedTable


def test_a_stream_is_an_iterator_of_rows(database: Client) -> None:
    """With its columns before, and its counts after."""
    with database.stream("select g as id, g::numeric / 2 as half from generate_series(1, $1) g", [1000]) as rows:
        assert rows.columns == ["id", "half"]
        assert rows.types == ["int4", "numeric"]
        assert [row["id"] for row in rows] == list(range(1, 1001))
    assert rows.row_count == 1000
    assert not rows.truncated


def test_a_stream_of_no_rows_ends(database: Client) -> None:
    """Also without columns."""
    assert list(database.stream("select 1 where false")) == []
    assert list(database.stream("create temporary table gone ()")) == []


def test_a_stream_can_write(database: Client, table: str) -> None:
    """Its rows count once it has ended."""
    with database.stream(f"insert into {table} select generate_series(1, 500) returning n") as rows:
        assert sum(row["n"] for row in rows) == 125_250
    assert rows.affected_rows == 500


def test_rows_before_an_error_are_given_and_then_the_error(database: Client) -> None:
    """Those that the service sent."""
    with database.stream("select 10 / (2 - g) as q from generate_series(1, 3) g") as rows:
        assert next(rows) == {"q": 10}
        with pytest.raises(DivisionByZero) as caught:
            next(rows)
    assert caught.value.request_id is not None
    with pytest.raises(UndefinedTable):
        database.stream("select * from nowhere").__enter__()


def test_leaving_a_stream_early_cancels_it_and_the_client_goes_on(database: Client) -> None:
    """The connection is closed; the next call opens another."""
    with database.stream("select pg_sleep(0.01) from generate_series(1, 100000)") as rows:
        next(rows)
    assert list(rows) == []
    assert database.query("select 1").value() == 1


def test_a_stream_needs_no_more_memory_than_a_few_rows(database: Client) -> None:
    """A hundred megabytes pass by; what is held at any time is a small part of that."""
    tracemalloc.start()
    try:
        with database.stream("select repeat('x', 1000) as t from generate_series(1, 100000)") as rows:
            total = sum(len(row["t"]) for row in rows)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total == 100_000_000
    assert peak < 10_000_000


def test_one_row_may_be_larger_than_a_chunk(database: Client) -> None:
    """It is put together from its parts."""
    with database.stream("select repeat('x', 5000000) as t from generate_series(1, 3)") as rows:
        assert [len(row["t"]) for row in rows] == [5_000_000] * 3


def test_connections_are_used_again(service: Service) -> None:
    """Also after a stream that was read to its end."""
    ports = set()
    with Client(service.url, service.key) as client:
        for _ in range(3):
            assert client.query("select 1").value() == 1
            list(client.stream("select 1"))
            pool = client._transport._http._transport._pool  # type: ignore[attr-defined]  # there is no public way
            ports |= {id(connection) for connection in pool.connections}
    assert len(ports) == 1


def test_the_async_client_streams_and_runs_many_at_once(service: Service) -> None:
    """The same code, awaited."""

    async def work() -> tuple[list[int], list[int]]:
        async with AsyncClient(service.url, service.key) as client:
            async with client.stream("select generate_series(1, 3) as n") as rows:
                streamed = [row["n"] async for row in rows]
            results = await asyncio.gather(*(client.query("select $1::int", [n]) for n in range(20)))
            return streamed, [rows.value() for rows in results]

    assert asyncio.run(work()) == ([1, 2, 3], list(range(20)))


def test_cancelling_a_task_takes_its_write_back(service: Service, database: Client, table: str) -> None:
    """The connection is closed, and the service cancels what still runs on it."""
    with relay(service.url, lambda _: PASS) as watched:

        async def give_up() -> None:
            async with AsyncClient(watched.url, service.key) as client:
                sql = f"insert into {table} select 1 from pg_sleep(600)"
                task = asyncio.create_task(client.query(sql, timeout_s=3600))
                while not watched.requests:
                    await asyncio.sleep(0.01)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

        asyncio.run(give_up())
    # Dropping the table at the end of this test would wait for a statement that is still running on it.
    assert database.query(f"select count(*) from {table}").value() == 0
