"""The catalog's server: a cell beside those of databases, which no tenant's statement reaches.

The supervisor keeps it up while the service runs: it restarts a server that died, and reserves some room on the disk
for that. The superuser's password is in a file that no cell can read.
"""

import time
from pathlib import Path

import structlog

from tuplegate.engine.bundled.binaries import Binaries
from tuplegate.engine.bundled.disk import Reserve
from tuplegate.engine.cells.layout import DATA, RUN, CellError, CellsDirectory
from tuplegate.engine.cells.server import SUPERUSER, CellServer, ServerReport, ServerState, start_server, stop_server
from tuplegate.engine.cells.template import conninfo_of

_log = structlog.get_logger()

_RESTART_PAUSE_S = 1.0


def find_catalog(data_dir: Path) -> str:
    """Return the conninfo of the catalog's superuser. Raises OSError if the catalog was not made yet."""
    directory = CellsDirectory(data_dir)
    return conninfo_of(directory.catalog / RUN, SUPERUSER, directory.catalog_password.read_text("ascii"))


def check_release(data: Path, programs: Binaries) -> None:
    """Raise CellError if a server's data belong to another major release than the programs."""
    try:
        made_by = (data / "PG_VERSION").read_text("ascii").strip()
    except FileNotFoundError:
        raise CellError(
            f"{data} is not PostgreSQL's data (no PG_VERSION): restore it, or choose another --data-dir"
        ) from None
    if made_by != str(programs.major):
        raise CellError(
            f"{data} was made by PostgreSQL {made_by}, these binaries are {programs.major}: point --engine-bin at"
            f" PostgreSQL {made_by} to go on with it, or to dump its databases (tuplegate dump) for a new --data-dir"
        )


class CatalogServer:
    """Keeps the catalog's server up. `start` and `stop` block until they are done; `watch` does not block."""

    def __init__(self, server: CellServer, reserve: Reserve | None) -> None:
        self._server = server
        self._reserve = reserve
        self._is_ready = False
        self._next_start_at = 0.0

    @property
    def pid(self) -> int:
        return self._server.pid

    @property
    def data(self) -> Path:
        return self._server.cell / DATA

    def start(self) -> None:
        """Start the server for the first time. Raises CellError."""
        self._make_room()
        start_server(self._server)
        self._is_ready = True

    def stop(self) -> None:
        stop_server(self._server)

    def watch(self, now: float) -> None:
        """Restart a dead server, and keep room on the disk for that."""
        report = self._server.look(now)
        match report.state:
            case ServerState.READY if not self._is_ready:
                self._is_ready = True
                _log.warning("the engine is back", pid=self._server.pid)
            case ServerState.ENDED:
                self._note_end(report, now)
        if self._server.pid == 0 and now >= self._next_start_at:
            self._start_again(now)
        if self._reserve is not None:
            match self._reserve.keep():
                case False:
                    _log.error("the disk is full; the reserve is given up, so that room can be made")
                case True:
                    _log.info("room is kept in reserve on the disk")

    def _note_end(self, report: ServerReport, now: float) -> None:
        if self._is_ready:
            self._is_ready = False
            _log.error("the engine died, starting it again", status=report.status)
        else:
            self._next_start_at = now + _RESTART_PAUSE_S
            _log.error("the engine did not start", status=report.status, reason=report.log_tail)

    def _start_again(self, now: float) -> None:
        self._make_room()
        try:
            self._server.start(now)
        except CellError as exc:
            self._next_start_at = time.monotonic() + _RESTART_PAUSE_S
            _log.error("the engine did not start", reason=str(exc))

    def _make_room(self) -> None:
        if self._reserve is not None:
            self._reserve.give_up_for_start()
