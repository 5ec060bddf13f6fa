"""`tuplegate serve`: starts the service as its supervisor, which owns the data directory, the engine and the sockets.

It does no work of a request itself, so that no request can take the engine down with it. A dead engine or worker is
restarted and the fact is logged; the other workers continue meanwhile, and take new connections, since all of them
listen on the same sockets. Its children do not outlive it, not even after kill -9: the kernel ends the engine, and the
workers notice a pipe that closes.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from tuplegate import logs
from tuplegate.access.quotas import read_tiers
from tuplegate.access.tokens import Token
from tuplegate.engine.opening import WEAKNESSES_BESIDE, SharedEngine, find_owner, owner_of, share_engine
from tuplegate.engine.port import FIRST_ENGINE, BadUrl, EngineFailure, EngineOwner, EngineRefused
from tuplegate.further_engines import EnginePreparation, read_engines
from tuplegate.http.origins import Origin
from tuplegate.http.tls.certificates import TlsFiles, fingerprint
from tuplegate.installation import Installed, install, show_first_key
from tuplegate.open_files import WantedFiles, raise_limit
from tuplegate.settings import Settings
from tuplegate.supervisor.certificates import provide_self_signed, read_certificate
from tuplegate.supervisor.edge import check_address, read_edge
from tuplegate.supervisor.engine_server import (
    Bundled,
    find_programs,
    open_server,
    read_engine_address,
    read_replica_addresses,
)
from tuplegate.supervisor.serve_error import ServeError
from tuplegate.supervisor.signals import watch_signals
from tuplegate.supervisor.sockets import bind_metrics, bind_planes, bind_workers, find_address
from tuplegate.supervisor.workers import Supervisor

_log = structlog.get_logger()


def serve(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT. Raises ServeError."""
    logs.configure(settings)
    check_address(settings)
    _check_traces(settings)
    _check_backups(settings)
    _check_tiers(settings)
    replicas = read_replica_addresses(settings)
    given_tls = read_certificate(settings)
    further = _read_further(settings)
    sockets = bind_planes(settings)
    edge = read_edge(settings, sockets)
    if settings.metrics_address:
        sockets["metrics"] = bind_metrics(settings)
    with watch_signals() as stopped, open_server(settings) as bundled, bind_workers(settings.workers) as doors:
        if stopped():
            return
        if bundled is None:
            owner = asyncio.run(find_owner(read_engine_address(settings), settings))
        else:
            owner = bundled.owner(settings)
        installed, connections = _install(settings, owner)
        settings = _without_logins(settings, owner, further, connections)
        settings = replace(_within_file_limit(settings, sockets), replicas="")
        if further and replicas:
            _log.warning("with several engines nothing is read from replicas: see docs/operations.md")
        preparing = EnginePreparation(installed, further)
        preparing.try_all()
        engines = _share_engines(settings, bundled, installed, replicas, further)
        tls = given_tls or provide_self_signed(settings, edge.hosts)
        cells = None if bundled is None else bundled.share(settings)
        supervisor = Supervisor(settings, bundled, cells, engines, sockets, edge, tls, stopped, preparing, doors)
        supervisor.start_workers()
        if tls is not None:
            signal.signal(signal.SIGHUP, lambda *_: supervisor.ask_reload())
        console = edge.addresses["control"] if "control" in sockets else None
        announce = partial(_announce, sockets, tls, console, is_self_signed=bool(settings.tls))
        if installed.has_key:
            announce(None)
        else:
            _show_first_key(owner, announce)
        supervisor.watch()


def _without_logins(settings: Settings, owner: EngineOwner, further: Collection[str], connections: int) -> Settings:
    """Return the settings for workers, without any owner's login; remove it from the environment, too."""
    for name in ("TUPLEGATE_ENGINE", "TUPLEGATE_ENGINES", "TUPLEGATE_REPLICAS"):
        os.environ.pop(name, None)
    place = owner.place if settings.engine else ""
    return replace(settings, engine_connections_max=connections, engine=place, engines=" ".join(further))


def _share_engines(
    settings: Settings,
    bundled: Bundled | None,
    installed: Installed,
    replicas: tuple[str, ...],
    further: Mapping[str, EngineOwner],
) -> tuple[SharedEngine, ...]:
    """Return the parts of each engine that workers share."""
    secret = installed.installation.secret
    programs = find_programs(settings) if further or bundled is None else ()
    return (
        share_engine(
            FIRST_ENGINE,
            installed.login,
            programs,
            settings,
            is_bundled=bundled is not None,
            replicas=replicas,
            weaknesses=installed.weaknesses,
        ),
        *(share_engine(name, owner.login(secret), programs, settings) for name, owner in further.items()),
    )


def _read_further(settings: Settings) -> dict[str, EngineOwner]:
    try:
        return {name: owner_of(address, settings) for name, address in read_engines(settings.engines).items()}
    except BadUrl as exc:
        raise ServeError(f"--engines cannot be used: {exc}") from exc


def _install(settings: Settings, owner: EngineOwner) -> tuple[Installed, int]:
    """Bring the installation up to date; return it, and the number of connections that the engine has for the
    service."""
    if not settings.engine:
        try:
            return _install_first(settings, owner), settings.engine_connections_max
        except EngineRefused as exc:
            raise ServeError(f"the engines cannot be used:{exc}") from exc
        except (EngineFailure, RuntimeError) as exc:
            raise ServeError(f"the data directory {settings.data_dir} cannot be prepared: {exc}") from exc
    try:
        found = asyncio.run(owner.examine(settings.engine_connections_max))
        for warning in found.warnings:
            _log.warning(warning)
        return _install_first(settings, owner), min(found.connections_free, settings.engine_connections_max)
    except EngineRefused as exc:
        raise ServeError(f"the engine at {owner.place} cannot be used:{exc}") from exc
    except (EngineFailure, RuntimeError) as exc:
        raise ServeError(f"the engine at {owner.place} cannot be prepared: {exc}") from exc


def _install_first(settings: Settings, owner: EngineOwner) -> Installed:
    beside = WEAKNESSES_BESIDE if settings.engines else ()
    installed = asyncio.run(install(owner, beside, accept_weaker_walls=settings.accept_weaker_walls))
    for weakness in installed.weaknesses:
        _log.warning("tenants are not kept apart in full", weakness=weakness.name, meaning=weakness.meaning)
    return installed


def _show_first_key(owner: EngineOwner, announce: Callable[[Token | None], bool]) -> None:
    try:
        if not asyncio.run(show_first_key(owner, announce)):
            announce(None)
    except EngineFailure as exc:
        raise ServeError(f"the engine was lost before the first key was made: {exc}. Start the service again.") from exc


def _within_file_limit(settings: Settings, planes: Collection[str]) -> Settings:
    """Return the settings with no more HTTP connections than there can be files."""
    lines = len(planes) + ("alias" in planes)
    servers = 1 + len(read_replica_addresses(settings)) + len(settings.engines.split())
    wanted = WantedFiles(settings.http_connections_max, lines, settings.engine_connections_max * servers)
    return replace(settings, http_connections_max=raise_limit(wanted))


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


def _announce(
    sockets: dict[str, socket.socket],
    tls: TlsFiles | None,
    console: Origin | None,
    key: Token | None,
    *,
    is_self_signed: bool,
) -> bool:
    """Print one `name: value` a line, for people and for scripts. Return whether somebody could read it.

    `console` is the address that its page must come from; behind a proxy, that is not the bound one.
    """
    addresses = {p: find_address(sock, with_tls=tls is not None and p != "metrics") for p, sock in sockets.items()}
    if console is not None:
        addresses["console"] = f"{console}/console"
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
