"""Starts and stops the bundled server, and reads from the settings where an engine of the user's own is."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import structlog

from tuplegate.engine.bundled.binaries import DumpTool, find_dump_tools
from tuplegate.engine.bundled.server import BundledEngineError, BundledServer, BundledSettings
from tuplegate.engine.opening import read_address, read_replica_address
from tuplegate.engine.port import BadUrl
from tuplegate.settings import Settings
from tuplegate.supervisor.failures import ServeError

_log = structlog.get_logger()


def open_server(settings: Settings) -> contextlib.AbstractContextManager[BundledServer | None]:
    """Start the bundled server; give None where somebody else runs the engine."""
    return contextlib.nullcontext() if settings.engine else open_bundled(settings)


def read_engine_address(settings: Settings) -> str:
    """Return the address of the engine that the setting `engine` names."""
    try:
        return read_address(settings.engine)
    except BadUrl as exc:
        raise ServeError(f"the URL given as --engine cannot be used: {exc}") from exc


def read_replica_addresses(settings: Settings) -> tuple[str, ...]:
    """Return the addresses of the standbys, without a login."""
    given = [url.strip() for url in settings.replicas.split(",") if url.strip()]
    try:
        return tuple(read_replica_address(url) for url in given)
    except BadUrl as exc:
        raise ServeError(f"a URL given as --replicas cannot be used: {exc}") from exc


@contextlib.contextmanager
def open_bundled(settings: Settings) -> Iterator[BundledServer]:
    """Start the bundled server on a data directory that nobody else uses, and stop it when the block is left."""
    engine = BundledServer(read_bundled_settings(settings))
    try:
        engine.prepare()
        for warning in engine.warnings:
            _log.warning(warning)
        try:
            engine.start()
            yield engine
        finally:
            engine.stop()
    except BundledEngineError as exc:
        raise ServeError(str(exc)) from exc
    finally:
        engine.release()


def read_bundled_settings(settings: Settings) -> BundledSettings:
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


def find_programs(settings: Settings) -> tuple[DumpTool, ...]:
    """Return the programs that dump databases of an engine elsewhere."""
    return find_dump_tools(Path(settings.engine_bin) if settings.engine_bin else None)
