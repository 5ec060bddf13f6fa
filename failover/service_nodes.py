"""The service nodes of a run with faults: they are killed, and started again at the same addresses."""

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.service import Service, new_data_dir, start_service

from failover.timeline import Span

START_S = 60.0


class NotStarted(Exception):
    """A service node did not start in time; the message says why."""


@dataclass
class ServiceNodes:
    """Service nodes of one installation. `down` tells when which of them was dead."""

    services: list[Service]
    rng: Random
    flags: list[tuple[str, ...]] = field(default_factory=list)
    environments: list[dict[str, str]] = field(default_factory=list)
    down: list[list[Span]] = field(default_factory=list)
    program: str = "tuplegate"
    """The module that a node runs."""
    failed_starts: list[str] = field(default_factory=list)
    """Starts of a service node that did not succeed although the cluster could serve."""

    def add_node(self, *flags: str, env: dict[str, str]) -> None:
        """Starts a new service node; all have the key that the first one made."""
        self.flags.append(flags)
        self.environments.append(env)
        self.down.append([])
        service = self._start(len(self.services), new_data_dir(), START_S)
        if service is None:
            raise NotStarted(f"a service node did not start within {START_S:g} s: {self.failed_starts[-1]}")
        service.key = service.key or self.services[0].key
        self.services.append(service)

    def kill_node(self) -> int:
        """Kills one of the service nodes with all of its processes; returns its number."""
        number = self.rng.randrange(len(self.services))
        self.down[number].append(Span(time.monotonic(), math.inf))
        self.services[number].kill()
        return number

    def start_node(self, number: int, seconds: float = START_S) -> bool:
        """Starts it again, at the same addresses; whether it did within the time."""
        service = self.services[number]
        started = self._start(number, service.data_dir, seconds)
        if started is not None:
            service.process = started.process
            self.down[number][-1] = Span(self.down[number][-1].began, time.monotonic())
        return started is not None

    def _start(self, number: int, data_dir: Path, seconds: float) -> Service | None:
        """Tries until it starts, as whoever looks after a service would."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                return start_service(data_dir, *self.flags[number], env=self.environments[number], program=self.program)
            except AssertionError as exc:
                self.failed_starts.append(f"node {number} did not start: {str(exc).splitlines()[-1]}")
        return None
