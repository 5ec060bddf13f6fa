"""PEP 249 over HTTP: transactions in few requests, rows as Python values, and the exceptions that it names."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from tests.client.faults import LOSE, PASS, Relay, relay
from tests.dbapi.conftest import address
from tests.service import Service
from tuplegate import dbapi


def names(service: Service) -> list[str]:
    """What others see."""
    with dbapi.connect(address(service), autocommit=True) as other:
        return [name for (name,) in other.cursor().execute("select name from things order by id")]


@contextmanager
def watched(service: Service, fate: Any = lambda _request: PASS) -> Iterator[tuple[Relay, dbapi.Connection]]:
    """A connection whose requests are seen."""
    with relay(service.url, fate) as between, dbapi.connect(between.url, api_key=service.key) as opened:
        yield between, opened


def routes(between: Relay) -> list[str]:
    """The last part of every path that was asked for."""
    return [request.split(b" ", 2)[1].rpartition(b"/")[2].decode() for request in between.requests]


def test_the_module_says_what_it_is() -> None:
    assert (dbapi.apilevel, dbapi.threadsafety, dbapi.paramstyle) == ("2.0", 2, "numeric_dollar")
    assert dbapi.Connection.IntegrityError is dbapi.IntegrityError
    assert issubclass(dbapi.IntegrityError, dbapi.DatabaseError)
    assert dbapi.NUMBER == "int8"
    assert dbapi.STRING != "int8"
    assert dbapi.Binary(b"hi") == b"hi"
    assert dbapi.DateFromTicks(86400) == date(1970, 1, 2)
    assert dbapi.TimeFromTicks(61) == time(0, 1, 1)
    assert dbapi.TimestampFromTicks(0) == datetime(1970, 1, 1, tzinfo=UTC)


def test_a_transaction_takes_two_requests(service: Service, table: str) -> None:
    with watched(service) as (between, connection):
        connection.cursor().execute("insert into things values ($1, $2)", (1, "one"))
        assert names(service) == []
        connection.commit()
        connection.commit()
        connection.rollback()
    assert names(service) == ["one"]
    assert routes(between) == ["begin", "commit"]


def test_rolled_back_it_leaves_nothing(service: Service, table: str, connection: dbapi.Connection) -> None:
    cursor = connection.cursor()
    cursor.execute("insert into things values (1, 'one')")
    assert cursor.rowcount == 1
    assert cursor.description is None
    connection.rollback()
    cursor.execute("insert into things values (2, 'two')")
    connection.close()
    assert names(service) == []
    with pytest.raises(dbapi.InterfaceError, match="closed"):
        connection.cursor()


def test_rows_are_python_values(connection: dbapi.Connection) -> None:
    values = (
        1, 2**40, Decimal("1.10"), 0.5, "é", True, None, b"\0a", date(2026, 1, 2), datetime(2026, 1, 2, 3, 4, 5, 6),
        datetime(2026, 1, 2, 3, tzinfo=UTC), time(1, 2), timedelta(days=1, seconds=2), UUID(int=7),
        {"a": [1.5]}, [[1, None]],
    )  # fmt: skip
    types = (
        "int4", "int8", "numeric", "float8", "text", "bool", "int4", "bytea", "date", "timestamp",
        "timestamptz", "time", "interval", "uuid", "jsonb", "int4[]",
    )  # fmt: skip
    cursor = connection.cursor()
    cursor.execute("select " + ", ".join(f"${n}::{kind} as c{n}" for n, kind in enumerate(types, 1)), values)
    assert cursor.fetchone() == values
    assert cursor.fetchone() is None
    assert cursor.description is not None
    assert [column[:2] for column in cursor.description] == [(f"c{n}", kind) for n, kind in enumerate(types, 1)]
    assert cursor.description[1][1] == dbapi.NUMBER
    assert cursor.description[10][1] == dbapi.DATETIME


def test_rows_are_fetched_one_by_one_and_together(connection: dbapi.Connection) -> None:
    cursor = connection.cursor()
    cursor.execute("select generate_series(1, 10)")
    assert cursor.rowcount == 10
    assert cursor.fetchone() == (1,)
    assert cursor.fetchmany() == [(2,)]
    cursor.arraysize = 2
    assert cursor.fetchmany() == [(3,), (4,)]
    assert cursor.fetchmany(3) == [(5,), (6,), (7,)]
    assert next(cursor) == (8,)
    assert cursor.fetchall() == [(9,), (10,)]
    assert cursor.fetchall() == []
    cursor.execute("set work_mem = '1MB'")
    with pytest.raises(dbapi.ProgrammingError, match="no rows to fetch"):
        cursor.fetchone()


@pytest.mark.parametrize(
    ("sql", "kind", "sqlstate"),
    [
        ("select 1/0", dbapi.DataError, "22012"),
        ("insert into things values (null)", dbapi.IntegrityError, "23502"),
        ("select nothing", dbapi.ProgrammingError, "42703"),
        ("selec", dbapi.ProgrammingError, "42601"),
        ("select 1; select 2", dbapi.ProgrammingError, "42601"),
        ("commit", dbapi.ProgrammingError, None),
        ("do $$ begin raise exception using errcode = '0A000'; end $$", dbapi.NotSupportedError, "0A000"),
        ("do $$ begin raise exception using errcode = '40001'; end $$", dbapi.OperationalError, "40001"),
    ],
)
def test_exceptions_go_by_sqlstate(
    table: str, connection: dbapi.Connection, sql: str, kind: type[dbapi.Error], sqlstate: str | None
) -> None:
    """As the first statement, and inside."""
    for _ in range(2):
        with pytest.raises(kind) as raised:
            connection.cursor().execute(sql)
        assert type(raised.value) is kind
        assert raised.value.sqlstate == sqlstate
        connection.rollback()
        connection.cursor().execute("select 1")
    connection.rollback()


def test_a_parameter_that_cannot_be_sent_is_named(connection: dbapi.Connection) -> None:
    with pytest.raises(dbapi.ProgrammingError, match=r"parameter \$2: a object cannot be sent"):
        connection.cursor().execute("select $1::int, $2::int", (1, object()))
    with pytest.raises(dbapi.ProgrammingError, match="params is a list"):
        connection.cursor().execute("select $1", "one")  # a text is a sequence, too
    connection.cursor().execute("select 1")


@pytest.mark.parametrize("begun", [False, True])
def test_a_failed_transaction_stays_failed_until_it_is_rolled_back(
    service: Service, table: str, connection: dbapi.Connection, begun: bool
) -> None:
    cursor = connection.cursor()
    if begun:
        cursor.execute("insert into things values (1, 'one')")
    with pytest.raises(dbapi.DataError):
        cursor.execute("select 1/0")
    with pytest.raises(dbapi.InternalError) as failed:
        cursor.execute("select 1")
    assert failed.value.sqlstate == "25P02"
    with pytest.raises(dbapi.InternalError):
        connection.commit()
    cursor.execute("insert into things values (2, 'two')")
    connection.commit()
    assert names(service) == ["two"]


@pytest.mark.parametrize("refused", ["", "begin"])
def test_what_the_service_refuses_does_not_end_it(
    service: Service, table: str, connection: dbapi.Connection, refused: str
) -> None:
    """Nothing of it was run, and the number of the request may not have been taken."""
    cursor = connection.cursor()
    cursor.execute(f"insert into {table} values (1)")
    with pytest.raises(dbapi.Error):
        cursor.execute(refused)
    cursor.execute(f"insert into {table} values (2)")
    with pytest.raises(dbapi.Error):
        cursor.execute(refused)
    connection.commit()
    cursor.execute(f"select count(*) from {table}")
    assert cursor.fetchall() == [(2,)]
    connection.rollback()


def test_one_that_only_reads_leaves_nothing_open(service: Service, read_key: str) -> None:
    for _ in range(17):
        with dbapi.connect(service.url, api_key=read_key) as opened:
            opened.cursor().execute("select 1")


def test_a_savepoint_saves_it(service: Service, table: str, connection: dbapi.Connection) -> None:
    cursor = connection.cursor()
    cursor.execute("savepoint a")
    with pytest.raises(dbapi.DataError):
        cursor.execute("select 1/0")
    cursor.execute("rollback to a")
    cursor.execute("insert into things values (1, 'one')")
    connection.commit()
    assert names(service) == ["one"]


def test_a_conflict_asks_for_a_rollback(service: Service, table: str, connection: dbapi.Connection) -> None:
    cursor = connection.cursor()
    cursor.execute("insert into things values (1, 'one')")
    connection.commit()
    cursor.execute("select name from things where id = 1")
    with dbapi.connect(address(service), autocommit=True) as other:
        other.cursor().execute("update things set name = 'other' where id = 1")
    with pytest.raises(dbapi.OperationalError) as conflict:
        cursor.execute("update things set name = 'mine' where id = 1")
    assert (conflict.value.sqlstate, conflict.value.retryable) == ("40001", True)
    with pytest.raises(dbapi.InternalError):
        cursor.execute("select 1")
    connection.rollback()
    cursor.execute("update things set name = 'mine' where id = 1")
    connection.commit()
    assert names(service) == ["mine"]


def test_autocommit_needs_one_request(service: Service, table: str) -> None:
    with watched(service) as (between, connection):
        connection.autocommit = True
        cursor = connection.cursor()
        cursor.execute("insert into things values (1, 'one') returning id")
        assert cursor.fetchall() == [(1,)]
        assert names(service) == ["one"]
        connection.commit()
        cursor.execute("vacuum things")
        connection.autocommit = False
        cursor.execute("select 1")
        with pytest.raises(dbapi.ProgrammingError, match="inside a transaction"):
            connection.autocommit = True
        connection.rollback()
    # VACUUM is refused with an Idempotency-Key, and sent again without.
    assert routes(between) == ["query", "query", "query", "begin", "rollback"]


def test_one_that_only_reads(table: str, connection: dbapi.Connection) -> None:
    connection.read_only = True
    for autocommit in (False, True):
        connection.autocommit = autocommit
        with pytest.raises(dbapi.InternalError) as refused:
            connection.cursor().execute("insert into things values (1, 'one')")
        assert refused.value.sqlstate == "25006"
        connection.rollback()
        assert connection.cursor().execute("select count(*) from things").fetchone() == (0,)
        connection.rollback()


def test_executemany_is_one_request_with_autocommit(service: Service, table: str) -> None:
    rows = [(n, f"name {n}") for n in range(5)]
    with watched(service) as (between, connection):
        connection.autocommit = True
        cursor = connection.cursor()
        cursor.executemany("insert into things values ($1, $2)", rows)
        assert cursor.rowcount == 5
        with pytest.raises(dbapi.IntegrityError):
            cursor.executemany("insert into things values ($1, 'again')", [(7,), (1,)])
        cursor.executemany("insert into things values ($1, $2)", [])
        assert cursor.rowcount == 0
    assert routes(between) == ["transaction", "transaction"]
    assert names(service) == [name for _, name in rows]


def test_executemany_inside_a_transaction(service: Service, table: str, connection: dbapi.Connection) -> None:
    cursor = connection.cursor()
    cursor.executemany("insert into things values ($1, $2)", [(1, "one"), (2, "two")])
    assert cursor.rowcount == 2
    assert names(service) == []
    connection.commit()
    assert names(service) == ["one", "two"]


def test_executemany_is_one_request_inside_a_transaction(service: Service, table: str) -> None:
    with watched(service) as (between, connection):
        cursor = connection.cursor()
        cursor.executemany("insert into things values ($1, $2)", [(n, f"name {n}") for n in range(3)])
        cursor.executemany("update things set name = $2 where id = $1", [(1, "one"), (2, None), (7, "none")])
        assert cursor.rowcount == 2
        connection.commit()
    assert routes(between) == ["begin", "query", "commit"]
    assert names(service) == ["name 0", "one", None]


def test_executemany_that_fails_tells_where(table: str, connection: dbapi.Connection) -> None:
    cursor = connection.cursor()
    cursor.execute("savepoint before")
    with pytest.raises(dbapi.IntegrityError):
        cursor.executemany("insert into things values ($1, 'x')", [(1,), (2,), (1,), (3,)])
    cursor.execute("rollback to before")
    with pytest.raises(dbapi.OperationalError):
        cursor.executemany("insert into things values ($1, 'x')", [(1,), (2, 3)])
    cursor.execute("rollback to before")
    assert cursor.execute("select count(*) from things").fetchone() == (0,)


def test_executemany_with_much_to_send_is_several_requests(service: Service, table: str) -> None:
    rows = [(n, "x" * 2**20) for n in range(9)]
    with watched(service) as (between, connection):
        cursor = connection.cursor()
        cursor.executemany("insert into things values ($1, $2)", rows)
        assert cursor.rowcount == 9
        connection.commit()
    assert routes(between) == ["begin", "query", "query", "commit"]
    assert [len(name) for name in names(service)] == [2**20] * 9


def test_executemany_with_more_than_a_request_holds_is_still_one_unit(
    table: str, connection: dbapi.Connection, monkeypatch: pytest.MonkeyPatch, service: Service
) -> None:
    monkeypatch.setattr("tuplegate.dbapi.synchronous.connection.BATCH_MAX", 2)
    connection.autocommit = True
    cursor = connection.cursor()
    with pytest.raises(dbapi.IntegrityError):
        cursor.executemany("insert into things values ($1, 'x')", [(1,), (2,), (1,)])
    assert names(service) == []
    cursor.executemany("insert into things values ($1, 'x')", [(1,), (2,), (3,)])
    assert names(service) == ["x", "x", "x"]
    assert not connection.in_transaction


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_large_result_is_streamed(service: Service, autocommit: bool) -> None:
    with watched(service) as (between, connection):
        connection.autocommit = autocommit
        cursor = connection.cursor(stream=True)
        cursor.arraysize = 400
        cursor.execute("select i, $1::text from generate_series(1, 1000) i", ["x"])
        assert cursor.rowcount == -1
        assert cursor.description is not None
        assert [column[0] for column in cursor.description] == ["i", "text"]
        assert cursor.fetchone() == (1, "x")
        # Other statements do not mind.
        assert connection.cursor().execute("select 7").fetchone() == (7,)
        assert cursor.fetchmany(500)[-1] == (501, "x")
        assert len(cursor.fetchall()) == 499
        assert cursor.fetchone() is None
        cursor.execute("select i from generate_series(1, 100000) i")
        assert cursor.fetchone() == (1,)
        cursor.close()
        assert connection.cursor().execute("select 8").fetchone() == (8,)
    expected = ["query"] * 3 if autocommit else ["begin", *["query"] * 9, "commit"]
    assert routes(between)[: len(expected)] == expected


def test_what_only_writes_is_not_streamed(table: str, connection: dbapi.Connection) -> None:
    cursor = connection.cursor(stream=True)
    cursor.execute("insert into things values (1, 'one') returning name")
    assert cursor.fetchall() == [("one",)]
    cursor.execute("show work_mem")
    assert len(cursor.fetchall()) == 1
    connection.rollback()


def test_a_stream_ends_with_its_transaction(connection: dbapi.Connection) -> None:
    cursor = connection.cursor(stream=True)
    cursor.execute("select generate_series(1, 5000)")
    connection.rollback()
    assert len(cursor.fetchmany(1000)) == 1000
    with pytest.raises(dbapi.InterfaceError, match="the transaction has ended"):
        cursor.fetchone()


def test_a_stream_that_fails_says_so(connection: dbapi.Connection) -> None:
    for connection.autocommit in (False, True):
        cursor = connection.cursor(stream=True)
        with pytest.raises(dbapi.DataError):
            cursor.execute("select 1 / (1500 - i) from generate_series(1, 2000) i").fetchall()
        cursor.close()
        connection.rollback()


def test_a_lost_answer_is_asked_for_again(service: Service, table: str) -> None:
    """Each of begin, a statement and the commit loses its answer once; nothing runs twice."""
    lost: set[str] = set()

    def fate(request: bytes) -> str:
        route = request.split(b" ", 2)[1].rpartition(b"/")[2].decode()
        if route in lost:
            return PASS
        lost.add(route)
        return LOSE

    with watched(service, fate) as (between, connection):
        cursor = connection.cursor()
        cursor.execute("select 1")
        cursor.execute("insert into things values (1, 'one') returning id")
        assert cursor.fetchall() == [(1,)]
        connection.commit()
    assert names(service) == ["one"]
    assert routes(between) == ["begin", "begin", "query", "query", "commit", "commit"]


def test_a_result_that_was_cut_is_no_result(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(dbapi.OperationalError, match=r"cursor\(stream=True\)"):
        dbapi.results.read_result({"truncated": True, "columns": [], "types": [], "rows": [], "affected_rows": 0})


def test_a_service_that_is_away_is_an_operational_error() -> None:
    with dbapi.connect("tuplegate://svc_k_x@127.0.0.1:1/main", retries=0) as connection:
        with pytest.raises(dbapi.OperationalError, match="cannot be reached"):
            connection.cursor().execute("select 1")
        with pytest.raises(dbapi.OperationalError, match="cannot be reached"):
            connection.ping()


def test_the_key_may_stand_for_a_password(service: Service) -> None:
    with dbapi.connect(address(service).replace("//", "//:")) as connection:
        connection.ping()


def test_what_is_not_on_loopback_is_asked_over_tls() -> None:
    read = dbapi.addresses.read_address
    assert read("tuplegate://k@h.example/d?ca_file=/a&timeout_s=5&retries=2") == dbapi.addresses.Address(
        "https://h.example", "k", "d", "/a", 5.0, 2
    )
    assert read("tuplegate://k@[::1]/").url == "http://[::1]:8080"
    assert read("tuplegate://k@localhost:8443/d?tls=true").url == "https://localhost:8443"
    assert read("tuplegate+async://k%40@h:1/d?tls=off").url == "http://h:1"
    assert read("tuplegate+async://k%40@h:1/d?tls=off").api_key == "k@"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("postgresql://h/d", "looks like tuplegate://"),
        ("tuplegate://", "looks like tuplegate://"),
        ("tuplegate://h/d", "there is no API key"),
        ("tuplegate://k@h/d?sslmode=x", "'sslmode'"),
        ("tuplegate://k@h/d?tls=maybe", "true or false"),
        ("tuplegate://k@h/d?timeout_s=x", "is a number"),
    ],
)
def test_a_bad_address_is_told(given: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUPLEGATE_API_KEY", raising=False)
    with pytest.raises(dbapi.InterfaceError, match=told):
        dbapi.connect(given)


def test_threads_share_a_connection(service: Service, table: str, connection: dbapi.Connection) -> None:
    def insert(start: int) -> None:
        for n in range(start, start + 5):
            connection.cursor().execute("insert into things values ($1, 'x')", [n])

    threads = [threading.Thread(target=insert, args=[start]) for start in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    connection.commit()
    assert len(names(service)) == 15


def test_the_same_with_async_and_await(service: Service, table: str) -> None:
    async def run() -> list[tuple[Any, ...]]:
        async with await dbapi.connect_async(address(service)) as connection, connection.cursor() as cursor:
            await cursor.execute("insert into things values ($1, $2)", [1, "one"])
            await connection.commit()
            await cursor.execute("insert into things values ($1, $2)", [2, "two"])
            await connection.rollback()
            await connection.cursor().executemany("insert into things values ($1, 'x')", [(3,), (4,)])
            async with connection.cursor(stream=True) as streamed:
                await streamed.execute("select id, name from things order by id")
                return [row async for row in streamed]

    assert asyncio.run(run()) == [(1, "one"), (3, "x"), (4, "x")]
    assert names(service) == ["one", "x", "x"]


def test_a_cancelled_statement_leaves_the_transaction_failed(service: Service) -> None:
    async def run() -> None:
        async with await dbapi.connect_async(address(service)) as connection:
            cursor = connection.cursor()
            await cursor.execute("select 1")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(cursor.execute("select pg_sleep(20)"), 0.2)
            with pytest.raises(dbapi.InternalError):
                await cursor.execute("select 1")
            await connection.rollback()
            await cursor.execute("select 2")
            assert await cursor.fetchall() == [(2,)]

    asyncio.run(run())
