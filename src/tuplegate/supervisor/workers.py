"""Forks the workers, watches them and the engine's server, and restarts those that died."""

import contextlib
import os
import selectors
import signal
import socket
import time
from dataclasses import dataclass, field

import structlog

from tuplegate import worker
from tuplegate.admission.fair_use.seats import Seats
from tuplegate.data_plane.interactive.handover import Doors
from tuplegate.engine.cells.template import SharedCells
from tuplegate.engine.opening import SharedEngine
from tuplegate.engine.port import EngineFailure
from tuplegate.further_engines import EnginePreparation
from tuplegate.http.acceptor import Balance
from tuplegate.http.tls.certificates import TlsFiles
from tuplegate.metrics.board import Board
from tuplegate.open_files import close_others, find_accept_limit
from tuplegate.settings import Settings
from tuplegate.standstill import Beats, StandstillClock, offer_stacks, read_stacks
from tuplegate.supervisor.certificates import provide_self_signed
from tuplegate.supervisor.edge import Edge
from tuplegate.supervisor.engine_server import Bundled
from tuplegate.supervisor.serve_error import ServeError
from tuplegate.supervisor.signals import WATCH_S, Stopped

_log = structlog.get_logger()

_WORKER_PAUSE_S = 0.25  # from one start to the next: a worker that cannot live does not take the machine
_READY_TIMEOUT_S = 60.0
_STILL_S_MAX = 5.0
"""A worker that serves and whose loop stands still for longer is replaced."""
_STOP_MARGIN_S = 10.0
_STOP_POLL_S = 0.01
_HURRIED_S = 0.005
"""How soon the cells are looked at again while one of them starts or stops."""
_CERTIFICATE_EVERY_S = 3600.0


@dataclass
class WorkerProcess:
    """A worker as its supervisor sees it. The worker writes to the pipe `ready` once it serves, and its stacks to the
    pipe `stacks`."""

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
        """Return whether its loop stands still for too long. A starting worker has its own time limit."""
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
    """Forks the workers, and watches them and the engine's server until `stopped` returns true."""

    settings: Settings
    bundled: Bundled | None
    """None if somebody else runs the engine."""
    cells: SharedCells | None
    engines: tuple[SharedEngine, ...]
    sockets: dict[str, socket.socket]
    edge: Edge
    tls: TlsFiles | None
    stopped: Stopped
    preparing: EnginePreparation
    doors: Doors
    _workers: list[WorkerProcess] = field(default_factory=list)
    _life: tuple[int, int] = field(default_factory=os.pipe)
    _reload_asked: bool = False

    def __post_init__(self) -> None:
        workers = self.settings.workers
        self._memory = worker.WorkersMemory(
            Board(workers),
            Beats(workers),
            Seats(workers, self.settings.open_transactions_max, "transactions"),
            Seats(workers, self.settings.wire_connections_max, "connections"),
        )
        self._balances = {plane: Balance(workers, find_accept_limit()) for plane in self.sockets}

    def start_workers(self) -> None:
        """Fork the workers and wait until all of them serve."""
        self._workers = [self._fork(number) for number in range(self.settings.workers)]
        deadline = time.monotonic() + _READY_TIMEOUT_S
        for started in self._workers:
            self._wait_ready(started, deadline)

    def _fork(self, number: int) -> WorkerProcess:
        ready_read, ready_write = os.pipe()
        stacks_read, stacks_write = os.pipe()
        os.set_blocking(ready_read, False)
        line = None if self.bundled is None else self.bundled.desk.open_line(number, time.monotonic())
        pid = os.fork()
        if pid == 0:
            self._be_worker(number, ready_write, stacks_write, line)
        if line is not None:
            line.close()
        os.close(ready_write)
        os.close(stacks_write)
        now = time.monotonic()
        return WorkerProcess(number, pid, ready_read, stacks_read, now, StandstillClock(now))

    def _be_worker(self, number: int, ready_write: int, stacks_write: int, line: socket.socket | None) -> None:
        """Run a worker and never return: the supervisor's own clean-up must not run twice."""
        status = 1
        try:
            os.setsid()
            if self.bundled is not None:
                self.bundled.desk.abandon()
            keep = {
                0,
                1,
                2,
                self._life[0],
                ready_write,
                stacks_write,
                *(() if line is None else (line.fileno(),)),
                *(descriptor for engine in self.engines for descriptor in engine.descriptors),
                *(sock.fileno() for sock in self.sockets.values()),
                *(sock.fileno() for sock in list(self.doors.sockets.values())[number : number + 1]),
            }
            close_others(keep)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            offer_stacks(stacks_write)
            worker.run(
                worker.WorkerInput(
                    settings=self.settings,
                    engines=self.engines,
                    sockets=self.sockets,
                    addresses=self.edge.addresses,
                    upstream=self.edge.upstream,
                    tls=self.tls,
                    cors_origins=self.edge.cors_origins,
                    own_origins=self.edge.own_origins,
                    life_fd=self._life[0],
                    ready=lambda: os.close(os.dup(ready_write)) if os.write(ready_write, b"r") != 1 else None,
                    number=number,
                    balances=self._balances,
                    memory=self._memory,
                    doors=self.doors,
                    cells=None if self.cells is None or line is None else (self.cells, line),
                )
            )
            status = 0
        except EngineFailure as failure:
            _log.error("the worker found no engine to serve on", reason=str(failure))
        except BaseException:  # noqa: BLE001 - a forked child must not unwind into its parent's code
            _log.error("the worker failed", exc_info=True)
        finally:
            os._exit(status)

    def _wait_ready(self, started: WorkerProcess, deadline: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(started.ready, selectors.EVENT_READ)
            while not selector.select(_STOP_POLL_S):
                self._attend()
                if time.monotonic() > deadline:
                    break
            if not selector.select(0) or os.read(started.ready, 1) != b"r":
                raise ServeError("the worker did not start; the log above says why")
        started.serves = True

    def _attend(self) -> None:
        """Carry out the workers' requests for cells."""
        if self.bundled is not None:
            self.bundled.desk.attend(time.monotonic())

    def _is_stopped(self) -> bool:
        """Wait a moment, or until there is something to do. Return whether to stop."""
        if self.bundled is None:
            return self.stopped()
        desk = self.bundled.desk
        return self.stopped(desk.descriptors, _HURRIED_S if desk.is_hurried else WATCH_S)

    def watch(self) -> None:
        """Restart processes that died or stand still, until a signal says stop."""
        reloaded_at = time.monotonic()
        looked_at = 0.0
        while not self._is_stopped():
            self._attend()
            if time.monotonic() - looked_at < WATCH_S / 2:
                continue
            looked_at = time.monotonic()
            if self.bundled is not None:
                self.bundled.catalog.watch(looked_at)
            self.preparing.watch(self._life[0])
            for number in range(len(self._workers)):
                self._watch_worker(number)
            if self._reload_asked or time.monotonic() - reloaded_at > _CERTIFICATE_EVERY_S:
                reloaded_at = time.monotonic()
                self._reload_certificate()
        self.preparing.stop()
        self._stop_workers()

    def ask_reload(self) -> None:
        """Let `watch` take up a certificate that has changed."""
        self._reload_asked = True

    def _reload_certificate(self) -> None:
        """Let the workers take up a certificate that has changed; renew one of our own when it is time."""
        self._reload_asked = False
        if self.tls is None:
            return
        try:
            provide_self_signed(self.settings, self.edge.hosts)
        except ServeError as exc:
            _log.error("the certificate could not be renewed", reason=str(exc))
        for watched in self._workers:
            if not watched.dead:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(watched.pid, signal.SIGHUP)

    def _watch_worker(self, number: int) -> None:
        """Restart a dead worker, at once if it had served for a while; other work does not wait for that."""
        watched = self._workers[number]
        if not watched.dead:
            pid, status = os.waitpid(watched.pid, os.WNOHANG)
            if pid == 0:
                if not watched.killed and watched.stands_still(self._memory.beats.read(number), time.monotonic()):
                    self._memory.beats.count_replaced()
                    self._kill(watched, "the worker stands still and is killed")
                return
            watched.dead = True
            watched.close()
            if self.bundled is not None:
                self.bundled.desk.drop_line(number, time.monotonic())
            exit_code = os.waitstatus_to_exitcode(status)
            _log.error("the worker died, starting it again", worker=number, status=exit_code)
        if time.monotonic() - watched.started_at >= _WORKER_PAUSE_S:
            self._workers[number] = self._fork(number)

    def _kill(self, watched: WorkerProcess, reason: str) -> None:
        """Kill the worker before writing to the log: the log could be the thing that it waits for."""
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
            self._attend()
            time.sleep(_STOP_POLL_S)
