"""A repeated `Idempotency-Key` at another worker, while it is undecided what became of the first request."""

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.faults import engine_socket_directory, once_back
from tests.servers import needs_linux
from tests.service import Service, Sql, needs_bundled, running_service
from tests.wire_proxy import At, Fault, WireProxy
from tests.workers import Caller, connect_to, workers

pytestmark = [needs_linux, needs_bundled]

Body = dict[str, Any]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service("--workers", "2") as running:
        yield running


@pytest.fixture
def proxy(service: Service) -> Iterator[WireProxy]:
    """A proxy between all workers and the server of the first database."""
    with WireProxy(engine_socket_directory(service)) as between:
        for pid in workers(service):
            os.kill(pid, signal.SIGKILL)
        once_back(lambda: len(workers(service)) == 2 and answers(service))
        yield between


def answers(service: Service) -> bool:
    try:
        with service.client() as client:
            return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def query_of(table: str) -> tuple[str, Body]:
    return "/v1/query", {"sql": f"insert into {table} values (1)", "timeout_ms": 1500}


def transaction_of(table: str) -> tuple[str, Body]:
    return "/v1/transaction", {"statements": [f"insert into {table} values (1)"], "timeout_ms": 1500}


def division_of(table: str) -> tuple[str, Body]:
    return "/v1/query", {"sql": f"insert into {table} select 1 / (1 - count(*)) from {table}", "timeout_ms": 1500}


@pytest.mark.parametrize("request_of", [query_of, transaction_of, division_of])
def test_no_failure_of_a_repeat_is_final_while_the_first_is_undecided(
    service: Service, proxy: WireProxy, request_of: Callable[[str], tuple[str, Body]]
) -> None:
    """The worker dies between PREPARE and COMMIT PREPARED; the row is committed, so no repeat may hear that it is not.

    A repeat that runs meets a time limit or a duplicate key, or divides by zero.
    """
    table = f"t_{uuid.uuid4().hex[:12]}"
    with service.client() as client:
        Sql(client)(f"create table {table} (a int primary key)")
    first = Caller(service, connect_to(service))
    second = Caller(service, connect_to(service, other_than=first.pid))
    path, body = request_of(table)
    key = {"Idempotency-Key": table}
    fault = proxy.arm(
        Fault(lambda text: text.startswith("COMMIT PREPARED"), At.REQUEST, lambda: os.kill(first.pid, signal.SIGKILL))
    )
    with pytest.raises(ConnectionError):
        first("POST", path, body, key)
    assert fault.happened.wait(30)

    told: list[tuple[int, Any]] = []

    def succeeds() -> bool:
        status, answer = second("POST", path, body, key)
        told.append((status, answer.get("error", {}).get("code")))
        return status == 200 and bool(answer["success"])

    once_back(succeeds)
    second.close()
    assert set(told[:-1]) <= {(409, "idempotency_in_progress")}, told
    with service.client() as client:
        assert Sql(client).value(f"select count(*) from {table}") == 1
