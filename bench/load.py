"""Load over HTTP: wrk where it is installed, a small generator of our own where it is not."""

import json
import random
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

TIMEOUT_S = 20.0  # for one answer; wrk's own is 2 s, which a slow peer with 256 connections exceeds

_LUA = """
local method, path, body, random_max = {method}, {path}, {body}, {random_max}
local mark = "%" .. {mark} -- a pattern for the mark itself
local headers = {{ {headers} }}
local in_path, in_headers = path:find(mark) ~= nil, {in_headers}
function init(args) math.randomseed({seed}) end
function request()
  local number = tostring(math.random(1, random_max))
  if in_headers then
    local numbered = {{}}
    for name, value in pairs(headers) do numbered[name] = value:gsub(mark, number) end
    return wrk.format(method, path, numbered, body)
  end
  if in_path then return wrk.format(method, (path:gsub(mark, number)), headers, body) end
  return wrk.format(method, path, headers, (body:gsub(mark, number)))
end
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format("\\nOUTCOME %d %d %d %d %d %d\\n", summary.requests, summary.duration, summary.bytes,
    e.connect + e.read + e.write + e.status + e.timeout, latency:percentile(50), latency:percentile(99)))
end
"""


@dataclass(frozen=True)
class Load:
    """Requests that are all alike, in which every `mark` stands for a random number up to `random_max`.

    The mark is one character, neither letter nor digit, and stands in the path, in the body, or in a header.
    """

    url: str
    key: str
    body: str
    random_max: int
    connections: int
    seconds: float
    method: str = "POST"
    path: str = "/v1/query"
    headers: Mapping[str, str] = field(default_factory=dict)
    mark: str = "%"

    @property
    def in_headers(self) -> bool:
        return any(self.mark in value for value in self.headers.values())

    @property
    def all_headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", **self.headers}
        return headers | {"Authorization": f"Bearer {self.key}"} if self.key else headers


@dataclass(frozen=True)
class Outcome:
    """`errors` are answers that are no success by their status, and broken or silent connections."""

    per_second: float
    errors: int
    requests: int
    size: float
    p50_us: float
    p99_us: float


def run_load(load: Load) -> Outcome:
    wrk = shutil.which("wrk")
    return _wrk(wrk, load) if wrk else _own(load)


def generator_name() -> str:
    return "wrk" if shutil.which("wrk") else "bench.load (install wrk for less load by the generator itself)"


def _wrk(program: str, load: Load) -> Outcome:
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(
            _LUA.format(
                method=_lua(load.method),
                path=_lua(load.path),
                body=_lua(load.body),
                mark=_lua(load.mark),
                random_max=load.random_max,
                headers=", ".join(f"[ {_lua(name)} ] = {_lua(value)}" for name, value in load.all_headers.items()),
                in_headers="true" if load.in_headers else "false",
                seed=random.randrange(1 << 30),
            )
        )
        script.flush()
        command = [program, "-t1", f"-c{load.connections}", f"-d{max(1, round(load.seconds))}s"]
        command += ["--timeout", f"{TIMEOUT_S:g}s", "-s", script.name, load.url]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "OUTCOME" in text, text
    numbers = [int(word) for word in text.split("OUTCOME", 1)[1].split()]
    requests, duration_us, size, errors, p50_us, p99_us = numbers
    return Outcome(requests / duration_us * 1e6, errors, requests, size / max(1, requests), p50_us, p99_us)


def _lua(text: str) -> str:
    """A string of Lua; long brackets, because they need no escapes."""
    return f"[==[{text}]==]"


def _own(load: Load) -> Outcome:
    """In a process of its own, so that its interpreter does not share a lock with anything measured."""
    command = [sys.executable, "-m", "bench.load"]
    done = subprocess.run(
        command,
        input=json.dumps(asdict(load)),
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent,
    )
    return Outcome(**json.loads(done.stdout))


class _Client:
    """One connection with at most one request on its way."""

    def __init__(self, load: Load, host: str, port: int) -> None:
        self.load = load
        self.head = "".join(f"{name}: {value}\r\n" for name, value in load.all_headers.items())
        self.host = f"{host}:{port}"
        self.buffer = bytearray()
        self.sent = 0.0
        self.socket = socket.create_connection((host, port), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self) -> None:
        number = str(random.randint(1, self.load.random_max))
        body = self.load.body.replace(self.load.mark, number).encode()
        path = self.load.path.replace(self.load.mark, number)
        headers = self.head.replace(self.load.mark, number) if self.load.in_headers else self.head
        head = f"{self.load.method} {path} HTTP/1.1\r\nHost: {self.host}\r\n{headers}"
        self.buffer.clear()
        self.sent = time.perf_counter()
        self.socket.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def receive(self) -> bool | None:
        """Whether the answer is a success; None while it is not complete."""
        data = self.socket.recv(1 << 20)
        if not data:
            raise ConnectionError("closed by the server")
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = bytes(self.buffer[:end]).lower()
        if b"transfer-encoding: chunked" in head:
            complete = self.buffer.endswith(b"\r\n0\r\n\r\n")
        else:
            length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            complete = len(self.buffer) >= end + 4 + length
        return b" 200 " in head.split(b"\r\n")[0] + b" " if complete else None


def _generate(load: Load) -> Outcome:
    address = urlsplit(load.url)
    assert address.hostname
    assert address.port
    poll = select.epoll()
    clients: dict[int, _Client] = {}

    def connect() -> None:
        client = _Client(load, address.hostname or "", address.port or 0)
        clients[client.socket.fileno()] = client
        poll.register(client.socket, select.EPOLLIN)
        client.send()

    for _ in range(load.connections):
        connect()
    latencies: list[float] = []
    errors = size = 0
    started = time.perf_counter()
    while time.perf_counter() - started < load.seconds:
        for descriptor, _ in poll.poll(1):
            client = clients[descriptor]
            try:
                success = client.receive()
                if success is None:
                    continue
                latencies.append(time.perf_counter() - client.sent)
                size += len(client.buffer)
                errors += not success
                client.send()
            except OSError:
                errors += 1
                poll.unregister(descriptor)
                clients.pop(descriptor).socket.close()
                connect()
    elapsed = time.perf_counter() - started
    # Those that have waited longer than an answer may take; younger ones are cut off by the end of the run.
    errors += sum(time.perf_counter() - client.sent > TIMEOUT_S for client in clients.values())
    for client in clients.values():
        client.socket.close()
    latencies.sort()
    count = len(latencies)
    p50, p99 = (latencies[count // 2], latencies[count * 99 // 100]) if count else (0.0, 0.0)
    return Outcome(count / elapsed, errors, count, size / max(1, count), p50 * 1e6, p99 * 1e6)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(_generate(Load(**json.load(sys.stdin))))))
