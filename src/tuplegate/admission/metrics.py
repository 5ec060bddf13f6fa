"""Collects what a worker counts: its own numbers, those that other workers have posted, and the page of all.

The worker that is asked answers for all. It posts its own numbers before it shows them, and asks the others to post
theirs: so the page is up to date, and numbers that were shown are not lost with a worker that is killed. A worker
starts from the last numbers that its predecessor posted, so no sum ever decreases while the service runs.
"""

import asyncio
import os
import time
from typing import Protocol

import structlog

from tuplegate import __version__, background
from tuplegate.admission.fair_use.fairness import Lanes
from tuplegate.admission.fair_use.usage import UsageBook
from tuplegate.admission.identity import Identity
from tuplegate.engine.port import Reports
from tuplegate.http.cors import CorsPolicy
from tuplegate.http.exchange import Exchange
from tuplegate.http.server import HttpServer
from tuplegate.metrics.board import Board, DoesNotFit
from tuplegate.metrics.cells import PlaneCounts
from tuplegate.metrics.page import CONTENT_TYPE, write_page
from tuplegate.metrics.sums import DATABASES_MAX, Counted, Sums, WorkerMetrics
from tuplegate.resident import resident_bytes
from tuplegate.standstill import Beats

_log = structlog.get_logger()

_POST_EVERY_S = 1.0
_LOOK_EVERY_S = 0.1
"""How often a worker looks whether another one asks for its numbers."""

_PATIENCE_S = 2.0
"""How long to wait for other workers; one that does not post is shown with its earlier numbers."""

_PAUSE_S = 0.005
_STALE_NS = 5_000_000_000
"""Gauges of a worker are ignored after this time: it may be gone."""

_OF_ALL = frozenset(
    {"serializable_slots", "serializable_safe_seconds", "serializable_guarded", "backup_age_seconds"}
    | {"disk_free_bytes", "disk_short", "replica_lag_seconds", "replica_usable"}
)
"""Gauges that each worker reports for all workers; they are not added up."""


class Counting(Protocol):
    """A part of the worker that counts."""

    def measure(self) -> Counted:
        """Return its counts, named as in the table of metrics."""


class Metrics:
    """The metrics of one worker. `worker` is its place on the board. `servers` and `cors` are by plane, and set when
    the planes serve. `parts` are further objects that count."""

    def __init__(self, board: Board, worker: int, reports: Reports, lanes: Lanes, usage: UsageBook) -> None:
        self._board = board
        self._worker = worker
        self._reports = reports
        self._lanes = lanes
        self._usage = usage
        self._planes: dict[str, PlaneCounts] = {}
        self._started_at = time.time()
        left = board.read(worker)
        self._before = Sums() if left is None else left.sums
        self.servers: dict[str, HttpServer] = {}
        self.cors: dict[str, CorsPolicy] = {}
        self.parts: list[Counting] = []
        self.beats: Beats | None = None

    def plane(self, name: str) -> PlaneCounts:
        """Return the counts of a plane."""
        return self._planes.setdefault(name, PlaneCounts(name))

    # -- routes -------------------------------------------------------------------------------------------------

    async def guarded(self, exchange: Exchange, identity: Identity) -> None:
        await self.open(exchange)

    async def open(self, exchange: Exchange) -> None:
        """Answer every request at an address that is for metrics only."""
        health = await self._reports.health()
        sums, gauges = await self._sum_workers()
        gauges["engine_up"] = int(health.ok)
        page = write_page(sums, gauges, (__version__, health.kind, health.version))
        exchange.respond(200, page, content_type=CONTENT_TYPE)

    # -- the worker's own ---------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Post the worker's numbers regularly and when another worker asks. Runs for ever."""
        board, loop = self._board, asyncio.get_running_loop()
        asked, posted_at = board.asked, loop.time()
        while True:
            await background.tick(_POST_EVERY_S if board.workers == 1 else _LOOK_EVERY_S)
            if asked != (now_asked := board.asked) or loop.time() - posted_at >= _POST_EVERY_S:
                asked, posted_at = now_asked, loop.time()
                self.post()

    def post(self) -> None:
        snapshot = self._snapshot()
        try:
            self._board.post(self._worker, snapshot)
        except DoesNotFit:
            _log.error("the metrics do not fit into their memory", databases=len(snapshot.sums.databases))

    def _snapshot(self) -> WorkerMetrics:
        measured = self._reports.measure()
        planes = self._planes.values()
        events = {**measured.events, "worker_starts_total": 1, "worker_cpu_us": int(time.process_time() * 1e6)}
        events |= {"backups_total made": 0, "backups_total failed": 0}
        events |= {f"task_restarts_total {name}": count for name, count in background.restarts.items()}
        events |= {f"cors_refusals_total {plane}": policy.refused for plane, policy in self.cors.items()}
        gauges = {**measured.gauges, **self._gauges()}
        for part in self.parts:
            more_events, more_gauges = part.measure()
            events |= more_events
            gauges |= more_gauges
        own = Sums(
            {f"{p.plane} {method} {route}": c for p in planes for (method, route), c in p.cells.items() if any(c)},
            {f"{plane.plane} {code}": count for plane in planes for code, count in plane.errors.items()},
            measured.seconds,
            events,
            self._usage.totals(),
        )
        return WorkerMetrics(self._worker, time.monotonic_ns(), self._before.add(own, DATABASES_MAX), gauges)

    def _gauges(self) -> dict[str, float]:
        gauges: dict[str, float] = {
            "lane_requests running": self._lanes.running,
            "lane_requests waiting": self._lanes.waiting,
            f"worker_resident_bytes {self._worker}": resident_bytes(),
            f"worker_open_fds {self._worker}": len(os.listdir("/dev/fd")),
            f"worker_start_time_seconds {self._worker}": self._started_at,
        }
        for plane, server in self.servers.items():
            gauges[f"http_connections {plane}"] = server.open
            gauges[f"requests_running {plane}"] = server.running
        return gauges

    # -- all workers --------------------------------------------------------------------------------------------

    async def _sum_workers(self) -> tuple[Sums, dict[str, float]]:
        board = self._board
        others = [worker for worker in range(board.workers) if worker != self._worker]
        if others:
            await self._wait_for_posts(others)
        self.post()
        sums = Sums()
        gauges: dict[str, float] = {}
        for worker in range(board.workers):
            snapshot = board.read(worker)
            if snapshot is None:
                continue
            sums = sums.add(snapshot.sums)
            if time.monotonic_ns() - snapshot.at_ns < _STALE_NS:
                for name, value in snapshot.gauges.items():
                    gauges[name] = value + (0 if name.partition(" ")[0] in _OF_ALL else gauges.get(name, 0))
        if self.beats is not None:
            sums.events["worker_standstills_total"] = self.beats.replaced
        return sums, gauges

    async def _wait_for_posts(self, others: list[int]) -> None:
        """Wait until every other worker has posted after this moment."""
        board, loop = self._board, asyncio.get_running_loop()
        before = {worker: board.count_posts(worker) for worker in others}
        board.ask(self._worker)
        deadline = loop.time() + _PATIENCE_S
        while loop.time() < deadline:
            if all(board.count_posts(worker) != before[worker] for worker in others):
                return
            await asyncio.sleep(_PAUSE_S)
