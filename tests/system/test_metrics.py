"""Metrics of several workers: whichever is asked answers for all, and a worker that dies takes no count with it."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.control import engine_pid
from tests.metrics import Page, fallen, scrape
from tests.servers import needs_linux
from tests.service import Service, needs_bundled, new_data_dir, remove, running_service, start_service
from tests.system.test_service import clear, run
from tests.waiting import eventually
from tests.workers import callers, workers

pytestmark = needs_linux

WORKERS = 3
QUERIES = {"plane": "data", "method": "POST", "route": "/v1/query", "status": "2xx"}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service("--workers", str(WORKERS)) as running:
        yield running


def queries(page: Page) -> float:
    return page.value("requests_total", **QUERIES)


def test_any_worker_answers_for_all(service: Service) -> None:
    """After a different number of requests to each worker, every one of them shows the sum, at once."""
    before = scrape(service)
    each = callers(service)
    for number, caller in enumerate(each):
        for _ in range(10 * (number + 1)):
            caller.sql("select * from generate_series(1, 5)")
    sent = sum(10 * (number + 1) for number in range(WORKERS))
    # More connections than workers, each asked anew: all workers are among those that answer.
    for _ in range(4 * WORKERS):
        page = scrape(service)
        assert queries(page) - queries(before) == sent
        assert (
            page.total("request_seconds_count", **_without_status())
            - before.total("request_seconds_count", **_without_status())
            == sent
        )
        assert page.total("database_rows_total") - before.total("database_rows_total") == 5 * sent
        assert page.value("attempts_total", kind="query") - before.value("attempts_total", kind="query") == sent
        assert page.value("http_connections", plane="data") == WORKERS
        assert {labels["worker"] for labels in page.series("worker_resident_bytes")} == {"0", "1", "2"}
    for caller in each:
        caller.close()


def test_a_killed_worker_takes_no_count_with_it(service: Service) -> None:
    """What was shown once is never less afterwards, whichever worker is killed, and when."""
    eventually(lambda: len(workers(service)) == WORKERS)
    last = scrape(service)
    for round in range(4):
        each = callers(service)
        for caller in each:
            for _ in range(10):
                caller.sql("select 1")
        page = scrape(service)
        assert not fallen(last, page)
        assert queries(page) - queries(last) == 10 * WORKERS
        os.kill(each[round % WORKERS].pid, signal.SIGKILL)
        for caller in each:
            caller.close()
        # While it is gone, and while its successor starts, and after.
        starts = page.value("worker_starts_total")
        while True:
            after = _scrape_patiently(service)
            assert not fallen(page, after)
            if after.value("worker_starts_total") > starts:
                break
            page = after
        assert queries(after) == queries(page)
        eventually(lambda: len(workers(service)) == WORKERS)
        last = after


def test_a_worker_that_is_told_to_stop_takes_no_count_with_it(service: Service) -> None:
    """Not even those since it posted last: it posts once more."""
    eventually(lambda: len(workers(service)) == WORKERS)
    before = scrape(service)
    each = callers(service)
    for caller in each:
        caller.sql("select 1")
    victim = each[0].pid
    for caller in each:
        caller.close()
    os.kill(victim, signal.SIGTERM)
    eventually(lambda: not Path(f"/proc/{victim}").exists())
    eventually(lambda: _scrape_patiently(service).value("worker_starts_total") > before.value("worker_starts_total"))
    after = scrape(service)
    assert not fallen(before, after)
    assert queries(after) - queries(before) == WORKERS


@needs_bundled
def test_the_engine_is_shown_as_down() -> None:
    """The page is there without the engine, too: on the address of its own, since the engine knows the tokens."""
    data_dir = new_data_dir()
    service = start_service(data_dir, "--workers", "2", "--metrics-address", "[::1]:0")
    address = dict(line.split(": ", 1) for line in service.output)["metrics"]
    before = _read(address)
    assert before.value("engine_up") == 1
    service.process.send_signal(signal.SIGSTOP)  # it would start the engine again
    try:
        os.kill(engine_pid(service), signal.SIGKILL)
        eventually(lambda: _read(address).value("engine_up") == 0)
        assert not fallen(before, _read(address))
    finally:
        service.process.send_signal(signal.SIGCONT)
    eventually(lambda: _read(address).value("engine_up") == 1)
    assert service.stop() == 0
    remove(data_dir)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:9090"])
def test_it_is_not_shown_to_other_machines(tmp_path: Path, address: str) -> None:
    """There is no token on that address, so neither TLS nor anything but a proxy makes it fit for others."""
    serve = ("serve", "--data-dir", str(tmp_path / "data"), "--metrics-address", address)
    for more in ((), ("--tls", "self-signed")):
        clear(run(*serve, *more), "would show the metrics to other machines")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["9090", "localhost:9090", "127.0.0.1:", "127.0.0.1:70000", "::1:x"])
def test_an_address_that_is_none_is_refused(tmp_path: Path, address: str) -> None:
    clear(
        run("serve", "--data-dir", str(tmp_path / "data"), "--metrics-address", address),
        "is not of the form 127.0.0.1:9090",
    )


def test_behind_a_proxy_it_may_be_anywhere() -> None:
    """And it is plain HTTP where the planes are not."""
    data_dir = new_data_dir()
    service = start_service(data_dir, "--metrics-address", "0.0.0.0:0", "--behind-proxy", "--tls", "self-signed")
    address = dict(line.split(": ", 1) for line in service.output)["metrics"]
    assert address.startswith("http://")
    assert service.url.startswith("https://")
    assert _read(address.replace("0.0.0.0", "127.0.0.1")).value("engine_up") == 1
    assert service.stop() == 0
    remove(data_dir)


def _read(address: str) -> Page:
    return Page(httpx.get(f"{address}/metrics", timeout=60).text)


def _without_status() -> dict[str, str]:
    return {name: value for name, value in QUERIES.items() if name != "status"}


def _scrape_patiently(service: Service) -> Page:
    """A connection that the dead worker had taken is cut off; the next one goes to a worker that lives."""
    while True:
        try:
            return scrape(service)
        except httpx.TransportError:
            continue
