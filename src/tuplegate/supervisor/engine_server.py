"""Starts and stops the bundled server, and reads the address of a user's own engine from the settings."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from tuplegate.engine.bundled.binaries import (
    Binaries,
    DumpTool,
    choose_custom,
    choose_wheel,
    find_dump_tool,
    find_dump_tools,
)
from tuplegate.engine.bundled.data_directory import BundledEngineError, DataDirectory
from tuplegate.engine.bundled.disk import Disk, Reserve
from tuplegate.engine.bundled.extensions import trust_extensions
from tuplegate.engine.bundled.sandbox.bounds import find_missing_bounds
from tuplegate.engine.bundled.sandbox.control_groups import ControlGroups, open_groups
from tuplegate.engine.bundled.sandbox.walls import find_gaps
from tuplegate.engine.cells.catalog import CatalogServer, check_release, find_catalog
from tuplegate.engine.cells.databases import CellDatabases, Installation
from tuplegate.engine.cells.desk import Desk
from tuplegate.engine.cells.fleet import Fleet
from tuplegate.engine.cells.keeper import Keeper
from tuplegate.engine.cells.layout import DATA, CellsDirectory
from tuplegate.engine.cells.line import CellLine
from tuplegate.engine.cells.making import make_catalog, remove_leftovers, remove_old_spares
from tuplegate.engine.cells.owner import CellsOwner
from tuplegate.engine.cells.server import CellServer, bound_mapped_memory
from tuplegate.engine.cells.template import SharedCells, Template, provide_template, share_cells
from tuplegate.engine.opening import read_address, read_cell_settings, read_limits, read_replica_address
from tuplegate.engine.port import BadUrl
from tuplegate.settings import Settings
from tuplegate.supervisor.serve_error import ServeError

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Bundled:
    """The bundled engine while it runs: the server of the catalog, and the cells."""

    catalog: CatalogServer
    directory: CellsDirectory
    template: Template
    desk: Desk
    dump_tools: tuple[DumpTool, ...]

    @property
    def conninfo(self) -> str:
        """The conninfo of the catalog's superuser."""
        return find_catalog(self.directory.path)

    def owner(self, settings: Settings) -> CellsOwner:
        """Return the engine as the supervisor prepares it."""
        limits = read_limits(settings)

        def make_databases(secret: bytes, line: CellLine) -> CellDatabases:
            installation = Installation(secret, self.directory, self.template, self.dump_tools, limits)
            return CellDatabases(installation, line, starts_servers=True)

        return CellsOwner(self.conninfo, self.desk, settings.cell_wake_timeout_s, make_databases)

    def share(self, settings: Settings) -> SharedCells:
        """Return the parts of the cells that workers share."""
        return share_cells(self.directory, self.template, self.dump_tools, settings.workers)


def open_server(settings: Settings) -> contextlib.AbstractContextManager[Bundled | None]:
    """Start the bundled engine for a service; give None if somebody else runs the engine."""
    return contextlib.nullcontext() if settings.engine else _open_for_service(settings)


@contextlib.contextmanager
def _open_for_service(settings: Settings) -> Iterator[Bundled]:
    with open_bundled(settings, open_groups()) as bundled:
        for missing in find_missing_bounds():
            _log.info(missing)
        yield bundled


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
def open_bundled(settings: Settings, groups: ControlGroups | None = None) -> Iterator[Bundled]:
    """Start the bundled engine on a data directory that nobody else uses, and stop it when the block is left.

    `groups` are the control groups of the servers of databases.
    """
    data = DataDirectory(settings.data_dir.absolute())
    try:
        bundled = _prepare(settings, data, groups)
        with contextlib.ExitStack() as stack:
            stack.callback(bundled.catalog.stop)
            stack.callback(bundled.desk.close)
            bundled.catalog.start()
            yield bundled
    except BundledEngineError as exc:
        raise ServeError(str(exc)) from exc
    finally:
        data.release()


def _prepare(settings: Settings, data: DataDirectory, groups: ControlGroups | None) -> Bundled:
    """Take the data directory, and make in it what servers need before they start. Raises BundledEngineError."""
    try:
        data.take(settings.engine_user or None)
        directory = CellsDirectory(data.path)
        directory.make()
        for warning in (*remove_leftovers(directory), *find_gaps()):
            _log.warning(warning)
        programs = _choose_programs(settings, data)
        if directory.catalog.exists():
            check_release(directory.catalog / DATA, programs)
        cell_settings = read_cell_settings(settings, trust_extensions(programs, data), groups)
        make_catalog(directory, programs, data.account)

        def make_server(cell: str) -> CellServer:
            return CellServer(directory.locate(cell), programs, cell_settings)

        template = provide_template(directory, programs, data.account, make_server)
        for failure in remove_old_spares(directory, template.form):
            _log.warning(failure)
        cell_settings = bound_mapped_memory(cell_settings, programs, template.data.parent)
    except OSError as exc:
        raise BundledEngineError(f"cannot prepare {data.path}: {exc}") from exc
    least = settings.disk_free_mb_min * 2**20
    server = CellServer(directory.catalog, programs, replace(cell_settings, oom_score=0, groups=None))
    catalog = CatalogServer(server, Reserve(Disk(data.path, least)) if least else None)
    starting_max = max(1, len(os.sched_getaffinity(0)) // 2)
    fleet = Fleet(directory.list_cells(), settings.cells_awake_max, settings.cell_idle_s, starting_max)
    return Bundled(catalog, directory, template, Desk(Keeper(fleet, make_server)), find_dump_tool(programs, data))


def _choose_programs(settings: Settings, data: DataDirectory) -> Binaries:
    if not settings.engine_bin:
        return choose_wheel(data)
    programs = choose_custom(Path(settings.engine_bin), data)
    if programs.warning:
        _log.warning(programs.warning)
    return programs


def find_programs(settings: Settings) -> tuple[DumpTool, ...]:
    """Return the programs that dump databases of an engine elsewhere."""
    return find_dump_tools(Path(settings.engine_bin) if settings.engine_bin else None)
