"""Keeps the servers of all cells as the fleet's rules decide: the supervisor's part.

Contract: one thread calls everything here, `tick` several times a second, with a clock that never goes back. Nothing
blocks but `close`, which waits until all servers have ended, for a bounded time. A tick reads some small files of each
cell that is up; cells that sleep cost nothing.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from tuplegate.engine.cells.fleet import CellState, Fleet
from tuplegate.engine.cells.layout import CellError
from tuplegate.engine.cells.server import CellServer, ServerReport, ServerState

CLOSE_S_MAX = 30.0
"""More than a server takes that has to be killed in the end."""

_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Tidings:
    """Everything that workers must be told, by ids of cells."""

    awake: tuple[str, ...] = ()
    ask_to_rest: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


class Keeper:
    """Starts, watches and stops the servers of cells. `make_server` gives the server of a cell, without starting it."""

    def __init__(self, fleet: Fleet, make_server: Callable[[str], CellServer]) -> None:
        self._fleet = fleet
        self._make_server = make_server
        self._servers: dict[str, CellServer] = {}

    def want(self, cell_id: str, now: float) -> bool:
        """Note that a worker waits for the cell. Return whether it is awake; otherwise a tick tells later."""
        return self._fleet.want(cell_id, now)

    def note_use(self, cell_id: str, worker: int, now: float, *, in_use: bool) -> None:
        """Note that a worker has begun to use the cell, or has stopped but keeps its connections."""
        self._fleet.note_use(cell_id, worker, now, in_use=in_use)

    def note_rest(self, cell_id: str, worker: int) -> None:
        """Note that a worker has closed its connections to the cell."""
        self._fleet.note_rest(cell_id, worker)

    def forget_worker(self, worker: int, now: float) -> None:
        """Note that a worker has ended, and its uses of all cells with it."""
        self._fleet.forget_worker(worker, now)

    def find_pid(self, cell_id: str) -> int:
        """Return the process id of the cell's server, or 0 if it has none."""
        server = self._servers.get(cell_id)
        return 0 if server is None else server.pid

    def tick(self, now: float) -> Tidings:
        """Look at all servers, and do what the rules decide. Return what workers must be told."""
        awake: list[str] = []
        failed: list[str] = []
        for cell_id, server in list(self._servers.items()):
            self._look(cell_id, server.look(now), now, awake, failed)
        decision = self._fleet.decide(now)
        for cell_id in decision.stop:
            self._servers[cell_id].stop(now)
        for cell_id in decision.start:
            self._servers[cell_id] = self._make_server(cell_id)
            self._start(cell_id, now, failed)
        return Tidings(tuple(awake), decision.ask_to_rest, decision.busy, (*decision.failed, *failed))

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
        elif report.state is ServerState.READY and self._fleet.find_state(cell_id) is CellState.STARTING:
            self._fleet.note_ready(cell_id, now)
            awake.append(cell_id)
        elif report.state in (ServerState.ENDED, ServerState.DOWN):
            reason = f"the server ended with status {report.status}: {report.log_tail}"
            self._end(cell_id, reason, now, failed)

    def _end(self, cell_id: str, reason: str, now: float, failed: list[str]) -> None:
        del self._servers[cell_id]
        self._fleet.note_ended(cell_id, now, reason)
        if self._fleet.find_state(cell_id) is CellState.FAILED:
            failed.append(cell_id)
