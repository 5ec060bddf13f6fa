"""New connections: opened, asked for `/` once, and closed, over three workers, beside uvicorn with a bare application.

Rounds of both, one after the other, so that noise of the machine hits both alike."""

import json
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from tests.service import Service, new_data_dir, remove, start_service

from bench.measure import Line
from bench.peers.asgi import running_asgi

ROUNDS, SECONDS = 7, 2.0
AT_ONCE = 64
WORKERS = 3
SHARE = 0.6
"""6,000 a second where uvicorn takes 10,000."""
_ROOT = Path(__file__).parent.parent
_REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def measure(_: Service) -> list[Line]:
    service = start_service(new_data_dir(), "--workers", str(WORKERS))
    try:
        with (
            tempfile.TemporaryDirectory(prefix="tg-peer-") as home,
            running_asgi("uvicorn", Path(home)) as (_child, url),
        ):
            rounds = [(_load(service.url), _load(url)) for _ in range(ROUNDS)]
    finally:
        service.stop()
        remove(service.data_dir)
    ratios = [ours[0] / theirs[0] for ours, theirs in rounds]
    note = (
        f"{statistics.median(ours[0] for ours, _ in rounds):,.0f}/s against"
        f" {statistics.median(theirs[0] for _, theirs in rounds):,.0f}/s of uvicorn;"
        f" rounds {min(ratios):.2f} to {max(ratios):.2f}"
    )
    return [
        Line(f"new connections, {WORKERS} workers / uvicorn", statistics.median(ratios), SHARE, False, note),
        Line("new connections, errors", sum(ours[1] for ours, _ in rounds), 0, True, ""),
    ]


def _load(url: str) -> tuple[float, int]:
    """Return connections a second, and errors; from a process of its own."""
    command = [sys.executable, "-m", "bench.accepting", url]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=_ROOT)
    rate, errors = json.loads(done.stdout)
    return rate, errors


def _generate(url: str) -> tuple[float, int]:
    address = urlsplit(url)
    where = address.hostname or "", address.port or 0
    poll = select.epoll()
    clients: dict[int, socket.socket] = {}
    waiting: set[int] = set()
    """Those that have asked."""
    answered = errors = 0

    def connect() -> None:
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(where)
        clients[client.fileno()] = client
        poll.register(client, select.EPOLLOUT)

    for _ in range(AT_ONCE):
        connect()
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < SECONDS:
        for descriptor, _ in poll.poll(1):
            client = clients[descriptor]
            try:
                if descriptor not in waiting:
                    client.send(_REQUEST)
                    waiting.add(descriptor)
                    poll.modify(descriptor, select.EPOLLIN)
                    continue
                is_good = client.recv(65536).startswith(b"HTTP/1.1 200")
            except OSError:
                is_good = False
            answered += is_good
            errors += not is_good
            poll.unregister(descriptor)
            waiting.discard(descriptor)
            clients.pop(descriptor).close()
            connect()
    for client in clients.values():
        client.close()
    return answered / elapsed, errors


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_generate(sys.argv[1])))
