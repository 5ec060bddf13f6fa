"""Transactions that stay open: their rate, what a hand-over costs, and what a thousand that do nothing cost others."""

import json
import re
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
from tests.metrics import scrape
from tests.service import Service, Sql, new_data_dir, remove, start_service
from tests.workers import callers, connect_to, workers

from bench.load import Load, run_load
from bench.measure import Line, measure_memory
from bench.transactions import ACCOUNT, ENTRY

ROUNDS = 5
SECONDS = 3
CONNECTIONS = 32
ROWS = 100_000
"""So many that hardly two transactions meet at one page of the index."""
HANDED_OVER = 2_000
"""Requests of a round that arrive at the holder, and as many that arrive elsewhere."""
AT_ONCE = 50
LEFT_OPEN_MS = 1_000
"""wrk stops in the middle: what it has begun and not committed would hold its locks, and its place, for 30 seconds."""
ORGANIZATIONS, EACH = 100, 10
LIFE_MS = 3_600_000

_LUA = """
local headers = {{ ["Content-Type"] = "application/json", ["Authorization"] = "Bearer {key}" }}
local whole, first, second = {whole}, {first}, {second}
local open = {{}}
local function numbered(body) return (body:gsub("%%", tostring(math.random(1, {rows})))) end
function init(args) math.randomseed(os.time()) end
function request()
  if whole then return wrk.format("POST", "/v1/transaction", headers, numbered(whole)) end
  local id = table.remove(open)
  if id then return wrk.format("POST", "/v1/transaction/" .. id .. "/commit", headers, numbered(second)) end
  return wrk.format("POST", "/v1/transaction/begin", headers, numbered(first))
end
function response(status, headers, body)
  if status == 201 then open[#open + 1] = body:match('"transaction_id":"([^"]+)"') end
end
"""


def measure(service: Service) -> list[Line]:
    lines = _measure_rate(service) if shutil.which("wrk") else []
    return [*lines, *_measure_handover(), *_measure_idle()]


# -- two requests against one -------------------------------------------------------------------------------------


def _measure_rate(service: Service) -> list[Line]:
    """Begin with one statement and commit with the other, against both in one request. Counted in the table."""
    with service.client() as client:
        sql = Sql(client)
        sql("create table bench_accounts (id int primary key, n bigint not null) with (fillfactor = 50)")
        sql(f"insert into bench_accounts select g, 0 from generate_series(1, {ROWS}) g")
        sql("create table bench_entries (account int, amount int)")
        sql("vacuum analyze bench_accounts")
        pairs = []
        for _ in range(ROUNDS):
            pairs.append((_run(service, sql, in_two=True), _run(service, sql, in_two=False)))
        sql("drop table bench_accounts, bench_entries")
    ratios = [in_two / in_one for in_two, in_one in pairs]
    two, one = (statistics.median(rates) for rates in zip(*pairs, strict=True))
    note = f"{two:,.0f}/s against {one:,.0f}/s; rounds {min(ratios):.2f} to {max(ratios):.2f}"
    return [Line("open transaction, 2 requests / 1 request", statistics.median(ratios), 0.6, False, note)]


def _run(service: Service, sql: Sql, *, in_two: bool) -> float:
    """Transactions a second that were committed."""
    bodies = {
        "whole": "nil" if in_two else _lua({"statements": [ACCOUNT, ENTRY]}),
        "first": _lua({"statement": ACCOUNT, "idle_timeout_ms": LEFT_OPEN_MS}),
        "second": _lua({"statement": ENTRY}),
    }
    before = sql.value("select count(*) from bench_entries")
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(_LUA.format(key=service.key, rows=ROWS, **bodies))
        script.flush()
        command = [
            "wrk",
            "-t1",
            f"-c{CONNECTIONS}",
            f"-d{SECONDS}s",
            "--timeout",
            "20s",
            "-s",
            script.name,
            service.url,
        ]
        ran = subprocess.run(command, capture_output=True, check=True, text=True)
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", ran.stdout)
    if refused is not None:
        print(f"{refused[1]} requests were refused", flush=True)
    rate = float(sql.value("select count(*) from bench_entries") - before) / SECONDS
    while scrape(service).value("open_transactions"):
        time.sleep(0.1)
    return rate


def _lua(body: dict[str, object]) -> str:
    return f"[==[{json.dumps(body)}]==]"


# -- a request that arrives elsewhere -----------------------------------------------------------------------------


def _measure_handover() -> list[Line]:
    """The time of a request of an open transaction, sent to the worker that holds it and to the other one, in turns."""
    data_dir = new_data_dir()
    service = start_service(data_dir, "--workers", "2")
    try:
        first = callers(service)[0]
        _, begun = first("POST", "/v1/transaction/begin", {"timeout_ms": LIFE_MS})
        path = f"/v1/transaction/{begun['transaction_id']}/query"
        right, wrong = (
            _Asker(service, pid, path) for pid in sorted(workers(service), key=lambda pid: pid != first.pid)
        )
        ratios, times = [], []
        for _ in range(ROUNDS):
            spent: tuple[list[float], list[float]] = ([], [])
            for _ in range(HANDED_OVER // AT_ONCE):
                for asker, each in zip((right, wrong), spent, strict=True):
                    each += [asker.ask() for _ in range(AT_ONCE)]
            ratios.append(statistics.median(spent[1]) / statistics.median(spent[0]))
            times += spent[0]
        right.close()
        wrong.close()
        first.close()
    finally:
        service.stop()
        remove(data_dir)
    note = f"{statistics.median(times) * 1e6:,.0f} us where it is held; rounds {min(ratios):.2f} to {max(ratios):.2f}"
    return [Line("request handed over / one that is not", statistics.median(ratios), 1.6, True, note)]


class _Asker:
    """One connection to one worker, and one request that is sent again and again."""

    def __init__(self, service: Service, pid: int, path: str) -> None:
        self._socket = connect_to(service, pid=pid)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = json.dumps({"sql": "select 1 as n"})
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {urlsplit(service.url).netloc}\r\nAuthorization: Bearer {service.key}\r\n"
        )
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._request = (head + body).encode()

    def ask(self) -> float:
        started = time.perf_counter()
        self._socket.sendall(self._request)
        data = b""
        while not data.endswith(b"}}"):
            more = self._socket.recv(1 << 16)
            assert more, data
            data += more
        spent = time.perf_counter() - started
        assert data.startswith(b"HTTP/1.1 200"), data
        return spent

    def close(self) -> None:
        self._socket.close()


# -- many that do nothing -----------------------------------------------------------------------------------------


def _measure_idle() -> list[Line]:
    """Memory of the service, and point reads of another organization, with and without a thousand that are open, in
    turns."""
    data_dir = new_data_dir()
    most = 2 * (ORGANIZATIONS * EACH + 200)
    service = start_service(data_dir, "--engine-connections-max", str(most), "--tiers", "unlimited")
    try:
        keys = _make_organizations(service)
        with service.client() as client:
            sql = Sql(client)
            sql("create table users (id int primary key, name text)")
            sql(f"insert into users select g, 'name' || g from generate_series(1, {ROWS}) g")
            sql("vacuum analyze users")
        for key in keys:
            with service.client(key) as client:
                Sql(client)("select 1")
        read = Load(
            service.url, service.key, json.dumps({"sql": "select name from users where id = %"}), ROWS, 32, SECONDS
        )
        run_load(read)
        grown, pairs = 0.0, []
        for _ in range(ROUNDS):
            without, before = run_load(read).per_second, measure_memory(service)
            with ExitStack() as closing:
                _open_all(service, keys, closing)
                grown = max(grown, (measure_memory(service) - before) / 2**20)
                pairs.append((run_load(read).per_second, without))
    finally:
        service.stop()
        remove(data_dir)
    note = f"{grown / ORGANIZATIONS / EACH * 1024:.1f} KiB each"
    ratios = [with_them / without for with_them, without in pairs]
    with_them, without = (statistics.median(rates) for rates in zip(*pairs, strict=True))
    rates_note = f"{with_them:,.0f}/s, {without:,.0f}/s without; rounds {min(ratios):.2f} to {max(ratios):.2f}"
    return [
        Line("1,000 open transactions, MiB", grown, 30, True, note),
        Line("point read, with them / without", statistics.median(ratios), 0.9, False, rates_note),
    ]


def _make_organizations(service: Service) -> list[str]:
    headers = {"Authorization": f"Bearer {service.key}"}
    with httpx.Client(base_url=service.control_url, headers=headers, timeout=120, trust_env=False) as control:
        made = [
            control.post("/v1/organizations", json={"name": f"idle-{number}", "tier": "unlimited"})
            for number in range(ORGANIZATIONS)
        ]
    return [answer.json()["key"] for answer in made]


def _open_all(service: Service, keys: list[str], closing: ExitStack) -> None:
    """Begin them; they are rolled back when `closing` is left."""
    begin = {"statement": "select 1", "timeout_ms": LIFE_MS, "idle_timeout_ms": 300_000}
    for key in keys:
        client = closing.enter_context(service.client(key))
        for _ in range(EACH):
            answer = client.post("/v1/transaction/begin", json=begin)
            assert answer.status_code == 201, answer.text
            closing.callback(client.post, f"/v1/transaction/{answer.json()['transaction_id']}/rollback")
