"""Load over HTTP: wrk where it is installed, a small generator of our own where it is not."""

import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

_LUA = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer {key}"
request = function()
  return wrk.format(nil, "/v1/query", nil, ([[{body}]]):gsub("%%", math.random(1, {random_max})))
end
"""


@dataclass(frozen=True)
class Load:
    """Requests that all have `body`, in which every % stands for a random number up to `random_max`."""

    url: str
    key: str
    body: str
    random_max: int
    connections: int
    seconds: float


@dataclass(frozen=True)
class Outcome:
    per_second: float
    errors: int


def run_load(load: Load) -> Outcome:
    wrk = shutil.which("wrk")
    return _wrk(wrk, load) if wrk else _own(load)


def generator_name() -> str:
    return "wrk" if shutil.which("wrk") else "bench.load (install wrk for less load by the generator itself)"


def _wrk(program: str, load: Load) -> Outcome:
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(_LUA.format(key=load.key, body=load.body, random_max=load.random_max))
        script.flush()
        command = [program, "-t1", f"-c{load.connections}", f"-d{load.seconds:g}s", "-s", script.name, load.url]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    assert rate is not None, text
    return Outcome(float(rate.group(1)), int(bad.group(1)) if bad else 0)


def _own(load: Load) -> Outcome:
    """In a process of its own, so that its interpreter does not share a lock with anything measured."""
    command = [sys.executable, "-m", "bench.load", load.url, load.key, load.body, str(load.random_max)]
    command += [str(load.connections), str(load.seconds)]
    text = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent.parent).stdout
    rate, errors = text.split()
    return Outcome(float(rate), int(errors))


def _generate(load: Load) -> Outcome:
    import random

    address = urlsplit(load.url)
    assert address.hostname
    assert address.port
    poll = select.epoll()
    sockets: dict[int, socket.socket] = {}

    def request() -> bytes:
        body = load.body.replace("%", str(random.randint(1, load.random_max))).encode()
        head = f"POST /v1/query HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
        return f"{head}Authorization: Bearer {load.key}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    for _ in range(load.connections):
        sock = socket.create_connection((address.hostname, address.port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll.register(sock, select.EPOLLIN)
        sockets[sock.fileno()] = sock
        sock.sendall(request())
    buffers = dict.fromkeys(sockets, b"")
    count = errors = 0
    started = time.perf_counter()
    while time.perf_counter() - started < load.seconds:
        for descriptor, _ in poll.poll(1):
            data = buffers[descriptor] + sockets[descriptor].recv(1 << 20)
            head, found, body = data.partition(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]) if found else 1 << 60
            if len(body) < length:
                buffers[descriptor] = data
                continue
            buffers[descriptor] = b""
            count += 1
            errors += not head.startswith(b"HTTP/1.1 200")
            sockets[descriptor].sendall(request())
    elapsed = time.perf_counter() - started
    for sock in sockets.values():
        sock.close()
    return Outcome(count / elapsed, errors)


if __name__ == "__main__":
    url, key, body, random_max, connections, seconds = sys.argv[1:]
    outcome = _generate(Load(url, key, body, int(random_max), int(connections), float(seconds)))
    sys.stdout.write(f"{outcome.per_second} {outcome.errors}\n")
