"""Faults that are done to a service while a workload runs against it, chosen by a seed.

When the next one comes is told in transactions, not in seconds, so that a seed means the same on a slower machine.
"""

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg

from tests.control import Control
from tests.faults import (
    as_superuser,
    backends,
    child,
    engine_socket_directory,
    has_server,
    is_awake,
    kill,
    kill_catalog,
    kill_engine,
    kill_worker,
    once_back,
    send_signal,
    serves,
)
from tests.processes import children
from tests.service import Service
from tests.wire_proxy import At, Fault, WireProxy

_STEP_S = 5.0
"""A step that does not come in that time is given up: the next fault is as good."""
_STOPPED_S = 1.5
_SLEEP_S = 15.0
_LOOK_S = 0.005

_TERMINATE = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'tuplegate'"

_WIRE = {
    "before PREPARE": ("PREPARE TRANSACTION", At.REQUEST),
    "after PREPARE": ("COMMIT PREPARED", At.REQUEST),
    "after COMMIT PREPARED": ("COMMIT PREPARED", At.ANSWER),
    "in a statement": ("update", At.REQUEST),
    "after a statement": ("update", At.ANSWER),
}

KINDS = (
    "kill engine",
    "kill catalog",
    "kill worker",
    "kill server process",
    "stop engine",
    *(f"{harm} {step}" for harm in ("cut", "kill worker", "kill engine") for step in _WIRE),
)


SLEEP_KINDS = ("sleep", *(f"{harm} as it wakes" for harm in ("kill engine", "kill worker", "stop engine")), "clone")
"""What comes between a database and its server that falls asleep when nobody uses it for a second."""


KINDS_ELSEWHERE = ("kill worker", "end connections")
"""What can be done where the engine is not the service's own."""


@dataclass
class FaultPlan:
    """`with` runs the faults in a thread; `progress` says how many transactions are done."""

    service: Service
    seed: int
    every: int
    progress: Callable[[], int]
    kinds: tuple[str, ...] = KINDS
    rest: Callable[[float], None] = lambda _: None
    """Lets those who use the database do nothing for so long."""
    done: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    """Faults at a step that did not come in time."""
    failure: BaseException | None = None

    def __enter__(self) -> "FaultPlan":
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        rng = random.Random(f"{self.seed}-faults")
        at = 0
        try:
            while True:
                at += rng.randrange(self.every // 2, self.every * 3 // 2)
                while self.progress() < at:
                    if self._stopping.wait(0.02):
                        return
                kind = rng.choice(self.kinds)
                try:
                    happened = self._do(kind, rng)
                except psycopg.OperationalError:
                    happened = False  # the server has just been put to sleep, or is starting again
                (self.done if happened else self.missed)[kind] += 1
                once_back(lambda: serves(self.service))
        except BaseException as exc:  # noqa: BLE001 - it is raised where the plan is waited for
            self.failure = exc

    def _do(self, kind: str, rng: random.Random) -> bool:
        for step, (text, at) in _WIRE.items():
            if kind.endswith(f" {step}"):
                return self._at_step(kind.removesuffix(f" {step}"), text, at, rng)
        if kind.endswith(" as it wakes"):
            return self._as_it_wakes(kind.removesuffix(" as it wakes"))
        match kind:
            case "sleep":
                return self._sleep(rng.uniform(0.5, 4.0))
            case "clone":
                return self._clone()
            case "kill engine":
                kill_engine(self.service)
            case "kill catalog":
                kill_catalog(self.service)
            case "kill worker":
                kill_worker(self.service)
            case "kill server process":
                for pid in backends(self.service, "state = 'active' and application_name = 'tuplegate'")[:1]:
                    send_signal(pid, signal.SIGKILL)
                once_back(lambda: as_superuser(self.service, "select 1") == [(1,)])
            case "stop engine":
                self._stop_engine()
            case "end connections":
                as_superuser(self.service, _TERMINATE)
            case _:
                raise ValueError(f"there is no fault {kind!r}")
        return True

    def _sleep(self, seconds: float) -> bool:
        """Return whether the server was stopped meanwhile. Those who go on may come just when it is about to be."""
        self.rest(seconds)
        deadline = time.monotonic() + seconds
        slept = False
        while time.monotonic() < deadline:
            slept = slept or not is_awake(self.service)
            time.sleep(_LOOK_S)
        return slept

    def _as_it_wakes(self, harm: str) -> bool:
        self.rest(3600)
        try:
            deadline = time.monotonic() + _SLEEP_S
            while is_awake(self.service):
                if time.monotonic() > deadline:
                    return False
                time.sleep(_LOOK_S)
        finally:
            self.rest(0)
        while not has_server(self.service):
            if self._stopping.wait(_LOOK_S):
                return False  # all is done, and nobody wakes it
        match harm:
            case "kill engine":
                kill_engine(self.service)
            case "kill worker":
                kill_worker(self.service)
            case "stop engine":
                self._stop_engine()
        return True

    def _clone(self) -> bool:
        """Make a copy, for which the server is stopped, and remove it. It is refused where nobody gives way."""
        name = f"copy-{self.done.total()}-{self.missed.total()}"
        control = Control(self.service, self.service.key)
        made = control.client.post("/v1/databases", json={"name": name, "clone_of": "main"})
        assert made.status_code in (201, 503), made.text
        if made.status_code == 201:
            control.delete(f"/v1/databases/{name}")
        return made.status_code == 201

    def _stop_engine(self) -> None:
        postmaster = child(self.service, engine=True)
        pids = [postmaster, *children(postmaster)]
        for pid in pids:
            send_signal(pid, signal.SIGSTOP)
        time.sleep(_STOPPED_S)  # the fault itself: a standstill of this length
        for pid in pids:
            send_signal(pid, signal.SIGCONT)

    def _at_step(self, harm: str, text: str, at: At, rng: random.Random) -> bool:
        """Puts a proxy in the way for as long as it takes. All connections are ended so that new ones go through it."""
        with WireProxy(engine_socket_directory(self.service)) as proxy:
            fault = Fault(lambda sent: sent.startswith(text), at, skip=rng.randrange(5))
            actions = {"kill worker": lambda: kill(fault.sender), "kill engine": lambda: kill_engine(self.service)}
            fault.action = actions.get(harm, fault.action)
            proxy.arm(fault)
            try:
                as_superuser(self.service, _TERMINATE)
            except psycopg.OperationalError:
                pass  # it ended its own connection's proxy
            happened = fault.happened.wait(_STEP_S)
            if harm == "kill engine" and happened:
                once_back(lambda: not proxy.in_place and as_superuser(self.service, "select 1") == [(1,)])
        return happened
