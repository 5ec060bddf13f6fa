"""Fills the port with a cluster of CockroachDB. The modules and folders beside it each hold one part."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from functools import partial
from typing import Final

from tuplegate.background import Work, keep, within
from tuplegate.engine import port
from tuplegate.engine.cockroach.cluster.connector import SOON_S, Connector, ServiceSession
from tuplegate.engine.cockroach.cluster.locks import Locks
from tuplegate.engine.cockroach.cluster.probes import find_functions, find_version
from tuplegate.engine.cockroach.cluster.settings import EngineSettings
from tuplegate.engine.cockroach.pools.pools import Pools
from tuplegate.engine.cockroach.query.execute import Execution
from tuplegate.engine.cockroach.query.session import SessionRun
from tuplegate.engine.cockroach.query.stream import Stream, open_stream
from tuplegate.engine.cockroach.query.stream_run import StreamRun
from tuplegate.engine.cockroach.snapshots import POSITION, SnapshotReads
from tuplegate.engine.cockroach.tenancy.databases import CockroachDatabases
from tuplegate.engine.cockroach.tenancy.inspect import find_tables
from tuplegate.engine.cockroach.tenancy.scratch import make_scratch
from tuplegate.engine.cockroach.tenancy.sizes import SizeWatch
from tuplegate.engine.cockroach.transaction.ledger import Ledger
from tuplegate.engine.cockroach.transaction.open_transaction import OpenTransaction
from tuplegate.engine.cockroach.transaction.transaction import TransactionRun
from tuplegate.engine.libpq.pools.measures import Measures, collect_counts
from tuplegate.engine.libpq.values.types import BUILT_IN_TYPES_SQL, read_types
from tuplegate.engine.run.attempts import Attempts, OpenGate
from tuplegate.engine.run.run import Running, end_late
from tuplegate.engine.run.watched import begin_stream, open_session

_HEALTH_TIMEOUT_S: Final = 2.0
_EXPIRE_EVERY_S: Final = 3600.0


@asynccontextmanager
async def open_cockroach(
    settings: EngineSettings, connector: Connector, databases: CockroachDatabases
) -> AsyncIterator["CockroachEngine"]:
    """Probe the cluster, build the adapter, and run it until the block is left."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(ServiceSession(connector, answer_s=SOON_S))
        version = await find_version(session)
        types = read_types(await session.fetch(BUILT_IN_TYPES_SQL))
        pools = Pools(settings, connector.nodes, types, await find_functions(session))
        engine = CockroachEngine(settings, connector, session, version, pools, databases)
        stack.push_async_callback(engine.close)
        engine.start(stack)
        yield engine


# size: the attributes are the parts of the adapter; each fills some methods of the port.
class CockroachEngine:
    """Fills the port with a cluster that was probed. `open_cockroach` makes one and closes it."""

    def __init__(
        self,
        settings: EngineSettings,
        connector: Connector,
        session: ServiceSession,
        version: str,
        pools: Pools,
        databases: CockroachDatabases,
    ) -> None:
        self._settings = settings
        self._connector = connector
        self._session = session
        self._version = version
        self._time = asyncio.get_running_loop().time
        self._pools = pools
        self._locks = Locks(session)
        ledger = self._ledger = Ledger(connector, self._locks, settings.secret)
        self._sizes = SizeWatch(databases.sizes, self._pools.state_of)
        self._running = Running()
        self._attempts = Attempts(self._running, OpenGate(), settings.attempts_max)
        self._held_max = max(1, settings.connections_max // 2)
        self._queries = Measures("query")
        self._transactions = Measures("transaction")
        self._streams = Measures("stream")
        self.snapshots = SnapshotReads(self)
        self.weaknesses = settings.weaknesses
        self.tells_positions = False
        # No method stands between where a part fills one of the port's.
        self.begin_id, self.find_id, self.find_kept = ledger.begin_id, ledger.find_id, ledger.find_kept
        self.let_go, self.hold_answer = pools.let_go, pools.stocks.hold_answer
        self.bound_size, self.hold = self._sizes.bound, self._locks.hold
        self.stop_running = self._running.stop

    def start(self, stack: AsyncExitStack) -> None:
        """Start all background tasks; `stack` ends them."""
        watches: dict[str, Work] = {
            "pools": self._pools.watch,
            "deadlines": partial(end_late, self._running),
            "nodes": self._connector.watch_nodes,
            "locks": self._locks.renew,
            "sizes": self._sizes.watch,
        }
        if self._settings.worker == 0:
            watches["records"] = self._expire
        for name, watch in watches.items():
            stack.callback(keep(name, watch).cancel)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRE_EVERY_S)
            for database in self._pools.databases:
                with suppress(port.EngineFailure):
                    await self._ledger.expire(database)

    async def close(self) -> None:
        self._ledger.close()
        await self._pools.close()

    # -- the port -----------------------------------------------------------------------------------------------

    async def position(self) -> bytes:
        return POSITION

    async def query(self, target: port.Target, statement: port.Statement, bounds: port.Bounds) -> port.Result:
        now = self._time()
        run = Execution(self._pools.find_pool(target), target, statement, bounds, now + bounds.timeout_ms / 1000)
        return await self._attempts.carry_out(run, self._queries, now)

    async def transaction(
        self,
        target: port.Target,
        statements: list[port.Statement],
        bounds: port.Bounds,
        *,
        read_only: bool = False,
        promise: port.Promise | None = None,
    ) -> port.TransactionResult:
        now, pool = self._time(), self._pools.find_pool(target)
        deadline = now + bounds.timeout_ms / 1000
        run = TransactionRun(
            pool, target, statements, bounds, deadline, self._ledger, read_only=read_only, promise=promise
        )
        return await self._attempts.carry_out(run, self._transactions, now)

    async def begin(self, target: port.Target, id: str, timeout_ms: int, *, read_only: bool) -> port.OpenTransaction:
        pool, held = self._pools.find_pool(target), sum(pool.held for pool in self._pools.all())
        if held >= self._held_max:
            raise port.EngineBusy(f"{held} transactions are open in this worker already")
        member = await self._attempts.take(pool, self._time() + timeout_ms / 1000)
        return OpenTransaction(pool, target, member, self._ledger, self._running, id, read_only=read_only)

    async def abort_id(self, database: str, id: str, *, even_if_full: bool = False) -> port.Outcome:
        return await self._ledger.abort_id(database, id)

    def pause(self, databases: frozenset[str]) -> None:
        self._running.abort_open(databases)
        self._pools.pause(databases)

    def hold_in(self, database: str, lock: port.Lock, key: str = "") -> AbstractAsyncContextManager[bool]:
        return self._locks.hold(lock.name_in(database, key))

    async def outcome(self, target: port.Target, number: int, mark: str = "", history: int = 0) -> port.Outcome | None:
        return await self._ledger.find(target.database, number)

    async def outcome_of_lost(self, target: port.Target, ticket: port.Ticket, mark: str = "") -> port.Outcome:
        return await self._ledger.abort(target.database, ticket.number)

    @asynccontextmanager
    async def stream(
        self, target: port.Target, statement: port.Statement, bounds: port.Bounds
    ) -> AsyncIterator[Stream]:
        run = StreamRun(self._pools.find_pool(target), target, statement, bounds)
        async with begin_stream(self._attempts, run, self._streams), open_stream(run) as stream:
            yield stream

    async def health(self) -> port.EngineHealth:
        state = "ok"
        try:
            await within(_HEALTH_TIMEOUT_S, self._session.fetch("SELECT 1"))
        except TimeoutError:
            state = f"no answer within {_HEALTH_TIMEOUT_S:g} s"
        except port.EngineFailure:
            state = "it accepts no connection"
        warnings = self._connector.nodes.describe()
        return port.EngineHealth("cockroachdb", self._version, {"engine": state}, warnings, replicated=True)

    async def tables(self, target: port.Target, bounds: port.Bounds) -> port.Tables:
        async with open_session(SessionRun, self._running, self._pools.find_pool(target), target, bounds) as session:
            return await find_tables(session, bounds.bytes_max)

    def session(self, target: port.Target, timeout_ms: int) -> AbstractAsyncContextManager[port.EngineSession]:
        bounds = port.Bounds(timeout_ms, None, 0)
        return open_session(SessionRun, self._running, self._pools.find_pool(target), target, bounds)

    def wire(
        self, target: port.Target, settings: dict[str, str], application: str, bounds: port.Bounds
    ) -> AbstractAsyncContextManager[port.OpenedWire]:
        raise port.NotSupported(
            "this engine cannot be spoken to in its own protocol through the service: use POST /v1/query and POST"
            " /v1/transaction, or the drivers that do"
        )

    def scratch(self, database: str) -> AbstractAsyncContextManager[str]:
        return make_scratch(self._connector, database)

    def dump(
        self, database: str, timeout_s: float, organization: str | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        raise port.NotSupported(
            "this engine has no dumps: BACKUP of the cluster's owner saves databases, `tuplegate database send` copies"
            " one to another service, `tuplegate export` the rows of a table"
        )

    async def durability(self, target: port.Target) -> port.Durability:
        """Say that a commit is on the disks of most replicas of its rows before it is acknowledged."""
        return port.Durability(durable=True, replicated=True, settings={})

    def serializable_headroom(self) -> port.Headroom:
        return port.Headroom(0, None, guarded=True)

    def measure(self) -> port.Measured:
        kinds = (self._queries, self._transactions, self._streams)
        return collect_counts(kinds, {}, self._pools.all(), self._settings.connections_max)
