"""Starts and stops the servers of cells as the fleet decides: the supervisor's part.

Contract: one thread calls everything here, `tick` several times a second, with a clock that never goes back. Nothing
blocks but `close`, which waits for a bounded time until all servers have ended. A tick reads some small files of each
cell that is up; sleeping cells cost nothing.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from tuplegate.engine.cells.fleet import CellState, Fleet, Halt
from tuplegate.engine.cells.layout import CellError
from tuplegate.engine.cells.server import CellServer, ServerReport, ServerState

_log = structlog.get_logger()

CLOSE_S_MAX = 30.0
"""Longer than the slowest server takes to end, which has to be killed."""

_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Tidings:
    """Everything that workers must be told, by ids of cells."""

    awake: tuple[str, ...] = ()
    ask_to_rest: tuple[str, ...] = ()
    ask_to_leave: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    halted: tuple[tuple[str, Halt], ...] = ()


class Keeper:
    """Starts, watches and stops the servers of cells. `make_server` returns the server of a cell, not yet started."""

    def __init__(self, fleet: Fleet, make_server: Callable[[str], CellServer]) -> None:
        self.fleet = fleet
        self._make_server = make_server
        self._servers: dict[str, CellServer] = {}
        self._killed: dict[str, str] = {}
        """The reasons why servers were killed that have not ended yet."""

    def kill(self, cell_id: str, reason: str = "") -> None:
        """Kill the server of a cell; its data are then as after a crash. With a reason, this counts as a failure."""
        if server := self._servers.get(cell_id):
            if reason:
                self._killed.setdefault(cell_id, reason)
            server.kill()

    def find_pid(self, cell_id: str) -> int:
        """Return the process id of the cell's server, or 0 if it has none."""
        server = self._servers.get(cell_id)
        return 0 if server is None else server.pid

    def tick(self, now: float) -> Tidings:
        """Look at all servers, and carry out the fleet's decision. Return what workers must be told."""
        awake: list[str] = []
        failed: list[str] = []
        for cell_id, server in list(self._servers.items()):
            self._look(cell_id, server.look(now), now, awake, failed)
        decision = self.fleet.decide(now)
        for cell_id in decision.stop:
            self._servers[cell_id].stop(now)
        for cell_id in decision.start:
            self._servers[cell_id] = self._make_server(cell_id)
            self._start(cell_id, now, failed)
        ended = (*decision.failed, *failed)
        return Tidings(
            awake=tuple(cell_id for cell_id in awake if cell_id not in decision.taken),
            ask_to_rest=decision.ask_to_rest,
            ask_to_leave=decision.ask_to_leave,
            taken=decision.taken,
            busy=decision.busy,
            failed=ended,
            withheld=decision.withheld,
            halted=decision.halted,
        )

    def close(self) -> None:
        """Stop all servers at the same time, and wait until they have ended. Kill those that take too long."""
        deadline = time.monotonic() + CLOSE_S_MAX
        for server in self._servers.values():
            server.stop(time.monotonic())
        while running := [server for server in self._servers.values() if server.pid]:
            now = time.monotonic()
            for server in running:
                if now >= deadline:
                    server.kill()
                server.look(now)
            time.sleep(_POLL_S)
        self._servers.clear()

    def _start(self, cell_id: str, now: float, failed: list[str]) -> None:
        try:
            self._servers[cell_id].start(now)
        except CellError as exc:
            self._end(cell_id, str(exc), now, failed)

    def _look(self, cell_id: str, report: ServerReport, now: float, awake: list[str], failed: list[str]) -> None:
        if report.state is ServerState.HELD:
            self._start(cell_id, now, failed)
        elif report.state is ServerState.READY and self.fleet.find_state(cell_id) is CellState.STARTING:
            self.fleet.note_ready(cell_id, now)
            awake.append(cell_id)
        elif report.state in (ServerState.ENDED, ServerState.DOWN):
            reason = f"the server ended with status {report.status}: {report.log_tail}"
            self._end(cell_id, reason, now, failed)

    def _end(self, cell_id: str, reason: str, now: float, failed: list[str]) -> None:
        del self._servers[cell_id]
        is_killed = cell_id in self._killed
        reason = self._killed.pop(cell_id, reason)
        self.fleet.note_ended(cell_id, now, reason, is_killed=is_killed)
        if self.fleet.find_state(cell_id) is CellState.FAILED:
            _log.error("the server of a database died, or did not start", cell=cell_id, reason=reason)
            failed.append(cell_id)
