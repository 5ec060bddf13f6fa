"""Probes that read and write all the time, directly and through each service node, and note when they were served.

The direct ones have a connection for every host, with `target_session_attrs=primary`: so they find a new primary as
fast as anybody can. All of them give up after the same time and try again.
"""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from urllib.parse import urlsplit

from tests.service import Service

from failover.cluster import Cluster, Node
from failover.sessions import Session, Unanswered

TABLE = "probe"
DEADLINE_S = 1.0
EVERY_S = 0.1
REFUSED_S = 0.3
"""Pause after a host that is no primary: every attempt is a process of its."""
HEALTH_S = 0.25

Stopping = threading.Event


@dataclass
class Probe:
    """What one probe has seen. `acknowledged` are the numbers of the writes that were."""

    name: str
    served: list[float] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=list)
    said: list[tuple[float, str]] = field(default_factory=list)

    @property
    def latest(self) -> float:
        return self.served[-1] if self.served else 0.0


@dataclass
class Probes:
    """By what they do; those of the nodes are in the order of the nodes."""

    direct_reads: list[Probe]
    direct_writes: list[Probe]
    reads: list[Probe]
    writes: list[Probe]
    health: list[Probe]

    def latest(self) -> dict[str, float]:
        """When the cluster, and each node, were last seen to read and to write."""
        direct = {"direct reads": self.direct_reads, "direct writes": self.direct_writes}
        found = {name: max(probe.latest for probe in probes) for name, probes in direct.items()}
        return found | {probe.name: probe.latest for probe in (*self.reads, *self.writes)}


@contextmanager
def running_probes(cluster: Cluster, services: list[Service]) -> Iterator[Probes]:
    """Runs them in threads of their own until the block ends."""
    probes = Probes(
        [Probe(f"read {node.name}") for node in cluster.nodes],
        [Probe(f"write {node.name}") for node in cluster.nodes],
        [Probe(f"reads through node {number}") for number in range(len(services))],
        [Probe(f"writes through node {number}") for number in range(len(services))],
        [Probe(f"health of node {number}") for number in range(len(services))],
    )
    stopping = Stopping()
    numbers = count(1)
    threads = []

    def run(loop: Callable[..., None], *arguments: object) -> None:
        threads.append(threading.Thread(target=loop, args=(stopping, *arguments)))

    for node, read, write in zip(cluster.nodes, probes.direct_reads, probes.direct_writes, strict=True):
        run(_probe_directly, node, read, None)
        run(_probe_directly, node, write, numbers)
    for service, read, write, said in zip(services, probes.reads, probes.writes, probes.health, strict=True):
        run(_probe_service, service, read, None)
        run(_probe_service, service, write, numbers)
        run(_ask_health, service, said)
    for thread in threads:
        thread.start()
    try:
        yield probes
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


def _statement(numbers: "count[int] | None") -> tuple[str, int]:
    if numbers is None:
        return f"select n from {TABLE} where n = 0", 0
    number = next(numbers)
    return f"insert into {TABLE} values ({number})", number


def _note(probe: Probe, number: int) -> None:
    probe.served.append(time.monotonic())
    if number:
        probe.acknowledged.append(number)


def _probe_directly(stopping: Stopping, node: Node, probe: Probe, numbers: "count[int] | None") -> None:
    session: Session | None = None
    while not stopping.wait(EVERY_S if session is not None else REFUSED_S):
        try:
            if session is None:
                session = Session.opened(f"{node.entry_url}&target_session_attrs=primary", DEADLINE_S)
            sql, number = _statement(numbers)
            session.execute(sql, DEADLINE_S)
            _note(probe, number)
        except Unanswered:
            session = None
    if session is not None:
        session.close()


class _Http:
    """A connection to a service node that is opened again after it was lost."""

    def __init__(self, service: Service) -> None:
        address = urlsplit(service.url)
        self._connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=DEADLINE_S)
        self._headers = {"Authorization": f"Bearer {service.key}", "Content-Type": "application/json"}

    def request(self, method: str, path: str, body: dict[str, object] | None = None) -> dict[str, object] | None:
        """The answer; None where there was none in time."""
        sent = None if body is None else json.dumps(body)
        try:
            self._connection.request(method, path, sent, self._headers)
            answer = self._connection.getresponse()
            found: dict[str, object] = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError):
            self._connection.close()
            return None
        return found

    def close(self) -> None:
        self._connection.close()


def _probe_service(stopping: Stopping, service: Service, probe: Probe, numbers: "count[int] | None") -> None:
    connection = _Http(service)
    while not stopping.wait(EVERY_S):
        sql, number = _statement(numbers)
        answer = connection.request("POST", "/v1/query", {"sql": sql})
        if answer is not None and answer.get("success") is True:
            _note(probe, number)
    connection.close()


def _ask_health(stopping: Stopping, service: Service, probe: Probe) -> None:
    connection = _Http(service)
    while not stopping.wait(HEALTH_S):
        answer = connection.request("GET", "/health")
        probe.said.append((time.monotonic(), "nothing" if answer is None else str(answer.get("status"))))
    connection.close()
