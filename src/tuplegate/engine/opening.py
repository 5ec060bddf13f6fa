"""Chooses the adapter for an engine and builds it from the settings: only this module and the adapters name one.

The supervisor gets an engine's owner from `find_owner`, prepares the engine through it, and calls `share_engine` before
it forks. A worker reaches its engines with `reach_engines`, and opens them. The server's answer decides the adapter.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from tuplegate.background import keep
from tuplegate.engine import port
from tuplegate.engine.bundled.binaries import DumpTool
from tuplegate.engine.bundled.disk import Disk
from tuplegate.engine.bundled.sandbox.control_groups import ControlGroups
from tuplegate.engine.cells.databases import CellDatabases
from tuplegate.engine.cells.databases import Installation as CellInstallation
from tuplegate.engine.cells.files import BURST_BYTES, FREE_BYTES, FilesWatch
from tuplegate.engine.cells.line import CellLine
from tuplegate.engine.cells.messages import KILLED
from tuplegate.engine.cells.server import CellSettings
from tuplegate.engine.cells.template import SharedCells
from tuplegate.engine.cockroach.cluster.connector import SOON_S, Connector, ServiceSession
from tuplegate.engine.cockroach.cluster.settings import EngineSettings as CockroachSettings
from tuplegate.engine.cockroach.engine import open_cockroach
from tuplegate.engine.cockroach.preparation import installing as cockroach
from tuplegate.engine.cockroach.tenancy.databases import CockroachDatabases
from tuplegate.engine.libpq.connections.logins import copy_login, has_password, read_url, strip_login
from tuplegate.engine.libpq.connections.unread_rows import Stocks
from tuplegate.engine.libpq.pools.crowd import Crowd
from tuplegate.engine.postgres.engine import PostgresEngine, open_cell, open_postgres
from tuplegate.engine.postgres.preparation.foundation import check_prepared
from tuplegate.engine.postgres.preparation.installing import PostgresLogin, PostgresOwner
from tuplegate.engine.postgres.preparation.weaknesses import SHARED
from tuplegate.engine.postgres.replication.timelines import Timelines
from tuplegate.engine.postgres.safety.tally import Tally
from tuplegate.engine.postgres.service.admin import METADATA_DATABASE, AdminConnector, AdminSession, make_primary
from tuplegate.engine.postgres.service.probes import probe
from tuplegate.engine.postgres.service.settings import EngineSettings
from tuplegate.engine.postgres.tenancy.databases import PostgresDatabases
from tuplegate.engine.postgres.transfer.following import Limits
from tuplegate.settings import Settings

_COUNT_EVERY_S = 5.0
_RESERVED_CONNECTIONS = 6
_RESERVED_PER_WORKER = 4
_RESERVED_TO_FOLLOW = 4
"""Connections to the engine for the service's own statements and its background work."""
WEAKNESSES_BESIDE = SHARED
"""The weaknesses of each engine beside the first, which is a PostgreSQL that a superuser has prepared."""
_SHARE_MIN = 2
"""The connections for tenants that a worker has at least."""


def share_connections(connections: int, workers: int, *, follows: bool) -> int:
    """Return the number of connections that each worker may open for tenants. `follows`: the worker watches which
    server is the primary."""
    own = _RESERVED_PER_WORKER + (_RESERVED_TO_FOLLOW if follows else 0)
    return max(_SHARE_MIN, (connections - _RESERVED_CONNECTIONS) // workers - own)


# -- addresses --------------------------------------------------------------------------------------------------


def read_address(url: str) -> str:
    """Return the address of an engine, for its driver, from a URL. Raises BadUrl."""
    return read_url(url)


def read_replica_address(url: str) -> str:
    """Return the address of a standby, without a login: workers use the engine's login there. Raises BadUrl."""
    return strip_login(read_url(url))


def url_has_password(url: str) -> bool:
    """Return whether the URL shows a password. Raises BadUrl."""
    return has_password(read_url(url))


# -- the supervisor's side --------------------------------------------------------------------------------------


async def find_owner(address: str, settings: Settings) -> port.EngineOwner:
    """Return the owner of the engine at the address: the server's answer decides its kind."""
    return await cockroach.find_cluster(address) or owner_of(address, settings)


def owner_of(address: str, settings: Settings) -> port.EngineOwner:
    """Return the owner of an engine that is a PostgreSQL."""
    return PostgresOwner(address, temp_mb=settings.engine_temp_mb)


@dataclass(frozen=True, slots=True)
class SharedEngine:
    """The parts of an engine that all workers share; the supervisor makes them before it forks."""

    name: str
    login: PostgresLogin | cockroach.CockroachLogin
    is_bundled: bool
    dump_tools: tuple[DumpTool, ...]
    tally: Tally
    timelines: Timelines
    replicas: tuple[str, ...]
    weaknesses: tuple[port.Weakness, ...]

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors that a worker keeps open for the engine."""
        return () if self.tally.lock is None else (self.tally.lock,)


def share_engine(
    name: str,
    login: port.ServiceLogin,
    dump_tools: tuple[DumpTool, ...],
    settings: Settings,
    *,
    is_bundled: bool = False,
    replicas: tuple[str, ...] = (),
    weaknesses: tuple[port.Weakness, ...] = (),
) -> SharedEngine:
    """Make the parts that the workers share. `replicas` are addresses of standbys."""
    assert isinstance(login, PostgresLogin | cockroach.CockroachLogin), "there are two adapters"
    tally = Tally(settings.workers, shared=not is_bundled)
    return SharedEngine(name, login, is_bundled, dump_tools, tally, Timelines(), replicas, weaknesses)


def read_cell_settings(
    settings: Settings, extensions: Path | None = None, groups: ControlGroups | None = None
) -> CellSettings:
    """Return the settings of cells, from the service's settings."""
    return CellSettings(
        max_connections=settings.engine_connections_max,
        shared_buffers_mb=settings.engine_shared_buffers_mb,
        process_memory_mb=settings.engine_process_memory_mb,
        temp_mb=settings.engine_temp_mb,
        memory_mb=settings.cell_memory_mb,
        groups=groups,
        extensions=extensions,
    )


# -- a worker's side --------------------------------------------------------------------------------------------


class ReachedCells:
    """The cells of the bundled engine as a worker reaches them: each is an engine of its own, which costs no task.

    `installation` is its id and its secret, `catalog` the engine that was opened for the catalog, and `end` that of the
    worker's line to the supervisor.
    """

    def __init__(
        self,
        settings: Settings,
        shared: SharedCells,
        worker: int,
        installation: tuple[str, bytes],
        catalog: port.OpenEngine,
        end: socket.socket,
    ) -> None:
        assert isinstance(catalog, PostgresEngine), "the bundled engine is one"
        line = self.line = CellLine(end, settings.cell_wake_timeout_s, settings.connection_idle_s)
        self._settings = settings
        self._shared = shared
        self._worker = worker
        self._id, secret = installation
        self._catalog = catalog
        limits = read_limits(settings)
        self._cells = CellInstallation(secret, shared.directory, shared.template, shared.tools, limits)
        self.databases = CellDatabases(self._cells, line)
        self._probed = catalog.probed  # the catalog's server has the settings of cells
        workers = settings.workers
        self._crowd = Crowd(
            share_connections(settings.engine_connections_max, workers, follows=False),
            -(-settings.connections_per_organization // workers),
        )
        self._spares: asyncio.Task[None] | None = None
        self._open: dict[str, PostgresEngine] = {}
        self._counts: dict[str, int] = {}
        self._counted_at = -inf
        slack_bytes = FREE_BYTES + BURST_BYTES + settings.engine_temp_mb * 2**20
        self._files = FilesWatch(shared.directory, line, self._find_bounds, slack_bytes)
        line.find_busy, line.let_go = self._find_busy, self._let_go

    async def __aenter__(self) -> "ReachedCells":
        await self.line.__aenter__()
        self._shared.tallies.take_over(self._worker)
        self._files.begin()
        if self._worker == 0:
            self._spares = keep("spares", self.databases.keep_spares)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._files.end()
        if self._spares is not None:
            self._spares.cancel()
        await self.line.__aexit__()

    def _find_bounds(self) -> dict[str, int]:
        return {name: bytes_max for engine in self._open.values() for name, bytes_max in engine.size_bounds.items()}

    def _kill(self, name: str) -> None:
        self.line.kill(name, "a statement ignored that it was told to end")

    def _find_busy(self) -> set[str]:
        deciding = {name for name, engine in self._open.items() if engine.decides}
        return deciding | {run.target.database for run in self._catalog.watch.running.runs}

    def _let_go(self, name: str) -> bool:
        """Let nothing more begin in a cell, if nothing runs there. Return whether that is so."""
        engine = self._open.get(name)
        if engine is None:
            return True
        if engine.is_in_use:
            return False
        engine.pause(frozenset([name]))
        return True

    def find_failures(self) -> dict[str, str]:
        """Return the reasons why cells do not start, by their names. Removed cells are left out, and those that were
        killed for what they did: a tenant must not make the service look ill."""
        failures, directory = self.line.failures, self._shared.directory
        for name in [name for name in failures if not directory.locate(name).exists()]:
            del failures[name]
        return {name: reason for name, reason in failures.items() if not reason.startswith(KILLED)}

    def measure(self) -> port.Measured:
        """Return the times that wakes took, and the number of cells in each state. One worker counts them for all."""
        gauges: dict[str, float] = {}
        if self._worker == 0:
            now = asyncio.get_running_loop().time()
            if now - self._counted_at > _COUNT_EVERY_S:
                self._counted_at = now
                self._counts = self.databases.count()
            gauges = {f"cells {state}": count for state, count in self._counts.items()}
        return port.Measured({"wake": list(self.line.wakes)}, {}, gauges)

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[port.OpenEngine]:
        """Open the engine of a cell that is awake."""
        await self.databases.settle(name)
        async with open_cell(self._make_settings(name), self._probed, self._catalog.watch) as engine:
            self._open[name] = engine
            try:
                yield engine
            finally:
                del self._open[name]

    def _make_settings(self, name: str) -> EngineSettings:
        settings, workers = self._settings, self._settings.workers
        conninfo = self._cells.login(name)
        return EngineSettings(
            conninfo=conninfo,
            installation=self._id,
            secret=self._cells.secret_of(name),
            connections_max=share_connections(settings.engine_connections_max, workers, follows=False),
            connections_per_target_max=-(-settings.connections_per_database // workers),
            connections_per_owner_max=-(-settings.connections_per_organization // workers),
            queue_max=settings.queue_max,
            idle_close_s=settings.connection_idle_s,
            attempts_max=settings.attempts_max,
            primary=make_primary(conninfo),
            tally=self._shared.tallies.find(name),
            worker=self._worker,
            dump_tools=self._cells.tools_of(name),
            dumps_max=settings.dumps_max,
            hold_place=self._catalog.hold,
            transaction_life_s=settings.open_life_ms_max / 1000,
            kill=self._kill,
            stocks=self._catalog.stocks,
            crowd=self._crowd,
        )


def read_limits(settings: Settings) -> Limits:
    """Return the bounds of moves between engines."""
    return Limits(float(settings.dump_timeout_s), float(settings.move_stall_s), settings.move_log_mb_max * 2**20)


def reach_engines(settings: Settings, engines: Sequence[SharedEngine], worker: int) -> dict[str, port.ReachedEngine]:
    """Return the engines of a worker by their names; none is connected to yet. `worker` is its number, from 0."""
    stocks = Stocks(settings.http_memory_mb * 2**20)
    if len(engines) > 1:
        # A database may come from another engine, where positions mean something else: see engine/routing/engines.py.
        engines = [replace(engine, replicas=()) for engine in engines]
    return {engine.name: _reach(settings, engine, worker, stocks) for engine in engines}


def _reach(settings: Settings, shared: SharedEngine, worker: int, stocks: Stocks) -> port.ReachedEngine:
    if isinstance(shared.login, PostgresLogin):
        return _ReachedPostgres(settings, shared, shared.login, worker, stocks)
    return _ReachedCockroach(settings, shared, shared.login, worker, stocks)


class _ReachedCockroach:
    """Fills the port's `ReachedEngine`."""

    def __init__(
        self, settings: Settings, shared: SharedEngine, login: cockroach.CockroachLogin, worker: int, stocks: Stocks
    ) -> None:
        self._settings = settings
        self._shared = shared
        self._login = login
        self._worker, self._stocks = worker, stocks
        self._connector = Connector(login.conninfo)

    @asynccontextmanager
    async def metadata(self) -> AsyncIterator[port.Metadata]:
        lookups = ServiceSession(self._connector, answer_s=SOON_S)
        async with ServiceSession(self._connector) as session, lookups:
            yield port.Metadata(session, lookups, session)

    def databases(self, secret: bytes) -> CockroachDatabases:
        return CockroachDatabases(self._connector, secret, has_passwords=self._login.has_passwords)

    @asynccontextmanager
    async def open(self, installation: str, secret: bytes) -> AsyncIterator[port.OpenEngine]:
        settings, workers = self._settings, self._settings.workers
        made = CockroachSettings(
            conninfo=self._login.conninfo,
            secret=secret,
            worker=self._worker,
            versions=self._shared.tally.versions,
            connections_max=share_connections(settings.engine_connections_max, workers, follows=False),
            connections_per_target_max=-(-settings.connections_per_database // workers),
            connections_per_owner_max=-(-settings.connections_per_organization // workers),
            queue_max=settings.queue_max,
            idle_close_s=settings.connection_idle_s,
            attempts_max=settings.attempts_max,
            stocks=self._stocks,
            weaknesses=self._shared.weaknesses,
        )
        async with open_cockroach(made, self._connector, self.databases(secret)) as engine:
            yield engine


class _ReachedPostgres:
    """Fills the port's `ReachedEngine`."""

    def __init__(
        self, settings: Settings, shared: SharedEngine, login: PostgresLogin, worker: int, stocks: Stocks
    ) -> None:
        conninfo = login.conninfo
        self._settings = settings
        self._shared = shared
        self._login = login
        self._worker, self._stocks = worker, stocks
        demands_standby = settings.durability == "replicated"
        primary = make_primary(
            conninfo, follows=not shared.is_bundled, demands_standby=demands_standby, timelines=shared.timelines
        )
        self._connector = AdminConnector(conninfo, primary=primary)

    @asynccontextmanager
    async def metadata(self) -> AsyncIterator[port.Metadata]:
        """Open the metadata database. If commits can wait for a standby, look-ups and notes get sessions that do not
        wait behind them."""
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(AdminSession(self._connector, METADATA_DATABASE))
            if not self._connector.primary.follows:
                yield port.Metadata(session, session, session)
                return
            lookups = await stack.enter_async_context(AdminSession(self._connector, METADATA_DATABASE))
            notes = await stack.enter_async_context(AdminSession(self._connector, METADATA_DATABASE, local=True))
            yield port.Metadata(session, lookups, notes)

    def databases(self, secret: bytes) -> PostgresDatabases:
        settings, shared = self._settings, self._shared
        return PostgresDatabases(
            self._connector,
            secret,
            settings.engine_temp_mb,
            self._login.walls,
            shared.dump_tools,
            read_limits(settings),
        )

    @asynccontextmanager
    async def open(self, installation: str, secret: bytes) -> AsyncIterator[port.OpenEngine]:
        connections = self._settings.engine_connections_max
        if self._shared.name != port.FIRST_ENGINE:
            async with AdminSession(self._connector, METADATA_DATABASE) as session:
                furnishing = self.databases(secret).furnishing
                await check_prepared(session, installation, self._shared.name, furnishing)
                connections = min(connections, (await probe(session)).connections_free)
        async with open_postgres(self._make_settings(installation, secret, connections)) as engine:
            yield engine

    def _make_settings(self, installation: str, secret: bytes, connections: int) -> EngineSettings:
        """Return the settings of a worker's engine, with its share of the connections."""
        settings, shared, workers = self._settings, self._shared, self._settings.workers
        conninfo, is_bundled = self._login.conninfo, shared.is_bundled
        least = settings.disk_free_mb_min * 2**20
        return EngineSettings(
            conninfo=conninfo,
            replicas=tuple(copy_login(replica, conninfo) for replica in shared.replicas),
            installation=installation,
            secret=secret,
            connections_max=share_connections(connections, workers, follows=not is_bundled),
            connections_per_target_max=-(-settings.connections_per_database // workers),
            connections_per_owner_max=-(-settings.connections_per_organization // workers),
            queue_max=settings.queue_max,
            idle_close_s=settings.connection_idle_s,
            attempts_max=settings.attempts_max,
            primary=self._connector.primary,
            tally=shared.tally,
            worker=self._worker,
            exclusive=is_bundled or settings.engine_exclusive,
            dump_tools=shared.dump_tools,
            dumps_max=settings.dumps_max,
            disk=Disk(settings.data_dir.absolute(), least) if is_bundled and least else None,
            transaction_life_s=settings.open_life_ms_max / 1000,
            stocks=self._stocks,
            weaknesses=shared.weaknesses,
        )
