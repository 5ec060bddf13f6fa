"""A worker process: the planes on one event loop. The composition root: only here do concrete classes meet."""

import asyncio
import gc
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import structlog

from tuplegate.access.quotas import find_tier, read_tiers
from tuplegate.admission.about import AboutRoutes
from tuplegate.admission.fairness import Lanes
from tuplegate.admission.identity import IdentityCache
from tuplegate.admission.metrics import Metrics
from tuplegate.admission.plane import OtherPlane, Plane, Route, RouteTable
from tuplegate.admission.pulse import Pulse
from tuplegate.admission.quota import Quotas
from tuplegate.admission.traces import Traces
from tuplegate.admission.usage import UsageBook
from tuplegate.alias.plane import Alias
from tuplegate.alias.upstream import UpstreamAddress
from tuplegate.catalog.catalog import Catalog
from tuplegate.catalog.schema import Installation, find_installation
from tuplegate.control_plane.routes import ABOUT as ABOUT_CONTROL
from tuplegate.control_plane.routes import control_routes
from tuplegate.data_plane.routes import ABOUT as ABOUT_DATA
from tuplegate.data_plane.routes import list_data_routes
from tuplegate.data_plane.stream import StreamWriter
from tuplegate.engine.binaries import DumpTool
from tuplegate.engine.disk import Disk
from tuplegate.engine.libpq.stocks import Stocks
from tuplegate.engine.port import FIRST_ENGINE, Databases, Weakness
from tuplegate.engine.postgres.engine import PostgresEngine
from tuplegate.engine.postgres.own.admin import METADATA_DATABASE, AdminConnector, AdminSession, primary_of
from tuplegate.engine.postgres.own.foundation import check_prepared
from tuplegate.engine.postgres.own.logins import same_login
from tuplegate.engine.postgres.own.probes import probe
from tuplegate.engine.postgres.own.settings import EngineSettings
from tuplegate.engine.postgres.own.vacuum_pace import keep_pace
from tuplegate.engine.postgres.replication.primary import Primary
from tuplegate.engine.postgres.safety.tally import Tally
from tuplegate.engine.postgres.tenancy.databases import PostgresDatabases
from tuplegate.engine.postgres.tenancy.walls import FULL, Walls
from tuplegate.engine.several import SeveralDatabases, SeveralEngines
from tuplegate.http.acceptor import Balance
from tuplegate.http.connection import Handler, HttpBounds
from tuplegate.http.cors import CorsPolicy
from tuplegate.http.memory import Memory
from tuplegate.http.origins import Origin
from tuplegate.http.rota import Rota
from tuplegate.http.server import HttpServer
from tuplegate.http.tls import TlsContext, TlsError, TlsFiles, client_context
from tuplegate.http.writing import TLS_HEADERS
from tuplegate.keeping import attempt, keep
from tuplegate.metrics.board import Board
from tuplegate.settings import Settings
from tuplegate.standstill import Beats
from tuplegate.tenancy.backups import BackupRules, Backups
from tuplegate.tenancy.lifecycle import Lifecycle
from tuplegate.tenancy.moves import Moves

_log = structlog.get_logger()

_UPSTREAM_IDLE_S = 20.0
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - nothing is bound to it here
"""Hosts of addresses that are bound, but that nobody else can reach a plane by."""
_RESERVED_CONNECTIONS = 6
_RESERVED_PER_WORKER = 4
_RESERVED_TO_FOLLOW = 4
"""Of the engine's: for the service's own statements, and for its background work."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where the alias leads. `own`: to the data plane that this process serves, so to the certificate that it has."""

    origin: Origin
    own: bool


@dataclass(frozen=True, slots=True)
class FurtherEngine:
    """An engine beside the first, and what workers log in with there."""

    name: str
    conninfo: str
    dump_tools: tuple[DumpTool, ...]
    tally: Tally


@dataclass(frozen=True, slots=True)
class WorkerInput:
    """What a worker gets from its supervisor: a socket for every plane that it is to serve.

    `addresses` are those of the planes as others reach them; `upstream` is where the alias leads, which may be the data
    plane of this very installation. When `life_fd` closes the supervisor is gone, and so is the engine.
    """

    settings: Settings
    conninfo: str
    replicas: tuple[str, ...]
    dump_tools: tuple[DumpTool, ...]
    sockets: dict[str, socket.socket]
    addresses: dict[str, Origin]
    upstream: Upstream | None
    tls: TlsFiles | None
    cors_origins: frozenset[str]
    life_fd: int
    ready: Callable[[], None]
    tally: Tally
    number: int
    """Of this worker among its fellows, from 0."""
    balances: dict[str, Balance]
    """Of the planes' sockets."""
    alone: bool
    """Nobody served on this engine before this worker and its fellows were started."""
    board: Board
    """Where all workers post what they count."""
    beats: Beats
    """Where the supervisor sees that the loop of this one turns."""
    walls: Walls
    """How databases are furnished."""
    weaknesses: tuple[Weakness, ...]
    """What the engine leaves open to tenants."""
    engines: tuple[FurtherEngine, ...] = ()


def run(given: WorkerInput) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(_main(given))
    else:
        uvloop.run(_main(given))


async def _main(given: WorkerInput) -> None:
    settings = given.settings
    stop = _stop_event(given.life_fd)
    given.beats.start(given.number)
    primary = primary_of(given.conninfo, follows=bool(settings.engine), demands=settings.durability == "replicated")
    connector = AdminConnector(given.conninfo, primary=primary)
    session = AdminSession(connector, METADATA_DATABASE)
    # Where commits can wait for a standby, neither who asks nor what is counted waits behind them.
    lookups = AdminSession(connector, METADATA_DATABASE) if primary.follows else session
    notes = AdminSession(connector, METADATA_DATABASE, local=True) if primary.follows else session
    installation = await find_installation(session)
    assert installation is not None, "the supervisor has made it"
    catalog = Catalog(session, lookups, notes)
    stocks = Stocks(settings.http_memory_mb * 2**20)
    first = PostgresEngine(_engine_settings(given, installation, primary, stocks))
    connectors = {further.name: _connector(given, further) for further in given.engines}
    tiers = read_tiers(settings.tiers)
    async with (
        session,
        lookups,
        notes,
        first,
        _several(given, installation, catalog, first, connectors, stocks) as several,
    ):
        # With one engine it serves by itself: nothing stands between.
        engine: PostgresEngine | SeveralEngines = several or first
        quotas = Quotas(catalog.permits, tiers)
        usage = UsageBook(catalog.journal, catalog.credentials)
        lanes = Lanes(
            max(1, settings.running_max // given.tally.workers),
            max(1, 4 * (os.cpu_count() or 1) // given.tally.workers),
            settings.queue_max,
            settings.statement_timeout_ms / 1000,
        )

        def found_database(database: str, on: str, tier: str) -> None:
            if several is not None:
                several.learn(database, on)
            engine.bound_size(database, find_tier(tiers, tier).bytes_max)

        identities = IdentityCache(catalog.credentials, quotas, lanes, usage, found_database)
        pulse = Pulse(catalog, identities, engine, several.follow if several is not None else None)
        databases = _databases(given, installation, catalog, connector, connectors)
        lifecycle = Lifecycle(catalog, databases, engine, several.reachable if several is not None else None)
        moves = Moves(catalog, databases, engine, lifecycle)
        traces = Traces(settings.traces_endpoint) if settings.traces_endpoint else None
        metrics = Metrics(given.board, given.number, engine, lanes, usage)
        metrics.beats = given.beats
        streams = metrics.streams = StreamWriter(engine, settings.heartbeat_s)
        known = {name: str(origin) for name, origin in given.addresses.items() if origin.host not in _EVERYWHERE}
        data = AboutRoutes(engine, "data", ABOUT_DATA, known).add_to(
            list_data_routes(engine, identities, lifecycle, settings, installation.secret, streams)
        )
        control = AboutRoutes(engine, "control", ABOUT_CONTROL, known).add_to(
            control_routes(catalog, engine, identities, lifecycle, moves, databases, settings, tiers, metrics)
        )
        memory = Memory(settings.http_memory_mb * 2**20)
        tls = _tls(given.tls)
        upstream = _upstream(given, tls)
        handlers: dict[str, Handler] = {
            "data": Plane(
                data,
                identities,
                metrics.plane("data"),
                memory,
                settings.body_bytes_max,
                in_lanes=True,
                traces=traces,
                elsewhere=_elsewhere("control", control, data, known),
            ).handle,
            "control": Plane(
                control,
                identities,
                metrics.plane("control"),
                memory,
                settings.body_bytes_max,
                traces=traces,
                elsewhere=_elsewhere("data", data, control, known),
            ).handle,
            "metrics": Plane(metrics_routes(metrics), identities, metrics.plane("metrics"), memory).handle,
        }
        if upstream is not None:
            only_control = _paths(control) - _paths(data)
            own_headers = b"" if tls is None else TLS_HEADERS.encode()
            alias = Alias(upstream, given.addresses.get("control"), only_control, own_headers, metrics.plane("alias"))
            handlers["alias"] = alias.handle
        planes = {"data", "control"} & set(given.sockets)
        cors = {plane: CorsPolicy(given.cors_origins) for plane in planes}
        metrics.cors.update(cors)
        watching = {
            "pulse": pulse.watch,
            "quotas": quotas.watch,
            "lanes": lanes.watch,
            "usage": usage.watch,
            "metrics": metrics.watch,
        }
        if "control" in given.sockets or "data" in given.sockets:  # where databases are made, and where they are reset
            watching["lifecycle"] = lifecycle.watch
        if not settings.engine and given.number == 0:
            watching["vacuum_pace"] = partial(keep_pace, session)
        if settings.backup_dir:
            backups = metrics.backups = Backups(catalog, engine, _backup_rules(settings))
            watching["backups"] = backups.watch
        tasks = [keep(name, watch) for name, watch in watching.items()]
        await pulse.look()
        servers, rota = [], Rota()
        for name, sock in given.sockets.items():
            server = HttpServer(
                handlers[name],
                _http_bounds(settings),
                memory,
                rota=rota,
                tls=None if name == "metrics" else tls,
                cors=cors.get(name),
            )
            metrics.servers[name] = server
            await server.start(sock, given.balances[name], given.number)
            servers.append(server)
        gc.collect()
        gc.freeze()
        gc.set_threshold(100_000, 50, 100)
        given.ready()
        await stop.wait()
        _log.info("stopping", running=sum(server.running for server in servers))

        def on_late() -> None:
            lanes.end()
            engine.stop_running()

        await asyncio.gather(*(server.stop(settings.stop_timeout_s, on_late) for server in servers))
        for task in tasks:
            task.cancel()
        await attempt("quotas", quotas.close)
        await attempt("usage", usage.record)
        metrics.post()
        if traces is not None:
            traces.close()


def _paths(table: RouteTable) -> set[str]:
    return {path for _, path in table}


def _elsewhere(plane: str, its: RouteTable, own: RouteTable, addresses: Mapping[str, str]) -> OtherPlane:
    return OtherPlane(plane, [path.split("/") for path in _paths(its) - _paths(own)], addresses.get(plane))


def metrics_routes(metrics: Metrics) -> RouteTable:
    """The only route of the address that is for metrics alone; whoever reaches it needs no token."""
    return {("GET", "/metrics"): Route("What the service counts, for Prometheus.", None, open=metrics.open)}


@asynccontextmanager
async def _several(
    given: WorkerInput,
    installation: Installation,
    catalog: Catalog,
    first: PostgresEngine,
    connectors: Mapping[str, AdminConnector],
    stocks: Stocks,
) -> AsyncIterator[SeveralEngines | None]:
    """None where there is one engine alone, and no database lives on another."""
    missing = await catalog.engines.used() - {FIRST_ENGINE, *connectors}
    if not connectors and not missing:
        yield None
        return
    openings = {
        further.name: partial(_open_engine, given, further, installation, connectors[further.name], stocks)
        for further in given.engines
    }
    async with SeveralEngines(first, openings, catalog.engines.locate, missing) as several:
        yield several


@asynccontextmanager
async def _open_engine(
    given: WorkerInput, further: FurtherEngine, installation: Installation, connector: AdminConnector, stocks: Stocks
) -> AsyncIterator[PostgresEngine]:
    databases = PostgresDatabases(connector, installation.secret, given.settings.engine_temp_mb)
    async with AdminSession(connector, METADATA_DATABASE) as session:
        await check_prepared(session, installation.id, further.name, databases.furnishing)
        connections = min(given.settings.engine_connections_max, (await probe(session)).connections_free)
    settings = replace(given.settings, engine=further.name, engine_connections_max=connections)
    engine = PostgresEngine(
        _engine_settings(
            replace(
                given,
                settings=settings,
                conninfo=further.conninfo,
                dump_tools=further.dump_tools,
                tally=further.tally,
                alone=False,
            ),
            installation,
            connector.primary,
            stocks,
        )
    )
    try:
        await engine.__aenter__()
        yield engine
    finally:
        await engine.__aexit__(None, None, None)  # also of one that was opened in part


def _databases(
    given: WorkerInput,
    installation: Installation,
    catalog: Catalog,
    first: AdminConnector,
    connectors: Mapping[str, AdminConnector],
) -> SeveralDatabases:
    settings, secret = given.settings, installation.secret
    first_temp_mb = settings.engine_temp_mb if settings.engine else None
    timeout_s = float(settings.dump_timeout_s)
    engines: dict[str, Databases] = {
        FIRST_ENGINE: PostgresDatabases(first, secret, first_temp_mb, given.walls, given.dump_tools, timeout_s)
    }
    for further in given.engines:
        engines[further.name] = PostgresDatabases(
            connectors[further.name], secret, settings.engine_temp_mb, FULL, further.dump_tools, timeout_s
        )
    return SeveralDatabases(engines, catalog.engines.locate)


def _connector(given: WorkerInput, further: FurtherEngine) -> AdminConnector:
    demands = given.settings.durability == "replicated"
    return AdminConnector(further.conninfo, primary=primary_of(further.conninfo, follows=True, demands=demands))


def _engine_settings(
    given: WorkerInput, installation: Installation, primary: Primary, stocks: Stocks
) -> EngineSettings:
    """Every worker has its share of the connections."""
    settings, workers = given.settings, given.tally.workers
    least = settings.disk_free_mb_min * 2**20
    most = settings.engine_connections_max
    own = _RESERVED_PER_WORKER + (_RESERVED_TO_FOLLOW if settings.engine else 0)
    reserved = min(_RESERVED_CONNECTIONS + own * workers, most // 2)
    return EngineSettings(
        conninfo=given.conninfo,
        # A database may come from another engine, where positions mean something else: see engine/several.py.
        replicas=() if given.engines else tuple(same_login(replica, given.conninfo) for replica in given.replicas),
        installation=installation.id,
        secret=installation.secret,
        connections_max=max(1, (most - reserved) // workers),
        connections_per_target_max=-(-settings.connections_per_database // workers),
        queue_max=settings.queue_max,
        idle_close_s=settings.connection_idle_s,
        attempts_max=settings.attempts_max,
        # Of an engine elsewhere the process ids would be those of strangers.
        placement=settings.engine_placement and workers == 1 and not settings.engine,
        may_signal=not settings.engine,
        primary=primary,
        tally=given.tally,
        worker=given.number,
        alone=given.alone,
        exclusive=not settings.engine or settings.engine_exclusive,
        dump_tools=given.dump_tools,
        dumps_max=settings.dumps_max,
        disk=None if settings.engine or not least else Disk(settings.data_dir.absolute(), least),
        process_bytes_max=None if settings.engine else settings.engine_process_memory_mb * 2**20,
        stocks=stocks,
        weaknesses=given.weaknesses,
    )


def _backup_rules(settings: Settings) -> BackupRules:
    directory = Path(settings.backup_dir).expanduser().absolute()
    return BackupRules(directory, settings.backup_every_s, settings.backup_keep, settings.dump_timeout_s)


def _http_bounds(settings: Settings) -> HttpBounds:
    return HttpBounds(
        connections_max=settings.http_connections_max,
        header_timeout_s=settings.header_timeout_s,
        body_timeout_s=settings.body_timeout_s,
        keep_alive_s=settings.keep_alive_s,
        reader_timeout_s=settings.reader_timeout_s,
    )


def _tls(files: TlsFiles | None) -> TlsContext | None:
    """The certificate to serve with; SIGHUP takes up a renewed one."""
    if files is None:
        return None
    tls = TlsContext(files)

    def reload() -> None:
        try:
            tls.reload()
        except TlsError as exc:
            _log.error("the certificate was not taken up", reason=str(exc))
        else:
            _log.info("the certificate was taken up")

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    return tls


def _upstream(given: WorkerInput, tls: TlsContext | None) -> UpstreamAddress | None:
    upstream = given.upstream
    if upstream is None:
        return None
    idle_s = min(_UPSTREAM_IDLE_S, given.settings.keep_alive_s / 2)
    if upstream.origin.scheme == "http":
        return UpstreamAddress(upstream.origin, None, idle_s)
    if upstream.own:
        assert tls is not None, "an installation's own address has its own certificate"
        return UpstreamAddress(upstream.origin, lambda: client_context(tls.certificate), idle_s)
    trusting = client_context()
    return UpstreamAddress(upstream.origin, lambda: trusting, idle_s)


def _stop_event(life_fd: int) -> asyncio.Event:
    """Set by SIGTERM, for a stop in order; a supervisor that vanished takes the process with it at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    loop.add_reader(life_fd, lambda: os._exit(1))
    return stop
