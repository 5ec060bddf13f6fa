"""A worker process: the planes on one event loop. The composition root: only here do concrete classes meet."""

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from querygate.access.scopes import Scope
from querygate.admission.about import AboutRoutes
from querygate.admission.identity import IdentityCache
from querygate.admission.plane import Plane, Route
from querygate.catalog.store import Catalog, Installation
from querygate.data_plane.query import QueryBounds, QueryRoutes
from querygate.data_plane.stream import StreamWriter
from querygate.data_plane.transaction import TransactionBounds, TransactionRoutes
from querygate.engine.port import Engine
from querygate.engine.postgres.admin import METADATA_DATABASE, AdminConnector, AdminSession
from querygate.engine.postgres.engine import EngineSettings, PostgresEngine
from querygate.engine.postgres.tally import Tally
from querygate.http.acceptor import Balance
from querygate.http.server import HttpBounds, HttpServer
from querygate.settings import Settings

_log = structlog.get_logger()

_RESERVED_CONNECTIONS = 6
_RESERVED_PER_WORKER = 4
"""Of the engine's: for the service's own statements, for whoever looks after it, and for its background work."""


@dataclass(frozen=True, slots=True)
class WorkerInput:
    """What a worker gets from its supervisor: a socket for every plane that it is to serve.

    When `life_fd` closes the supervisor is gone, and so is the engine.
    """

    settings: Settings
    conninfo: str
    sockets: dict[str, socket.socket]
    life_fd: int
    ready: Callable[[], None]
    tally: Tally
    number: int
    """Of this worker among its fellows, from 0."""
    balances: dict[str, Balance]
    """Of the planes' sockets, where there are several workers."""
    alone: bool
    """Nobody served on this engine before this worker and its fellows were started."""


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
    session = AdminSession(AdminConnector(given.conninfo), METADATA_DATABASE)
    catalog = Catalog(session)
    installation = await catalog.installation()
    assert installation is not None, "the supervisor has made it"
    engine = PostgresEngine(_engine_settings(given, installation))
    async with session, engine:
        identities = IdentityCache(catalog)
        tables = {
            "data": data_routes(engine, identities, settings, installation.secret),
            "alias": alias_routes(engine),
            "control": control_routes(engine),
        }
        servers = []
        for name, sock in given.sockets.items():
            server = HttpServer(Plane(tables[name], identities).handle, _http_bounds(settings))
            await server.start(sock, None, given.balances.get(name), given.number)
            servers.append(server)
        gc.collect()
        gc.freeze()
        gc.set_threshold(100_000, 50, 100)
        given.ready()
        await stop.wait()
        _log.info("stopping", running=sum(server.running for server in servers))
        await asyncio.gather(*(server.stop(settings.stop_timeout_s, engine.stop_running) for server in servers))


RouteTable = dict[tuple[str, str], Route]


def control_routes(engine: Engine) -> RouteTable:
    """The control plane's routes, in the order of the banner."""
    return _with_about({}, AboutRoutes(engine, "control"))


def alias_routes(engine: Engine) -> RouteTable:
    return _with_about({}, AboutRoutes(engine, "alias"))


def _with_about(table: RouteTable, about: AboutRoutes) -> RouteTable:
    """The table with the routes that every plane has."""
    table[("GET", "/health")] = Route("Whether the service and its engine work.", None, open=about.health)
    table[("GET", "/")] = Route("This overview.", None, open=about.banner)
    about.endpoints = {f"{method} {path}": route.summary for (method, path), route in table.items()}
    return table


def data_routes(engine: Engine, identities: IdentityCache, settings: Settings, secret: bytes) -> RouteTable:
    """The data plane's routes, in the order of the banner."""
    query = QueryRoutes(
        engine,
        identities,
        QueryBounds(settings.statement_timeout_ms, settings.answer_bytes_max),
        StreamWriter(engine, settings.heartbeat_s),
    )
    transaction = TransactionRoutes(
        engine,
        identities,
        TransactionBounds(
            settings.transaction_timeout_ms, settings.transaction_statements_max, settings.answer_bytes_max
        ),
        secret,
    )
    table: RouteTable = {
        ("POST", "/v1/query"): Route("Run one SQL statement, sent as JSON.", Scope.READ, guarded=query.json),
        ("POST", "/query"): Route("Run one SQL statement, sent as plain text.", Scope.READ, guarded=query.text),
        ("POST", "/v1/transaction"): Route("Run several statements atomically.", Scope.READ, guarded=transaction.run),
        ("GET", "/v1/transaction/{id}"): Route("What became of a transaction.", Scope.READ, guarded=transaction.state),
        ("POST", "/v1/transaction/{id}/abort"): Route(
            "Make an unfinished or unknown transaction aborted for good.", Scope.WRITE, guarded=transaction.abort
        ),
    }
    return _with_about(table, AboutRoutes(engine, "data"))


def _engine_settings(given: WorkerInput, installation: Installation) -> EngineSettings:
    """Every worker has its share of the connections."""
    settings, workers = given.settings, given.tally.workers
    most = settings.engine_connections_max
    reserved = min(_RESERVED_CONNECTIONS + _RESERVED_PER_WORKER * workers, most // 2)
    return EngineSettings(
        conninfo=given.conninfo,
        installation=installation.id,
        secret=installation.secret,
        connections_max=max(1, (most - reserved) // workers),
        connections_per_target_max=-(-settings.connections_per_database // workers),
        queue_max=settings.queue_max,
        idle_close_s=settings.connection_idle_s,
        attempts_max=settings.attempts_max,
        # Of an engine elsewhere the process ids would be those of strangers.
        placement=settings.engine_placement and workers == 1 and not settings.engine,
        tally=given.tally,
        worker=given.number,
        alone=given.alone,
        exclusive=not settings.engine or settings.engine_exclusive,
    )


def _http_bounds(settings: Settings) -> HttpBounds:
    return HttpBounds(
        body_bytes_max=settings.body_bytes_max,
        connections_max=settings.http_connections_max,
        header_timeout_s=settings.header_timeout_s,
        body_timeout_s=settings.body_timeout_s,
        keep_alive_s=settings.keep_alive_s,
        reader_timeout_s=settings.reader_timeout_s,
    )


def _stop_event(life_fd: int) -> asyncio.Event:
    """Set by SIGTERM, for a stop in order; a supervisor that vanished takes the process with it at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    loop.add_reader(life_fd, lambda: os._exit(1))
    return stop
