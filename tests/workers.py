"""Which worker has which connection: for tests that must talk to a certain one. Reads /proc."""

import http.client
import json
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.service import Service

WAIT_S = 30.0


def workers(service: Service) -> list[int]:
    """The process ids of the workers that run now."""
    pid = service.process.pid
    found = []
    for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        with suppress(OSError):  # it has just ended
            if Path(f"/proc/{child}/comm").read_text() != "postgres\n" and _state(child) != "Z":
                found.append(child)
    return found


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def peak_mb(service: Service) -> float:
    """The most memory that a worker of the service has taken so far."""
    found = (Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0] for pid in workers(service))
    return max(map(int, found)) / 1024


def worker_of(service: Service, sock: socket.socket) -> int:
    """The worker that has taken the connection; waits until one has."""
    ours, theirs = sock.getsockname()[1], sock.getpeername()[1]
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        inode = _inode(theirs, ours)
        for pid in workers(service) if inode else []:
            with suppress(OSError):
                if any(str(entry.readlink()) == f"socket:[{inode}]" for entry in Path(f"/proc/{pid}/fd").iterdir()):
                    return pid
        time.sleep(0.005)
    raise AssertionError("no worker took the connection")


def _inode(local: int, remote: int) -> str | None:
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].split(":")[1], 16) == local and int(fields[2].split(":")[1], 16) == remote:
            return fields[9] if fields[9] != "0" else None
    return None


def connect(service: Service) -> socket.socket:
    address = urlsplit(service.url)
    return socket.create_connection((str(address.hostname), int(address.port or 0)))


def connect_to(service: Service, *, other_than: int | None = None, pid: int | None = None) -> socket.socket:
    """A connection that a certain worker has, or any but a certain one."""
    held = []
    deadline = time.monotonic() + WAIT_S
    try:
        while time.monotonic() < deadline:
            sock = connect(service)
            found = worker_of(service, sock)
            if found == pid or (pid is None and found != other_than):
                return sock
            held.append(sock)  # the next one goes to a worker that has fewer
    finally:
        for sock in held:
            sock.close()
    raise AssertionError("that worker took no connection")


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
