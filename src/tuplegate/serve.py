"""`tuplegate serve`: the supervisor. It owns the data directory, the engine and the sockets, and watches its workers.

It does no work of a request itself, so that nothing a request does can take the engine down with it. A dead engine or
worker is started again and the fact is logged; the other workers go on meanwhile, and take the connections that arrive,
since all of them listen on the same sockets. What it starts does not outlive it, not even after kill -9: the engine is
told by the kernel, the workers by a pipe that closes.
"""

import asyncio
import contextlib
import ipaddress
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from tuplegate import logs, worker
from tuplegate.access.quotas import read_tiers
from tuplegate.access.tokens import Token
from tuplegate.engine.binaries import find_dump_tools
from tuplegate.engine.bundled import BundledEngineError, BundledServer, BundledSettings
from tuplegate.engine.external import ExternalServer
from tuplegate.engine.port import EngineFailure
from tuplegate.engine.postgres.own.logins import BadUrl, read_url, where, without_login
from tuplegate.engine.postgres.own.probes import warnings
from tuplegate.engine.postgres.safety.tally import Tally
from tuplegate.further_engines import EnginePreparation, read_engines
from tuplegate.http import self_signed
from tuplegate.http.acceptor import Balance
from tuplegate.http.origins import Origin, parse_origin
from tuplegate.http.tls import TlsContext, TlsError, TlsFiles, fingerprint
from tuplegate.installation import (
    EngineRefused,
    Installed,
    examine,
    install,
    service_login,
    show_first_key,
)
from tuplegate.metrics.board import Board
from tuplegate.open_files import Wanted, accepted_below, close_others, raise_limit
from tuplegate.settings import Settings
from tuplegate.standstill import Beats, StandstillClock, offer_stacks, read_stacks

_log = structlog.get_logger()

PLANES = ("data", "alias", "control")

_WATCH_S = 0.25
_RESTART_PAUSE_S = 1.0
_WORKER_PAUSE_S = 0.25  # from one start to the next: a worker that cannot live does not take the machine
_READY_TIMEOUT_S = 60.0
_STILL_S_MAX = 5.0
"""A worker that serves and whose loop stands still for longer is replaced."""
_STOP_MARGIN_S = 10.0
_STOP_POLL_S = 0.01
_LOG_BOUND_EVERY_S = 10.0
_UNSENT_MAX = 2**17
"""Bytes for a client that the kernel holds beyond what is under way."""
_CERTIFICATE_EVERY_S = 3600.0


class ServeError(Exception):
    """The service cannot start; the message says why and what to do."""


def serve(settings: Settings) -> None:
    """Runs until SIGTERM or SIGINT. Raises ServeError."""
    logs.configure(settings)
    _check_address(settings)
    _check_traces(settings)
    _check_backups(settings)
    _check_tiers(settings)
    replicas = replica_conninfos(settings)
    given_tls = _given_tls(settings)
    further = _further(settings)
    sockets = _bind_planes(settings)
    edge = _edge(settings, sockets)
    if settings.metrics_address:
        sockets["metrics"] = _bind_metrics(settings)
    with _signals() as stopped, opened_engine(settings) as engine:
        if stopped():
            return
        installed, connections = _install(settings, engine)
        # What workers are given holds nothing of the superuser's login.
        place = where(engine.conninfo) if settings.engine else ""
        settings = replace(settings, engine_connections_max=connections, engine=place, engines=" ".join(further))
        settings = _within_file_limit(settings, sockets)
        settings = replace(settings, replicas="")
        os.environ.pop("TUPLEGATE_ENGINE", None)
        os.environ.pop("TUPLEGATE_ENGINES", None)
        os.environ.pop("TUPLEGATE_REPLICAS", None)
        if further and replicas:
            _log.warning("with several engines nothing is read from replicas: see docs/operations.md")
        preparing = EnginePreparation(installed, further, settings.engine_temp_mb)
        preparing.try_all()
        tls = given_tls or _self_signed(settings, edge)
        supervisor = Supervisor(settings, engine, installed, replicas, sockets, edge, tls, stopped, preparing)
        supervisor.start_workers()
        if tls is not None:
            signal.signal(signal.SIGHUP, lambda *_: supervisor.ask_reload())
        announce = partial(_announce, sockets, tls, is_self_signed=bool(settings.tls))
        if installed.has_key:
            announce(None)
        else:
            _show_first_key(engine.conninfo, announce)
        supervisor.watch()


def _show_first_key(conninfo: str, announce: Callable[[Token | None], bool]) -> None:
    try:
        if not asyncio.run(show_first_key(conninfo, announce)):
            announce(None)
    except EngineFailure as exc:
        raise ServeError(f"the engine was lost before the first key was made: {exc}. Start the service again.") from exc


def _within_file_limit(settings: Settings, planes: Collection[str]) -> Settings:
    """The settings, with as many HTTP connections as there can be files."""
    lines = len(planes) + ("alias" in planes)
    servers = 1 + len(replica_conninfos(settings)) + len(settings.engines.split())
    wanted = Wanted(settings.http_connections_max, lines, settings.engine_connections_max * servers)
    return replace(settings, http_connections_max=raise_limit(wanted))


@contextlib.contextmanager
def opened_engine(settings: Settings) -> Iterator[BundledServer | ExternalServer]:
    """The engine of the user's own, if there is one, or the bundled one."""
    if settings.engine:
        bin_dir = Path(settings.engine_bin) if settings.engine_bin else None
        yield ExternalServer(engine_conninfo(settings), find_dump_tools(bin_dir))
        return
    with bundled_engine(settings) as engine:
        yield engine


def engine_conninfo(settings: Settings) -> str:
    try:
        return read_url(settings.engine)
    except BadUrl as exc:
        raise ServeError(f"the URL given as --engine cannot be used: {exc}") from exc


def _further(settings: Settings) -> dict[str, str]:
    try:
        return read_engines(settings.engines)
    except BadUrl as exc:
        raise ServeError(f"--engines cannot be used: {exc}") from exc


def replica_conninfos(settings: Settings) -> tuple[str, ...]:
    """Where the standbys are. Whoever logs in there says so themselves."""
    given = [url.strip() for url in settings.replicas.split(",") if url.strip()]
    try:
        return tuple(without_login(read_url(url)) for url in given)
    except BadUrl as exc:
        raise ServeError(f"a URL given as --replicas cannot be used: {exc}") from exc


def _install(settings: Settings, engine: BundledServer | ExternalServer) -> tuple[Installed, int]:
    """Brings the installation up to date; how workers log in, and how many connections the engine has."""
    if isinstance(engine, BundledServer):
        try:
            return asyncio.run(install(engine.conninfo)), settings.engine_connections_max
        except (EngineFailure, RuntimeError) as exc:
            raise ServeError(f"the data directory {settings.data_dir} cannot be prepared: {exc}") from exc
    place = where(engine.conninfo)
    try:
        found = asyncio.run(examine(engine.conninfo))
        for warning in warnings(found, settings.engine_connections_max):
            _log.warning(warning)
        installed = asyncio.run(
            install(
                engine.conninfo,
                bundled=False,
                temp_mb=settings.engine_temp_mb,
                accept_weaker_walls=settings.accept_weaker_walls,
            )
        )
        for weakness in installed.weaknesses:
            _log.warning("tenants are not kept apart in full", weakness=weakness.name, meaning=weakness.meaning)
        return installed, min(found.connections_free, settings.engine_connections_max)
    except EngineRefused as exc:
        raise ServeError(f"the engine at {place} cannot be used:{exc}") from exc
    except (EngineFailure, RuntimeError) as exc:
        raise ServeError(f"the engine at {place} cannot be prepared: {exc}") from exc


@contextlib.contextmanager
def bundled_engine(settings: Settings) -> Iterator[BundledServer]:
    """The bundled engine, running, on a data directory that nobody else uses."""
    engine = BundledServer(bundled_settings(settings))
    try:
        engine.prepare()
        try:
            engine.start()
            yield engine
        finally:
            engine.stop()
    except BundledEngineError as exc:
        raise ServeError(str(exc)) from exc
    finally:
        engine.release()


def bundled_settings(settings: Settings) -> BundledSettings:
    return BundledSettings(
        data_dir=settings.data_dir.absolute(),
        bin_dir=Path(settings.engine_bin) if settings.engine_bin else None,
        user=settings.engine_user or None,
        max_connections=settings.engine_connections_max,
        shared_buffers_mb=settings.engine_shared_buffers_mb,
        process_memory_mb=settings.engine_process_memory_mb,
        temp_mb=settings.engine_temp_mb,
        disk_free_min=settings.disk_free_mb_min * 2**20,
    )


@dataclass(frozen=True, slots=True)
class Edge:
    """What the planes need to know of the outside: their addresses there, the alias's way, who may call from pages."""

    addresses: dict[str, Origin]
    upstream: worker.Upstream | None
    cors_origins: frozenset[str]


@dataclass
class WorkerProcess:
    """A worker as its supervisor sees it.

    `ready` is the end of a pipe that it writes to once it serves, `stacks` of one for its stacks, where they are asked.
    """

    number: int
    pid: int
    ready: int
    stacks: int
    started_at: float
    clock: StandstillClock
    serves: bool = False
    killed: bool = False
    dead: bool = False

    def stands_still(self, beat: int, now: float) -> bool:
        """Return whether it does for longer than it may. One that starts has no beat yet, but a time to be ready in."""
        if not self.serves:
            with contextlib.suppress(BlockingIOError):
                self.serves = os.read(self.ready, 1) == b"r"
        still_s = self.clock.look((self.serves, beat if self.serves else 0), now)
        return still_s > (_STILL_S_MAX if self.serves else _READY_TIMEOUT_S)

    def close(self) -> None:
        os.close(self.ready)
        os.close(self.stacks)


@dataclass
class Supervisor:
    settings: Settings
    engine: BundledServer | ExternalServer
    installed: Installed
    replicas: tuple[str, ...]
    """Where standbys are, without a login."""
    sockets: dict[str, socket.socket]
    edge: Edge
    tls: TlsFiles | None
    stopped: Callable[[], bool]
    preparing: EnginePreparation
    _workers: list[WorkerProcess] = field(default_factory=list)
    _life: tuple[int, int] = field(default_factory=os.pipe)
    _reload_asked: bool = False

    def __post_init__(self) -> None:
        workers = self.settings.workers
        self._tally = Tally(workers, shared=bool(self.settings.engine))
        self._board = Board(workers)
        self._beats = Beats(workers)
        self._balances = {plane: Balance(workers, accepted_below()) for plane in self.sockets}
        self._engines = self._further_engines()

    def _further_engines(self) -> tuple[worker.FurtherEngine, ...]:
        first, given = self.preparing.first, self.preparing.engines
        tools = find_dump_tools(Path(self.settings.engine_bin) if self.settings.engine_bin else None) if given else ()
        return tuple(
            worker.FurtherEngine(
                name,
                service_login(conninfo, first.installation),
                tools,
                Tally(self.settings.workers, shared=True),
            )
            for name, conninfo in given.items()
        )

    def start_workers(self) -> None:
        """Forks the workers and waits until all of them serve."""
        self._workers = [self._fork(number, first=True) for number in range(self.settings.workers)]
        deadline = time.monotonic() + _READY_TIMEOUT_S
        for started in self._workers:
            self._wait_ready(started, deadline)

    def _fork(self, number: int, *, first: bool = False) -> WorkerProcess:
        ready_read, ready_write = os.pipe()
        stacks_read, stacks_write = os.pipe()
        os.set_blocking(ready_read, False)
        pid = os.fork()
        if pid == 0:
            self._be_worker(number, ready_write, stacks_write, first)
        os.close(ready_write)
        os.close(stacks_write)
        now = time.monotonic()
        return WorkerProcess(number, pid, ready_read, stacks_read, now, StandstillClock(now))

    def _be_worker(self, number: int, ready_write: int, stacks_write: int, first: bool) -> None:
        """Never returns: the supervisor's own clean-up must not run twice."""
        status = 1
        try:
            os.setsid()
            keep = {
                0,
                1,
                2,
                self._life[0],
                ready_write,
                stacks_write,
                self._tally.lock,
                *(engine.tally.lock for engine in self._engines),
                *(sock.fileno() for sock in self.sockets.values()),
            }
            close_others(keep)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            offer_stacks(stacks_write)
            worker.run(
                worker.WorkerInput(
                    self.settings,
                    self.installed.conninfo,
                    self.replicas,
                    self.engine.dump_tools,
                    self.sockets,
                    self.edge.addresses,
                    self.edge.upstream,
                    self.tls,
                    self.edge.cors_origins,
                    self._life[0],
                    lambda: os.close(os.dup(ready_write)) if os.write(ready_write, b"r") != 1 else None,
                    self._tally,
                    number,
                    self._balances,
                    alone=first and not self.settings.engine,
                    board=self._board,
                    beats=self._beats,
                    engines=self._engines,
                    walls=self.installed.walls,
                    weaknesses=self.installed.weaknesses,
                )
            )
            status = 0
        except BaseException:  # noqa: BLE001 - a forked child must not unwind into its parent's code
            _log.error("the worker failed", exc_info=True)
        finally:
            os._exit(status)

    def _wait_ready(self, started: WorkerProcess, deadline: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(started.ready, selectors.EVENT_READ)
            if not selector.select(max(deadline - time.monotonic(), 0)) or os.read(started.ready, 1) != b"r":
                raise ServeError("the worker did not start; the log above says why")
        started.serves = True

    def watch(self) -> None:
        """Until a signal says stop: restarts what died, or stands still."""
        bounded_at = reloaded_at = time.monotonic()
        while not self.stopped():
            self._watch_engine()
            self._keep_reserve()
            self.preparing.watch(self._life[0])
            for number in range(len(self._workers)):
                self._watch_worker(number)
            if self._reload_asked or time.monotonic() - reloaded_at > _CERTIFICATE_EVERY_S:
                reloaded_at = time.monotonic()
                self._reload_certificate()
            if time.monotonic() - bounded_at > _LOG_BOUND_EVERY_S:
                bounded_at = time.monotonic()
                self.engine.bound_log()
        self.preparing.stop()
        self._stop_workers()

    def ask_reload(self) -> None:
        """Of the certificate, when `watch` comes around to it."""
        self._reload_asked = True

    def _reload_certificate(self) -> None:
        """Lets the workers take up a certificate that has changed; one of our own is renewed here when it is time."""
        self._reload_asked = False
        if self.tls is None:
            return
        try:
            _self_signed(self.settings, self.edge)
        except ServeError as exc:
            _log.error("the certificate could not be renewed", reason=str(exc))
        for watched in self._workers:
            if not watched.dead:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(watched.pid, signal.SIGHUP)

    def _watch_engine(self) -> None:
        status = self.engine.poll()
        if status is None:
            return
        _log.error("the engine died, starting it again", status=status)
        try:
            self.engine.restart()
        except BundledEngineError as exc:
            _log.error("the engine did not start", reason=str(exc))
            time.sleep(_RESTART_PAUSE_S)
        else:
            _log.warning("the engine is back", pid=self.engine.pid)

    def _keep_reserve(self) -> None:
        """Room for the engine to start in, where others have filled its disk."""
        match self.engine.keep_reserve():
            case False:
                _log.error("the disk is full; the reserve is given up, so that room can be made")
            case True:
                _log.info("room is kept in reserve on the disk")

    def _watch_worker(self, number: int) -> None:
        """Starts a dead one again, at once if it had served for a while; nobody waits for that."""
        watched = self._workers[number]
        if not watched.dead:
            pid, status = os.waitpid(watched.pid, os.WNOHANG)
            if pid == 0:
                if not watched.killed and watched.stands_still(self._beats.read(number), time.monotonic()):
                    self._beats.count_replaced()
                    self._kill(watched, "the worker stands still and is killed")
                return
            watched.dead = True
            watched.close()
            exit_code = os.waitstatus_to_exitcode(status)
            _log.error("the worker died, starting it again", worker=number, status=exit_code)
        if time.monotonic() - watched.started_at >= _WORKER_PAUSE_S:
            self._workers[number] = self._fork(number)

    def _kill(self, watched: WorkerProcess, reason: str) -> None:
        """Kills it before the log is written to: that could be what it waits for."""
        stacks = read_stacks(watched.pid, watched.stacks)
        os.kill(watched.pid, signal.SIGKILL)
        watched.killed = True
        _log.error(reason, worker=watched.number, serves=watched.serves, stacks=stacks)

    def _stop_workers(self) -> None:
        running = [watched for watched in self._workers if not watched.dead]
        for watched in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(watched.pid, signal.SIGTERM)
        deadline = time.monotonic() + self.settings.stop_timeout_s + _STOP_MARGIN_S
        while running := [watched for watched in running if os.waitpid(watched.pid, os.WNOHANG)[0] == 0]:
            if time.monotonic() > deadline:
                for watched in running:
                    self._kill(watched, "the worker did not stop in time and is killed")
                    os.waitpid(watched.pid, 0)
                return
            time.sleep(_STOP_POLL_S)


@contextlib.contextmanager
def _signals() -> Iterator[Callable[[], bool]]:
    """A function that waits a moment, or until a signal comes, and says whether to stop."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    asked: list[int] = []
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: asked.append(received))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(read, selectors.EVENT_READ)

    def stopped() -> bool:
        if selector.select(0 if asked else _WATCH_S):
            with contextlib.suppress(BlockingIOError):
                os.read(read, 4096)
        return bool(asked)

    try:
        yield stopped
    finally:
        signal.set_wakeup_fd(-1)
        selector.close()
        os.close(read)
        os.close(write)


def _check_address(settings: Settings) -> None:
    try:
        loopback = settings.host == "localhost" or ipaddress.ip_address(settings.host).is_loopback
    except ValueError:
        raise ServeError(f"--host {settings.host!r} is not an IP address") from None
    if not loopback and not settings.behind_proxy and not _with_tls(settings):
        raise ServeError(
            f"--host {settings.host} would serve plain HTTP to other machines. Serve HTTPS with --tls-cert and"
            " --tls-key, or with --tls self-signed; or put a proxy that terminates TLS in front and say"
            " --behind-proxy; or bind 127.0.0.1."
        )


def _check_backups(settings: Settings) -> None:
    if not settings.backup_dir:
        return
    directory = Path(settings.backup_dir).expanduser()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise ServeError(f"--backup-dir {directory} cannot be made: {exc.strerror}") from exc
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ServeError(f"--backup-dir {directory} cannot be written to by this user")


def _check_tiers(settings: Settings) -> None:
    try:
        read_tiers(settings.tiers)
    except ValueError as exc:
        raise ServeError(f"--tiers {settings.tiers!r} cannot be used: {exc}") from exc


def _check_traces(settings: Settings) -> None:
    if not settings.traces_endpoint:
        return
    if urlsplit(settings.traces_endpoint).scheme not in ("http", "https"):
        raise ServeError(f"--traces-endpoint {settings.traces_endpoint!r} is not a URL of http or https")
    if any(find_spec(name) is None for name in ("opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter")):
        raise ServeError("--traces-endpoint needs OpenTelemetry: install tuplegate[otel]")


def _with_tls(settings: Settings) -> bool:
    return bool(settings.tls_cert or settings.tls_key or settings.tls)


def _given_tls(settings: Settings) -> TlsFiles | None:
    """The certificate that the settings name, tried out."""
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise ServeError("--tls-cert and --tls-key go together")
    if settings.tls_cert and settings.tls:
        raise ServeError("--tls self-signed and --tls-cert exclude each other")
    if not settings.tls_cert:
        return None
    files = TlsFiles(Path(settings.tls_cert).expanduser().absolute(), Path(settings.tls_key).expanduser().absolute())
    try:
        TlsContext(files)
    except TlsError as exc:
        raise ServeError(str(exc)) from exc
    return files


def _self_signed(settings: Settings, edge: Edge) -> TlsFiles | None:
    """The certificate of the service's own making, where it is asked for; made or renewed if need be."""
    if not settings.tls:
        return None
    names = [settings.host, *(address.host for address in edge.addresses.values())]
    try:
        files = self_signed.provide(settings.data_dir.absolute() / "tls", names, datetime.now(UTC))
        TlsContext(files)
    except TlsError as exc:
        raise ServeError(str(exc)) from exc
    return files


def _edge(settings: Settings, sockets: dict[str, socket.socket]) -> Edge:
    given = {"data": settings.data_url, "alias": settings.alias_url, "control": settings.control_url}
    addresses = {plane: _parsed(url, f"--{plane}-url") for plane, url in given.items() if url}
    bound = {plane: parse_origin(_address(sock, with_tls=_with_tls(settings))) for plane, sock in sockets.items()}
    upstream = None
    if "alias" in sockets:
        if "data" not in addresses | bound or "control" not in addresses | bound:
            raise ServeError("an alias without the other planes needs --data-url and --control-url")
        own = "data" not in addresses
        upstream = worker.Upstream(_reachable(bound["data"]) if own else addresses["data"], own)
        if upstream.origin in (bound["alias"], addresses.get("alias")):
            raise ServeError(f"--data-url {upstream.origin} is the alias itself, which would forward to itself")
    addresses = bound | addresses
    origins = {str(_parsed(part, "--cors-origins")) if part != "*" else part for part in _parts(settings.cors_origins)}
    if "control" in addresses:
        origins.add(str(addresses["control"]))
    return Edge(addresses, upstream, frozenset(origins))


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _parsed(url: str, flag: str) -> Origin:
    try:
        return parse_origin(url)
    except ValueError:
        raise ServeError(f"{flag} {url!r} is not an address of the form https://host or https://host:port") from None


def _reachable(bound: Origin) -> Origin:
    """An address to connect to, of one that may stand for all of the machine."""
    if ipaddress.ip_address(bound.host).is_unspecified:
        return replace(bound, host="::1" if ":" in bound.host else "127.0.0.1")
    return bound


def _bind_planes(settings: Settings) -> dict[str, socket.socket]:
    """A listening socket for every plane that is to be served."""
    planes = [plane.strip() for plane in settings.planes.split(",")]
    unknown = [plane for plane in planes if plane not in PLANES]
    if unknown or len(set(planes)) != len(planes):
        raise ServeError(f"--planes {settings.planes!r} must name some of {', '.join(PLANES)}, each once")
    ports = {"data": settings.data_port, "alias": settings.alias_port, "control": settings.control_port}
    return {plane: _bind(settings.host, ports[plane], f"--{plane}-port") for plane in PLANES if plane in planes}


def _bind_metrics(settings: Settings) -> socket.socket:
    """Plain HTTP without a token, so it is for this machine, or for a proxy that judges who may read."""
    host, _, port = settings.metrics_address.rpartition(":")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        number = int(port)
        if not 0 <= number <= 65535:
            raise ValueError(port)
    except ValueError:
        raise ServeError(
            f"--metrics-address {settings.metrics_address!r} is not of the form 127.0.0.1:9090 or [::1]:9090"
        ) from None
    if not address.is_loopback and not settings.behind_proxy:
        raise ServeError(
            f"--metrics-address {settings.metrics_address} would show the metrics to other machines without asking"
            " who they are. Bind it to 127.0.0.1, or let Prometheus ask the control plane with an operator's token; or"
            " put a proxy that judges in front and say --behind-proxy."
        )
    return _bind(str(address), number, "--metrics-address")


def _bind(host: str, port: int, flag: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with contextlib.suppress(OSError):  # what a client does not take waits in the worker, where it is counted
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_MAX)
    try:
        sock.bind((host, port))
    except OSError as exc:
        sock.close()
        raise ServeError(f"cannot bind {host}:{port}: {exc.strerror}. Choose another with {flag}.") from exc
    sock.listen(1024)
    sock.setblocking(False)
    return sock


def _address(sock: socket.socket, *, with_tls: bool) -> str:
    host, port = sock.getsockname()[:2]
    scheme = "https" if with_tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _announce(
    sockets: dict[str, socket.socket], tls: TlsFiles | None, key: Token | None, *, is_self_signed: bool
) -> bool:
    """One `name: value` a line, for people and for scripts. Whether there is somebody to read it."""
    addresses = {p: _address(sock, with_tls=tls is not None and p != "metrics") for p, sock in sockets.items()}
    trust = f" --cacert {tls.certificate}" if tls is not None and is_self_signed else ""
    lines = [f"{plane}: {address}" for plane, address in addresses.items()]
    if tls is not None and is_self_signed:
        lines.append(f"fingerprint: {fingerprint(tls.certificate.read_text())}")
    if key is not None:
        lines.append(f"key: {key.text}")
        if "data" in addresses:
            lines.append(
                f"try: curl{trust} {addresses['data']}/v1/query -H 'Authorization: Bearer {key.text}'"
                """ -H 'Content-Type: application/json' -d '{"sql": "select version()"}'"""
            )
    try:
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        return False
    return True
