"""On CockroachDB a SELECT may be repeated only if it cannot write, and where functions can, only the engine knows."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator

import pytest

from tests.inside import engine_of, owner, tenant_of
from tests.service import Service, Sql
from tuplegate.engine import port
from tuplegate.protocol.statements import first_keyword

BOUNDS = port.Bounds(30_000, None, 2**20)
SHAPE = port.Shape("arrays")


@pytest.fixture(autouse=True)
def cluster(service: Service) -> None:
    with service.client() as client:
        if client.get("/health").json()["engine"]["kind"] != "cockroachdb":
            pytest.skip("make test ENGINE= names no cluster of CockroachDB")


@pytest.fixture
def numbered(service: Service) -> Iterator[None]:
    """A function that writes, although it is called by SELECT: `numbered.take()` takes a number from a sequence. The
    service lets no tenant make one."""
    with owner(service) as connection:
        for statement in (
            "drop schema if exists numbered cascade",
            "create schema numbered",
            "grant usage on schema numbered to public",
            "create sequence numbered.s",
            "grant all on sequence numbered.s to public",
            "create function numbered.take() returns int8 language sql volatile as $$ select nextval('numbered.s') $$",
        ):
            connection.execute(statement.encode())
        yield
        connection.execute(b"drop schema numbered cascade")


def run(service: Service, work: Callable[[port.OpenEngine, port.Target], Awaitable[None]]) -> None:
    async def open_and_run() -> None:
        async with engine_of(service) as engine:
            await work(engine, port.Target(tenant_of(service), port.Access.WRITE))

    asyncio.run(open_and_run())


def statement(sql: str) -> port.Statement:
    return port.Statement(sql, first_keyword(sql)[0], shape=SHAPE)


async def read(engine: port.OpenEngine, target: port.Target, sql: str) -> list[list[object]]:
    result = await engine.query(target, statement(sql), BOUNDS)
    return list(json.loads(result.rows))


@pytest.fixture
def functions_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine says that it has functions that write."""

    async def find(_: object) -> bool:
        return True

    monkeypatch.setattr("tuplegate.engine.cockroach.cluster.probes.find_functions_write", find)


@pytest.mark.usefixtures("functions_write", "numbered")
def test_a_select_reads_in_a_block_that_cannot_write(service: Service) -> None:
    """So it may be repeated. One that the engine refuses there runs in a block that is committed."""

    async def work(engine: port.OpenEngine, target: port.Target) -> None:
        assert await read(engine, target, "select current_setting('transaction_read_only')") == [["on"]]
        assert await read(engine, target, "select numbered.take()") == [[1]]
        assert await read(engine, target, "select last_value from numbered.s") == [[1]]
        reader = port.Target(target.database, port.Access.READ)
        with pytest.raises(port.StatementFailed) as refused:
            await read(engine, reader, "select numbered.take()")
        assert refused.value.sqlstate in ("25006", "42501")

    run(service, work)


@pytest.mark.usefixtures("functions_write")
def test_a_transaction_of_selects_tells_its_outcome(service: Service) -> None:
    """It may have written, unless it was a read-only one."""

    async def work(engine: port.OpenEngine, target: port.Target) -> None:
        for read_only, way in ((False, port.Commit.ENGINE), (True, port.Commit.READ_ONLY)):
            done = await engine.transaction(target, [statement("select 1")], BOUNDS, read_only=read_only, promise=None)
            assert done.commit is way
            assert (done.number is None) is read_only

    run(service, work)


def test_the_engine_is_asked_whether_functions_write(service: Service, sql: Sql) -> None:
    """By what it says of such a function: a SELECT runs in a block exactly where there can be one."""
    sql("drop table if exists written cascade")
    sql("create table written (a int)")
    made = sql.answer(
        "create function writes() returns int language sql as $$ insert into written values (1) returning a $$"
    ).json()["success"]

    async def work(engine: port.OpenEngine, target: port.Target) -> None:
        told = await read(engine, target, "select current_setting('transaction_read_only')")
        assert told == [["on" if made else "off"]]

    run(service, work)
    sql("drop table written cascade")
