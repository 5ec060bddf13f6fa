"""Which worker has which connection: for tests that must talk to a certain one. Reads /proc."""

import http.client
import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.processes import children, is_worker, status
from tests.service import Service
from tests.waiting import eventually


def workers(service: Service) -> list[int]:
    """The process ids of the workers that run now."""
    return [child for child in children(service.process.pid) if is_worker(child)]


def peak_mb(service: Service) -> float:
    """The most memory that a worker of the service has taken so far."""
    found = (status(pid).split("VmHWM:")[1].split()[0] for pid in workers(service))
    return max(map(int, found)) / 1024


def worker_of(service: Service, sock: socket.socket) -> int:
    """The worker that has taken the connection; waits until one has."""
    return workers_of(service, [sock])[0]


def workers_of(service: Service, socks: Sequence[socket.socket]) -> list[int]:
    """The worker that has taken each of the connections; waits until all are taken."""
    ports = [(sock.getpeername()[1], sock.getsockname()[1]) for sock in socks]

    def taken() -> list[int] | None:
        owners = {file: pid for pid in workers(service) for file in _open_files(pid)}
        inodes = _inodes()
        found = [pid for port in ports if (pid := owners.get(f"socket:[{inodes.get(port)}]"))]
        return found if len(found) == len(ports) else None

    return eventually(taken)


def _open_files(pid: int) -> Iterator[str]:
    with suppress(OSError):  # one is closed, or the worker has ended
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                yield str(entry.readlink())


def _inodes() -> dict[tuple[int, int], str]:
    """The numbers of all sockets of the machine, by their local and remote port."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {(int(own[-4:], 16), int(other[-4:], 16)): fields[9] for fields in lines for own, other in [fields[1:3]]}


def connect(service: Service) -> socket.socket:
    address = urlsplit(service.url)
    return socket.create_connection((str(address.hostname), int(address.port or 0)))


def connect_to(service: Service, *, other_than: int | None = None, pid: int | None = None) -> socket.socket:
    """A connection that a certain worker has, or any but a certain one."""
    held = []

    def right() -> socket.socket | None:
        sock = connect(service)
        found = worker_of(service, sock)
        if found == pid or (pid is None and found != other_than):
            return sock
        held.append(sock)  # the next one goes to a worker that has fewer
        return None

    try:
        return eventually(right)
    finally:
        for sock in held:
            sock.close()


class Caller:
    """An HTTP client on one connection, and so on one worker."""

    def __init__(self, service: Service, sock: socket.socket, key: str | None = None) -> None:
        self._key = key or service.key
        self.pid = worker_of(service, sock)
        self._connection = http.client.HTTPConnection(urlsplit(service.url).netloc, timeout=60)
        self._connection.sock = self._sock = sock

    def __call__(
        self, method: str, path: str, body: dict[str, Any] | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, Any]]:
        given = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json", **(headers or {})}
        self._connection.request(method, path, None if body is None else json.dumps(body), given)
        answer = self._connection.getresponse()
        parsed: dict[str, Any] = json.loads(answer.read())
        return answer.status, parsed

    def sql(self, sql: str) -> list[dict[str, Any]]:
        status, body = self("POST", "/v1/query", {"sql": sql})
        assert status == 200, body
        assert body["success"], body
        rows: list[dict[str, Any]] = body["rows"]
        return rows

    def close(self) -> None:
        self._connection.close()
        self._sock.close()


def callers(service: Service, key: str | None = None) -> list[Caller]:
    """One for each worker."""
    return [Caller(service, connect_to(service, pid=pid), key) for pid in workers(service)]
