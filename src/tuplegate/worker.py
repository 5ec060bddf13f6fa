"""A worker process: the planes on one event loop. Here the concrete classes of the planes meet."""

# size: every concrete class is named in one place, and each new one adds a line or two.
import asyncio
import gc
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from tuplegate.access.limits import LIMITS, bound_database
from tuplegate.access.quotas import Tier, find_tier, read_tiers
from tuplegate.admission.about import AboutRoutes
from tuplegate.admission.fair_use.allowances import Allowance, Allowances
from tuplegate.admission.fair_use.fairness import Lanes
from tuplegate.admission.fair_use.quota import Quotas
from tuplegate.admission.fair_use.seats import Seats, WorkerSeats
from tuplegate.admission.fair_use.usage import UsageBook
from tuplegate.admission.identity import IdentityCache
from tuplegate.admission.long_answers import LongAnswers
from tuplegate.admission.metrics import Metrics
from tuplegate.admission.paths import gather_paths
from tuplegate.admission.plane import OtherPlane, Plane, Route, RouteTable
from tuplegate.admission.pulse import Pulse, TokenHolders
from tuplegate.admission.traces import Traces
from tuplegate.alias.plane import Alias
from tuplegate.background import Work, attempt, compute_pause_s, keep, tick
from tuplegate.catalog.catalog import Catalog
from tuplegate.catalog.retention import AUDIT, USAGE
from tuplegate.catalog.schema import Installation, find_installation
from tuplegate.catalog.tokens.credentials import Whereabouts
from tuplegate.console.routes import ConsoleRoutes
from tuplegate.control_plane.routes import ABOUT as ABOUT_CONTROL
from tuplegate.control_plane.routes import build_control_routes
from tuplegate.data_plane.interactive.handover import Doors, Handover, Holder
from tuplegate.data_plane.interactive.held import Holdings
from tuplegate.data_plane.interactive.routes import OpenTransactions
from tuplegate.data_plane.routes import ABOUT as ABOUT_DATA
from tuplegate.data_plane.routes import list_data_routes
from tuplegate.data_plane.stream import StreamWriter
from tuplegate.data_plane.wire.routes import WireRoutes
from tuplegate.data_plane.wire.sessions import WireSessions
from tuplegate.engine.cells.template import SharedCells
from tuplegate.engine.opening import ReachedCells, SharedEngine, reach_engines
from tuplegate.engine.port import FIRST_ENGINE, Engine, EngineFailure, OpenEngine, ReachedEngine
from tuplegate.engine.routing.databases import SeveralDatabases
from tuplegate.engine.routing.engines import SeveralEngines
from tuplegate.http.acceptor import Balance
from tuplegate.http.connection import Handler, HttpBounds
from tuplegate.http.cors import CorsPolicy
from tuplegate.http.forwarding.upstream import UpstreamAddress
from tuplegate.http.origins import Origin, PageOrigins
from tuplegate.http.parsing.message import FROM_OURSELVES
from tuplegate.http.server import HttpServer
from tuplegate.http.sharing.connection_turns import ConnectionTurns
from tuplegate.http.sharing.memory import Memory
from tuplegate.http.tls.certificates import TlsContext, TlsFiles, client_context, load_reloadable
from tuplegate.http.writing import TLS_HEADERS
from tuplegate.metrics.board import Board
from tuplegate.settings import Settings
from tuplegate.standstill import Beats
from tuplegate.tenancy.backups import BackupRules, Backups
from tuplegate.tenancy.lifecycle import Lifecycle
from tuplegate.tenancy.moves import Mover
from tuplegate.tenancy.organization_sizes import OrganizationSizes
from tuplegate.tenancy.retention import Retention, RetentionRule

_log = structlog.get_logger()

_UPSTREAM_IDLE_S = 20.0
_NODE_BEAT_S = 1.5
CONTROL_BODY_MAX: Final = 64 * 1024
"""The bytes of a request to the control plane: such requests are short, and are read in one piece."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """The upstream of the alias. `own` means the data plane of this very process, and so its certificate."""

    origin: Origin
    own: bool


@dataclass(frozen=True, slots=True)
class WorkersMemory:
    """Memory that the workers share among themselves and with the supervisor."""

    board: Board
    """All workers post their counts here."""
    beats: Beats
    """The supervisor sees here that the loop of each worker turns."""
    open_transactions: Seats
    wire_connections: Seats


# size: this class is a table; each field is something that only the supervisor has.
@dataclass(frozen=True, slots=True)
class WorkerInput:
    """The input of a worker, from its supervisor. `sockets` has one for every plane that it is to serve.

    `addresses` are those of the planes as others reach them; `upstream` is the alias's, which may be the data plane of
    this very installation. When `life_fd` closes the supervisor is gone, and so is the engine.
    """

    settings: Settings
    engines: tuple[SharedEngine, ...]
    """The first engine, and those beside it."""
    sockets: dict[str, socket.socket]
    addresses: dict[str, Origin]
    upstream: Upstream | None
    tls: TlsFiles | None
    cors_origins: frozenset[str]
    own_origins: frozenset[Origin]
    """All addresses of the planes: as they are bound, and as the settings name them."""
    life_fd: int
    ready: Callable[[], None]
    number: int
    """The number of this worker among its fellows, from 0."""
    balances: dict[str, Balance]
    """The balances of the planes' sockets."""
    memory: WorkersMemory
    doors: Doors
    cells: tuple[SharedCells, socket.socket] | None
    """The cells of the bundled engine, and this worker's end of the line to the supervisor about them."""


# size: one field for each service; nothing but the planes below is built of them.
@dataclass(frozen=True, slots=True)
class _Services:
    """The services that the planes of a worker share."""

    installation: Installation
    catalog: Catalog
    engine: Engine
    databases: SeveralDatabases
    tiers: dict[str, Tier]
    allowances: Allowances
    quotas: Quotas
    usage: UsageBook
    lanes: Lanes
    identities: IdentityCache
    pulse: Pulse
    lifecycle: Lifecycle
    metrics: Metrics
    memory: Memory
    traces: Traces | None
    held: OpenTransactions
    wires: WireSessions | None
    long_answers: LongAnswers


def run(given: WorkerInput) -> None:
    """Serve until the supervisor stops the worker."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(_main(given))
    else:
        uvloop.run(_main(given))


async def _main(given: WorkerInput) -> None:
    stop = _watch_signals(given.life_fd)
    given.memory.beats.start(given.number, compute_pause_s)
    engines = reach_engines(given.settings, given.engines, given.number)
    async with engines[FIRST_ENGINE].metadata() as metadata:
        installation = await find_installation(metadata.session)
        assert installation is not None, "the supervisor has made it"
        catalog = Catalog(metadata.session, metadata.lookups, metadata.notes)
        async with (
            engines[FIRST_ENGINE].open(installation.id, installation.secret) as first,
            _open_cells(given, installation, first) as cells,
            _open_several(engines, installation, catalog, first, cells) as several,
        ):
            made = {name: engine.databases(installation.secret) for name, engine in engines.items()}
            if cells is not None:
                made[FIRST_ENGINE] = cells.databases
            databases = SeveralDatabases(made, catalog.engines.locate)
            services = _make_services(given, installation, catalog, first, several, databases)
            await _serve(given, services, stop)


@asynccontextmanager
async def _open_cells(
    given: WorkerInput, installation: Installation, first: OpenEngine
) -> AsyncIterator[ReachedCells | None]:
    """Open the line to the cells. Gives None if somebody else runs the engine."""
    if given.cells is None:
        yield None
        return
    shared, end = given.cells
    owned = (installation.id, installation.secret)
    async with ReachedCells(given.settings, shared, given.number, owned, first, end) as cells:
        yield cells


@asynccontextmanager
async def _open_several(
    engines: Mapping[str, ReachedEngine],
    installation: Installation,
    catalog: Catalog,
    first: OpenEngine,
    cells: ReachedCells | None,
) -> AsyncIterator[SeveralEngines | None]:
    """Open the engines beside the first. Gives None if the first one has all databases."""
    missing = await catalog.engines.list_used() - engines.keys()
    further = {
        name: partial(engine.open, installation.id, installation.secret)
        for name, engine in engines.items()
        if name != FIRST_ENGINE
    }
    if not further and not missing and cells is None:
        yield None
        return
    async with SeveralEngines(first, further, catalog.engines.locate, missing, cells) as several:
        yield several


def _make_services(
    given: WorkerInput,
    installation: Installation,
    catalog: Catalog,
    first: OpenEngine,
    several: SeveralEngines | None,
    databases: SeveralDatabases,
) -> _Services:
    settings = given.settings
    engine: Engine = several or first  # with one engine it serves by itself: nothing stands between
    tiers = read_tiers(settings.tiers)
    own_limits = {name: getattr(settings, name) for name in LIMITS}
    allowances = Allowances(own_limits, tiers, settings.answer_bytes_max)
    quotas = Quotas(catalog.permits, tiers)
    usage = UsageBook(catalog.journal, catalog.credentials)
    lanes = Lanes(
        max(1, settings.running_max // settings.workers),
        max(1, 4 * (os.cpu_count() or 1) // settings.workers),
        settings.queue_max,
        settings.statement_timeout_ms / 1000,
    )

    def note_database(place: Whereabouts, tier: str, allowance: Allowance) -> None:
        _, database, on, others = place
        if several is not None:
            several.learn(database, on)
        most = find_tier(tiers, tier).bytes_max, allowance.find("organization_bytes_max")
        engine.bound_size(database, bound_database(*most, others))

    identities = IdentityCache(catalog.credentials, quotas, lanes, usage, allowances, note_database)
    metrics = Metrics(given.memory.board, given.number, engine, lanes, usage)
    metrics.beats = given.memory.beats
    holdings = Holdings(WorkerSeats(given.memory.open_transactions, given.number))
    own, paths = Holder(given.doors.node, given.number), list(given.doors.sockets)
    handover = Handover(own, paths, catalog.nodes.find, installation.secret)
    seats = WorkerSeats(given.memory.wire_connections, given.number)
    wires = WireSessions(given.number, seats, settings.wire_idle_s) if settings.wire else None
    long_answers = LongAnswers()
    holders: list[TokenHolders] = [long_answers, holdings, *([] if wires is None else [wires])]
    metrics.parts += [holdings] if wires is None else [holdings, wires]
    return _Services(
        installation,
        catalog,
        engine,
        databases,
        tiers,
        allowances,
        quotas,
        usage,
        lanes,
        identities,
        Pulse(catalog, identities, engine, several.follow if several is not None else None, holders),
        Lifecycle(
            catalog, databases, engine, several.find_reachable if several is not None and several.is_several else None
        ),
        metrics,
        Memory(settings.http_memory_mb * 2**20),
        Traces(settings.traces_endpoint) if settings.traces_endpoint else None,
        OpenTransactions(holdings, handover),
        wires,
        long_answers,
    )


async def _serve(given: WorkerInput, services: _Services, stop: asyncio.Event) -> None:
    """Serve until the supervisor says stop, and then let running requests finish."""
    settings = given.settings
    tls = None if given.tls is None else load_reloadable(given.tls)
    handlers = _make_handlers(given, services, tls)
    tasks = [keep(name, watch) for name, watch in _choose_watches(given, services).items()]
    await services.pulse.look()
    servers = await _start_servers(given, services, handlers, tls)
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    given.ready()
    await stop.wait()
    _log.info("stopping", running=sum(server.running for server in servers))

    def on_late() -> None:
        services.lanes.end()
        services.engine.stop_running()

    await asyncio.gather(*(server.stop(settings.stop_timeout_s, on_late) for server in servers))
    for task in tasks:
        task.cancel()
    if services.wires is not None:
        await services.wires.finish()
    await attempt("quotas", services.quotas.close)
    await attempt("usage", services.usage.record)
    services.metrics.post()
    if services.traces is not None:
        services.traces.close()


def _make_handlers(given: WorkerInput, services: _Services, tls: TlsContext | None) -> dict[str, Handler]:
    settings, engine, metrics, identities = given.settings, services.engine, services.metrics, services.identities
    catalog, databases, lifecycle = services.catalog, services.databases, services.lifecycle
    memory, traces = services.memory, services.traces
    streams = StreamWriter(engine, settings.heartbeat_s, services.long_answers)
    metrics.parts.append(streams)
    known = {name: str(origin) for name, origin in given.addresses.items() if not origin.is_everywhere}
    data = AboutRoutes(engine, identities, "data", ABOUT_DATA, known).add_to(
        list_data_routes(
            engine,
            identities,
            lifecycle,
            settings,
            services.installation.secret,
            streams,
            services.held,
            _make_wire_routes(given, services),
        )
    )
    mover = Mover(catalog, databases, engine, lifecycle)
    control = AboutRoutes(engine, identities, "control", ABOUT_CONTROL, known).add_to(
        build_control_routes(
            catalog,
            engine,
            identities,
            lifecycle,
            mover,
            databases,
            databases,
            settings,
            services.tiers,
            services.allowances,
            metrics,
            services.long_answers,
            given.addresses.get("control"),
        )
    )
    control |= ConsoleRoutes(settings.console_dir, given.addresses).table  # described to nobody: see there
    handlers: dict[str, Handler] = {
        "data": Plane(
            data,
            identities,
            metrics.plane("data"),
            memory,
            settings.body_bytes_max,
            in_lanes=True,
            traces=traces,
            vouches=services.held.handover.vouches,
            elsewhere=_find_elsewhere("control", control, data, known),
        ).handle,
        "control": Plane(
            control,
            identities,
            metrics.plane("control"),
            memory,
            min(settings.body_bytes_max, CONTROL_BODY_MAX),
            traces=traces,
            elsewhere=_find_elsewhere("data", data, control, known),
        ).handle,
        "metrics": Plane(metrics_routes(metrics), identities, metrics.plane("metrics"), memory).handle,
    }
    if (upstream := _find_upstream(given)) is not None:
        only_control = gather_paths(_list_paths(control) - _list_paths(data))
        own_headers = b"" if tls is None else TLS_HEADERS.encode()
        pages, control_address = PageOrigins(given.own_origins), given.addresses.get("control")
        alias = Alias(upstream, control_address, only_control, own_headers, pages, metrics.plane("alias"))
        handlers["alias"] = alias.handle
    return handlers


def _make_wire_routes(given: WorkerInput, services: _Services) -> WireRoutes | None:
    settings = given.settings
    if services.wires is None:
        return None
    return WireRoutes(
        services.engine,
        services.identities,
        services.wires,
        services.held.handover,
        services.catalog.journal,
        settings.body_bytes_max,
        PageOrigins(given.own_origins, given.cors_origins),
    )


def _choose_watches(given: WorkerInput, services: _Services) -> dict[str, Work]:
    """Return the background tasks of this worker."""
    settings = given.settings
    watches: dict[str, Work] = {
        "pulse": services.pulse.watch,
        "quotas": services.quotas.watch,
        "lanes": services.lanes.watch,
        "usage": services.usage.watch,
        "metrics": services.metrics.watch,
    }
    if services.wires is not None:
        watches["wire"] = partial(services.wires.watch, services.identities)
    if "control" in given.sockets or "data" in given.sockets:  # where databases are made, and where they are reset
        watches["lifecycle"] = services.lifecycle.watch
        retention = Retention(services.catalog.old_records, services.engine, _read_retention_rules(settings))
        watches["retention"] = retention.watch
        sizes = OrganizationSizes(
            services.catalog,
            services.databases,
            services.engine,
            lambda tier, own: bool(services.allowances.find(tier, own).find("organization_bytes_max")),
        )
        watches["sizes"] = sizes.watch
    if given.number == 0 and settings.engine:  # others may serve this installation, too
        watches["node"] = partial(
            _tell_node, services.catalog, given.doors.node, settings.node_url or _find_own_url(given)
        )
    if settings.backup_dir:
        backups = Backups(services.catalog, services.engine, services.engine, _read_backup_rules(settings))
        services.metrics.parts.append(backups)
        watches["backups"] = backups.watch
    return watches


def _find_own_url(given: WorkerInput) -> str:
    origin = given.addresses.get("data")
    return "" if origin is None or origin.is_everywhere else str(origin)


async def _tell_node(catalog: Catalog, node: int, url: str) -> None:
    """Tell other machines, again and again, that this one serves."""
    while True:
        try:
            await catalog.nodes.beat(node, url)
        except EngineFailure:
            pass  # it is told again in a moment
        await tick(_NODE_BEAT_S)


async def _start_servers(
    given: WorkerInput, services: _Services, handlers: Mapping[str, Handler], tls: TlsContext | None
) -> list[HttpServer]:
    metrics, turns, control = services.metrics, ConnectionTurns(), given.addresses.get("control")
    cors = {plane: CorsPolicy(given.cors_origins, control) for plane in {"data", "control"} & set(given.sockets)}
    metrics.cors.update(cors)
    servers = []
    for name, sock in given.sockets.items():
        server = HttpServer(
            handlers[name],
            _read_http_bounds(given.settings),
            services.memory,
            turns=turns,
            tls=None if name == "metrics" else tls,
            cors=cors.get(name),
        )
        metrics.servers[name] = server
        await server.start(sock, given.balances[name], given.number)
        servers.append(server)
    if "data" in given.sockets:
        bounds = _read_http_bounds(given.settings)
        door = HttpServer(handlers["data"], bounds, services.memory, turns=turns, limits=FROM_OURSELVES)
        await door.start(list(given.doors.sockets.values())[given.number])
        servers.append(door)
    return servers


def _list_paths(table: RouteTable) -> set[str]:
    return {path for _, path in table}


def _find_elsewhere(plane: str, its: RouteTable, own: RouteTable, addresses: Mapping[str, str]) -> OtherPlane:
    return OtherPlane(plane, gather_paths(_list_paths(its) - _list_paths(own)), addresses.get(plane))


def metrics_routes(metrics: Metrics) -> RouteTable:
    """Return the only route of the address for metrics, which needs no token."""
    return {("GET", "/metrics"): Route("What the service counts, for Prometheus.", None, open=metrics.open)}


def _read_backup_rules(settings: Settings) -> BackupRules:
    directory = Path(settings.backup_dir).expanduser().absolute()
    return BackupRules(directory, settings.backup_every_s, settings.backup_keep, settings.dump_timeout_s)


def _read_retention_rules(settings: Settings) -> list[RetentionRule]:
    return [
        RetentionRule(AUDIT, settings.audit_days, settings.audit_rows_per_organization, settings.audit_rows_max),
        RetentionRule(USAGE, settings.usage_days, settings.usage_rows_per_organization, settings.usage_rows_max),
    ]


def _read_http_bounds(settings: Settings) -> HttpBounds:
    return HttpBounds(
        connections_max=settings.http_connections_max,
        header_timeout_s=settings.header_timeout_s,
        body_timeout_s=settings.body_timeout_s,
        keep_alive_s=settings.keep_alive_s,
        reader_timeout_s=settings.reader_timeout_s,
    )


def _find_upstream(given: WorkerInput) -> UpstreamAddress | None:
    """Return the upstream of the alias: the data plane of this worker through its door, or another service."""
    upstream = given.upstream
    if upstream is None:
        return None
    idle_s = min(_UPSTREAM_IDLE_S, given.settings.keep_alive_s / 2)
    if upstream.own:
        return UpstreamAddress(upstream.origin, None, idle_s, list(given.doors.sockets)[given.number])
    trusting = client_context()
    return UpstreamAddress(upstream.origin, None if upstream.origin.scheme == "http" else lambda: trusting, idle_s)


def _watch_signals(life_fd: int) -> asyncio.Event:
    """Return an event that SIGTERM sets, for a stop in order; without its supervisor the process ends at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    loop.add_reader(life_fd, lambda: os._exit(1))
    return stop
