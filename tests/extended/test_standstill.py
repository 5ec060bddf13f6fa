"""A worker that stands still is noticed and replaced; one that only seems to is left alone."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.metrics import scrape
from tests.processes import alive
from tests.servers import needs_linux
from tests.service import Service, new_data_dir, remove, running_service, start_service
from tests.system.test_tls import make_certificate
from tests.waiting import eventually
from tests.workers import Caller, callers, connect_to, workers

pytestmark = needs_linux


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service("--workers", "2") as running:
        yield running


def replacements(service: Service) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in service.log.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == "the worker stands still and is killed"]


def test_a_stopped_worker_is_replaced(service: Service) -> None:
    """The other one answers meanwhile, and the new one afterwards."""
    victim, bystander = callers(service)
    before, logged = scrape(service).value("worker_standstills_total"), len(replacements(service))
    os.kill(victim.pid, signal.SIGSTOP)
    stopped_at = time.monotonic()
    slowest = 0.0
    while alive(victim.pid):
        assert time.monotonic() - stopped_at < 30, "nobody noticed"
        asked_at = time.monotonic()
        assert bystander.sql("select 1 as a") == [{"a": 1}]
        slowest = max(slowest, time.monotonic() - asked_at)
        time.sleep(0.05)
    assert time.monotonic() - stopped_at > 5
    assert slowest < 2
    eventually(lambda: len(workers(service)) == 2)
    [fresh] = set(workers(service)) - {bystander.pid}
    caller = Caller(service, connect_to(service, pid=fresh))
    assert caller.sql("select 1 as a") == [{"a": 1}]
    assert scrape(service).value("worker_standstills_total") == before + 1
    [line] = replacements(service)[logged:]
    assert line["stacks"] == "T (stopped)"
    for each in (victim, bystander, caller):
        each.close()


def test_a_loop_that_waits_for_a_file(tmp_path: Path) -> None:
    """The log says in which line it stood, and the worker that takes its place serves."""
    data_dir = new_data_dir()
    certificate, key = make_certificate(tmp_path, "stand")
    service = start_service(data_dir, "--tls-cert", str(certificate), "--tls-key", str(key))
    [victim] = workers(service)
    content = certificate.read_bytes()
    certificate.unlink()
    os.mkfifo(certificate)
    os.kill(victim, signal.SIGHUP)  # it reads its certificate again, and nobody ever writes to the pipe
    opened: list[int] = []

    def is_read() -> bool:
        try:
            opened.append(os.open(certificate, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return False
        return True

    eventually(is_read)
    certificate.unlink()
    certificate.write_bytes(content)
    eventually(lambda: not alive(victim))
    eventually(lambda: len(workers(service)) == 1)
    [line] = replacements(service)
    assert "in reload" in str(line["stacks"])
    assert 'tuplegate/http/tls/certificates.py", line' in str(line["stacks"])
    with httpx.Client(base_url=service.url, verify=False, trust_env=False, timeout=60) as client:
        assert client.get("/health").json()["status"] == "ok"
    os.close(opened[0])
    assert service.stop() == 0
    remove(data_dir)


def test_a_pause_of_all_processes_counts_against_nobody(service: Service) -> None:
    """As when a machine is suspended: the supervisor is the first to go on, and finds beats that are old."""
    eventually(lambda: len(workers(service)) == 2)
    before, logged = workers(service), len(replacements(service))
    for pid in before:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(0.5)  # it has looked at them since
    service.process.send_signal(signal.SIGSTOP)
    time.sleep(7)  # the pause itself
    service.process.send_signal(signal.SIGCONT)
    time.sleep(0.5)  # it looks at them, more than once
    for pid in before:
        os.kill(pid, signal.SIGCONT)
    time.sleep(1)
    assert workers(service) == before
    assert len(replacements(service)) == logged


def test_a_stop_says_where_a_worker_stood() -> None:
    """One that does not stop in its time is killed, as before, and its stacks are in the log."""
    data_dir = new_data_dir()
    service = start_service(data_dir, "--stop-timeout-s", "0")
    [pid] = workers(service)
    os.kill(pid, signal.SIGSTOP)
    assert service.stop() == 0
    assert "the worker did not stop in time and is killed" in service.log
    assert "T (stopped)" in service.log
    remove(data_dir)
