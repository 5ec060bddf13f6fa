"""PostgreSQL's own protocol: pgbench through `tuplegate tunnel` against the engine's socket, and what connections cost
that do nothing."""

import json
import os
import select
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

from tests.http.test_wire import Hand, query
from tests.service import Service, Sql, new_data_dir, remove, start_service

from bench.load import Load, run_load
from bench.measure import Line, measure_memory, pgbench, run_pgbench

ROUNDS = 5
SECONDS = 3
CLIENTS = 8
ROWS = 100_000
SESSIONS = 40
WEBSOCKETS = 1_000
WEBSOCKET_ROUNDS, WEBSOCKET_SECONDS = 3, 2
"""All within the ten seconds that a WebSocket has to begin."""
POINT_READ = "select name from users where id = "

_UPGRADE = (
    "GET /v2 HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def measure(_service: Service) -> list[Line]:
    """In a service of its own, where an organization may have more connections."""
    data_dir = new_data_dir()
    service = start_service(data_dir, "--wire-connections-max", "64")
    try:
        with service.client() as client:
            sql = Sql(client)
            sql("create table users (id int primary key, name text)")
            sql(f"insert into users select g, 'name' || g from generate_series(1, {ROWS}) g")
            sql("vacuum analyze users")
        return [*_measure_tunnel(service), *_measure_sessions(service), *_measure_websockets(service)]
    finally:
        service.stop()
        remove(data_dir)


def _measure_tunnel(service: Service) -> list[Line]:
    """Rounds of both, one after the other."""
    script = f"\\set id random(1, {ROWS})\n{POINT_READ}:id;\n"
    rates: dict[str, list[tuple[float, float]]] = {"simple": [], "prepared": []}
    with _tunnel(service) as address:
        for _ in range(ROUNDS):
            for mode, pairs in rates.items():
                options = ["-c", str(CLIENTS), "-M", mode]
                through = run_pgbench(script, SECONDS, *options, address, env={})
                pairs.append((through, pgbench(service, script, SECONDS, *options)))
    lines = []
    for mode, pairs in rates.items():
        ratios = [through / engine for through, engine in pairs]
        medians = (statistics.median(found) for found in zip(*pairs, strict=True))
        note = "{:,.0f}/s against {:,.0f}/s; ".format(*medians) + f"rounds {min(ratios):.2f} to {max(ratios):.2f}"
        lines.append(Line(f"pgbench -M {mode}, tunnel / engine", statistics.median(ratios), 0.2, False, note))
    return lines


@contextmanager
def _tunnel(service: Service) -> Iterator[str]:
    """Run the command; yield the address that it prints."""
    command = [sys.executable, "-m", "tuplegate", "tunnel", "--port", "0", "--url", service.url]
    env = {**os.environ, "TUPLEGATE_API_KEY": service.key}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[1]
        finally:
            process.terminate()


def _measure_sessions(service: Service) -> list[Line]:
    """Connections that have asked for a row and wait. The first ones pay for what all share."""
    memory = []
    with ExitStack() as closing:
        for _ in range(SESSIONS):
            hand = Hand(service)
            closing.callback(hand.websocket.close)
            hand.start(service.key)
            hand.send(query(f"{POINT_READ}1"))
            hand.until("Z")
            memory.append(measure_memory(service))
    half = SESSIONS // 2
    each = (memory[-1] - memory[half - 1]) / (SESSIONS - half) / 1024
    note = f"of {SESSIONS}; {(memory[-1] - memory[0]) / 2**20:.1f} MiB more than with one"
    return [Line("a connection of /v2, KiB of the service", each, 64, True, note)]


def _measure_websockets(service: Service) -> list[Line]:
    """WebSockets that are open and have not sent anything, beside point reads."""
    parts = urlsplit(service.url)
    body = json.dumps({"sql": f"{POINT_READ}%"})
    read = Load(service.url, service.key, body, ROWS, 32, WEBSOCKET_SECONDS)
    run_load(read)
    without = [run_load(read).per_second for _ in range(WEBSOCKET_ROUNDS)]
    before = measure_memory(service)
    with ExitStack() as closing:
        opened = []
        for _ in range(WEBSOCKETS):
            sock = closing.enter_context(socket.create_connection((parts.hostname or "", parts.port or 80)))
            sock.sendall(_UPGRADE.format(host=parts.netloc).encode())
            assert sock.recv(1000).startswith(b"HTTP/1.1 101")
            opened.append(sock)
        grown = (measure_memory(service) - before) / 2**20
        beside = [run_load(read).per_second for _ in range(WEBSOCKET_ROUNDS)]
        ended = select.poll()
        for sock in opened:
            ended.register(sock, select.POLLIN)
        assert not ended.poll(0), "some were closed meanwhile"
    ratio = statistics.median(beside) / statistics.median(without)
    note = f"{statistics.median(beside):,.0f}/s, {statistics.median(without):,.0f}/s without"
    return [
        Line(
            "1,000 idle WebSockets, MiB of the service", grown, 100, True, f"{grown / WEBSOCKETS * 1024:.1f} KiB each"
        ),
        Line("point read, with them / without", ratio, 0.9, False, note),
    ]
