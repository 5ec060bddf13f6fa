"""How the adapter for CockroachDB runs, commits and ends, on a PostgreSQL, which takes the same words for it.

No package has CockroachDB, so `.ci/run` cannot start one. What only that engine does is tried by `tests/port` and the
files of `tests/extended` that are named after it.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar, cast

import msgspec
import pytest

from tests.external import OWNER, PASSWORD, ExternalServer
from tests.waiting import eventually_async
from tuplegate.background import keep
from tuplegate.engine import port
from tuplegate.engine.cockroach.cluster import connector as connecting
from tuplegate.engine.cockroach.cluster.connector import Connector, ServiceSession
from tuplegate.engine.cockroach.cluster.probes import Functions
from tuplegate.engine.cockroach.cluster.settings import EngineSettings
from tuplegate.engine.cockroach.engine import CockroachEngine
from tuplegate.engine.cockroach.pools.pools import Pools
from tuplegate.engine.cockroach.tenancy.databases import CockroachDatabases
from tuplegate.engine.cockroach.transaction.records import SCHEMA
from tuplegate.engine.libpq.pools.definitions import Versions
from tuplegate.engine.libpq.values.types import BUILT_IN_TYPES_SQL, read_types
from tuplegate.engine.run.run import end_late
from tuplegate.protocol.statements import first_keyword

_F = TypeVar("_F", bound=port.EngineFailure)
TARGET = port.Target("postgres", port.Access.WRITE)
BOUNDS = port.Bounds(10_000, 1000, 10**6)
SHORT = port.Bounds(200, 1000, 10**6)


class _NoDatabases:
    async def sizes(self, names: Sequence[str]) -> dict[str, int]:
        return {}


@pytest.fixture(scope="module")
def conninfo() -> Iterator[str]:
    server = ExternalServer()
    password = PASSWORD.replace("\\", "\\\\").replace("'", "\\'")
    yield f"host=127.0.0.1 port={server.port} user={OWNER} password='{password}' dbname=postgres"
    server.stop()


@asynccontextmanager
async def _open(conninfo: str) -> AsyncIterator[CockroachEngine]:
    connector = Connector(conninfo)
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(ServiceSession(connector, answer_s=10))
        for statement in SCHEMA:
            await session.fetch(statement)
        await session.fetch("DROP TABLE IF EXISTS t")
        await session.fetch("CREATE TABLE t (a int PRIMARY KEY, b text)")
        types = read_types(await session.fetch(BUILT_IN_TYPES_SQL))
        settings = EngineSettings(conninfo, b"secret", 0, Versions(1, is_alone=True), 10, 10, 10, 100, 300, 5)
        pools = Pools(settings, connector.nodes, types, Functions(write=False, changing=frozenset({"set_config"})))
        databases = cast(CockroachDatabases, _NoDatabases())
        engine = CockroachEngine(settings, connector, session, "", pools, databases)
        stack.push_async_callback(engine.close)
        stack.callback(keep("deadlines", lambda: end_late(engine._running)).cancel)
        yield engine
        assert not engine._running.runs
        assert all(pool.held == 0 for pool in pools.all())


Test = Callable[[CockroachEngine], Awaitable[None]]


@pytest.fixture
def run(conninfo: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[Test], None]:
    """Runs a test on an engine of its own."""
    for unknown in ("default_int_size", "serial_normalization"):
        monkeypatch.delitem(connecting.SESSION_SETTINGS, unknown)
    monkeypatch.setattr(Pools, "_conninfo", lambda _self, _target: conninfo)

    async def on_engine(test: Test) -> None:
        async with _open(conninfo) as engine:
            await test(engine)

    return lambda test: asyncio.run(asyncio.wait_for(on_engine(test), 60))


def statement(sql: str, *params: object) -> port.Statement:
    return port.Statement(sql, first_keyword(sql)[0], [msgspec.Raw(json.dumps(p).encode()) for p in params] or None)


async def query(engine: CockroachEngine, sql: str, *params: object, bounds: port.Bounds = BOUNDS) -> port.Result:
    return await engine.query(TARGET, statement(sql, *params), bounds)


async def sleeps(engine: CockroachEngine) -> bool:
    """Whether a statement sleeps just now; the one that asks does not."""
    found = await query(engine, "select count(*) as n from pg_stat_activity where wait_event = $1", "PgSleep")
    return found.rows != b'[{"n":0}]'


async def transact(engine: CockroachEngine, *texts: str, **more: Any) -> port.TransactionResult:
    return await engine.transaction(TARGET, [statement(sql) for sql in texts], BOUNDS, **more)


async def fails(kind: type[_F], work: Awaitable[object]) -> _F:
    with pytest.raises(kind) as failed:
        await work
    return failed.value


def test_a_statement_runs_and_fails_by_itself(run: Callable[[Test], None]) -> None:
    async def test(engine: CockroachEngine) -> None:
        assert (await query(engine, "insert into t values ($1, $2)", 1, "x")).affected_rows == 1
        result = await query(engine, "select * from t where a = $1", 1)
        assert (result.rows, result.attempts) == (b'[{"a":1,"b":"x"}]', 1)
        failure = await fails(port.StatementFailed, query(engine, "insert into t values (1)"))
        assert failure.sqlstate == "23505"
        await fails(port.ParseFailed, query(engine, "selec 1"))
        await fails(port.EmptyStatement, query(engine, ""))
        await fails(port.TimedOut, query(engine, "select pg_sleep(5)", bounds=SHORT))
        running = asyncio.ensure_future(query(engine, "select pg_sleep(5)"))
        await eventually_async(lambda: sleeps(engine))
        engine.stop_running()
        await fails(port.Stopped, running)

    run(test)


def test_a_transaction_is_whole_and_its_failures_name_their_statement(run: Callable[[Test], None]) -> None:
    async def test(engine: CockroachEngine) -> None:
        done = await transact(engine, "insert into t values (1, 'x')", "select count(*) as n from t")
        assert done.results[1].rows == b'[{"n":1}]'
        assert done.number is not None
        assert await engine.outcome(TARGET, done.number) is port.Outcome.COMMITTED
        for second in ("insert into t values (1)", "select 1/0", ""):
            kind = port.EmptyStatement if not second else port.StatementFailed
            failure = await fails(kind, transact(engine, "insert into t values (2)", second))
            assert failure.statement == 1
        assert (await transact(engine, "select count(*) as n from t", read_only=True)).number is None
        await fails(port.OutcomeUnknown, transact(engine, "insert into t values (3)", "commit", "select 1"))

    run(test)


def test_conflicts_are_repeated_until_all_are_through(run: Callable[[Test], None]) -> None:
    async def test(engine: CockroachEngine) -> None:
        await query(engine, "insert into t values (0, '0')")
        add = "update t set b = (b::int + 1)::text where a = 0"
        await asyncio.gather(*(transact(engine, "select b from t", add) for _ in range(10)))
        await asyncio.gather(*(query(engine, add) for _ in range(10)))
        assert (await query(engine, "select b from t")).rows == b'[{"b":"20"}]'

    run(test)


def test_what_was_promised_is_recorded_with_a_transaction(run: Callable[[Test], None]) -> None:
    async def test(engine: CockroachEngine) -> None:
        promise = port.Promise("promised", port.Keep("/route", "key", "request", lambda _done: b"answer"))
        await engine.begin_id("postgres", "promised")
        await transact(engine, "insert into t values (1)", promise=promise)
        assert await engine.find_id("postgres", "promised") is port.Outcome.COMMITTED
        assert (await engine.find_kept("postgres", "/route", "key")).found == port.KeptAnswer("request", b"answer")
        again = transact(engine, "insert into t values (2)", promise=port.Promise("promised"))
        await fails(port.Superseded, again)
        assert (await query(engine, "select a from t")).rows == b'[{"a":1}]'

    run(test)


def test_an_open_transaction_takes_statements_of_all_kinds(run: Callable[[Test], None]) -> None:
    async def test(engine: CockroachEngine) -> None:
        opened = await engine.begin(TARGET, "open", 5000, read_only=False)
        overs: list[object] = []
        opened.on_over = lambda: overs.append(opened.over)
        assert (await opened.query(statement("insert into t values ($1, $2)", 1, "x"), BOUNDS)).affected_rows == 1
        lists = [[msgspec.Raw(b"2")], [msgspec.Raw(b"3")]]
        each = await opened.query(statement("insert into t values ($1) returning a"), BOUNDS, lists)
        assert each.rows == b'[{"a":2},{"a":3}]'
        async with opened.stream(statement("select generate_series(1, 500) as g"), BOUNDS) as stream:
            assert sum([block.count(b"\n") async for block in stream.lines()]) == 500
        done = await opened.commit(statement("select count(*) as n from t"), BOUNDS)
        assert (done.results[0].rows, done.commit) == (b'[{"n":3}]', port.Commit.ENGINE)
        assert overs == [port.Outcome.COMMITTED]
        await engine.begin_id("postgres", "open")
        assert await engine.find_id("postgres", "open") is port.Outcome.COMMITTED
        await fails(port.TransactionOver, opened.query(statement("select 1"), BOUNDS))

    run(test)


def test_an_open_transaction_fails_goes_back_and_ends(run: Callable[[Test], None]) -> None:
    async def test(engine: CockroachEngine) -> None:
        opened = await engine.begin(TARGET, "back", 5000, read_only=False)
        await opened.query(statement("insert into t values (1)"), BOUNDS)
        await opened.query(statement("savepoint a"), BOUNDS)
        await fails(port.StatementFailed, opened.query(statement("insert into t values (1)"), BOUNDS))
        assert opened.state is port.OpenState.FAILED
        await opened.query(statement("rollback to a"), BOUNDS)
        await fails(port.TimedOut, opened.query(statement("select pg_sleep(5)"), SHORT))
        await opened.query(statement("rollback to a"), BOUNDS)
        async with opened.stream(statement("select generate_series(1, 1000000) as g"), BOUNDS) as stream:
            await anext(stream.lines())
        assert opened.over is None
        await fails(port.StatementFailed, opened.commit(None, BOUNDS))
        assert opened.over is port.EndReason.ROLLBACK

    run(test)


def test_an_open_transaction_is_ended_by_others(run: Callable[[Test], None]) -> None:
    async def test(engine: CockroachEngine) -> None:
        busy = await engine.begin(TARGET, "busy", 5000, read_only=False)
        running = asyncio.ensure_future(busy.query(statement("select pg_sleep(5)"), BOUNDS))
        await eventually_async(lambda: sleeps(engine))
        busy.abort(port.EndReason.REVOKED)
        await fails(port.StatementFailed, running)
        assert busy.over is port.EndReason.REVOKED
        settled = await engine.begin(TARGET, "settled", 5000, read_only=False)
        await settled.query(statement("insert into t values (1)"), BOUNDS)
        assert await engine.abort_id("postgres", "settled") is port.Outcome.ABORTED
        await fails(port.TransactionOver, settled.commit(None, BOUNDS))
        lost = await engine.begin(TARGET, "lost", 5000, read_only=False)
        await lost.query(statement("select 1"), BOUNDS)
        ended = asyncio.Event()
        lost.on_over = ended.set
        await query(
            engine, "select pg_terminate_backend(pid) from pg_stat_activity where state = 'idle in transaction'"
        )
        await ended.wait()
        assert lost.over is port.EndReason.LOST

    run(test)


def test_a_stream_is_committed_behind_its_rows(run: Callable[[Test], None]) -> None:
    async def test(engine: CockroachEngine) -> None:
        writing = statement("insert into t select g from generate_series(1, 10) g returning a")
        async with engine.stream(TARGET, writing, BOUNDS) as stream:
            rows = [block async for block in stream.lines()]
        assert b"".join(rows).count(b"\n") == stream.affected_rows == 10
        assert (await query(engine, "select count(*) as n from t")).rows == b'[{"n":10}]'
        with pytest.raises(port.TimedOut):
            async with engine.stream(TARGET, statement("select pg_sleep(5)"), SHORT) as stream:
                assert not [block async for block in stream.lines()]

    run(test)
