"""Requests with a key while workers are killed: each is applied once."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.faults import once_back
from tests.http.test_idempotency import REPLAYED, Send, by_query, by_transaction, held_up
from tests.service import Service, Sql, new_data_dir, remove, start_service
from tests.workers import workers


@pytest.fixture
def data_dir() -> Iterator[Path]:
    path = new_data_dir()
    yield path
    remove(path)


def worker_of(service: Service) -> int:
    """The worker, once there is one again."""
    once_back(lambda: bool(workers(service)))
    [pid] = workers(service)
    return pid


def asleep(service: Service, mark: str) -> int:
    """How many statements with the mark sleep in the engine."""
    return held_up(service, mark, "wait_event = 'PgSleep'")


def insistent(service: Service, send: Send, key: str, statement: str) -> httpx.Response:
    """Repeats until it is answered, as a client does that wants to be sure."""

    def sent() -> httpx.Response | None:
        with service.client() as client:
            answer = send(client, key, statement)
        return None if answer.status_code in (409, 503) else answer

    return once_back(sent)


def test_restart_and_crash(data_dir: Path) -> None:
    """Answers outlive the service; with a worker killed at any moment, repeating under the key applies once."""
    service = start_service(data_dir)
    key = service.key
    try:
        with service.client() as client:
            Sql(client)("create table t (a text)")
            first = by_query(client, "restart", "insert into t values ('restart') returning clock_timestamp()")
        service.stop()
        service = start_service(data_dir)
        service.key = key
        with service.client() as client:
            again = by_query(client, "restart", "insert into t values ('restart') returning clock_timestamp()")
        assert again.headers[REPLAYED] == "true"
        assert again.content == first.content

        statement = "with i as (insert into t values ('slow')) select pg_sleep(3) /* slow */"
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(insistent, service, by_transaction, "slow", statement)
            once_back(lambda: asleep(service, "slow") == 1)
            os.kill(worker_of(service), signal.SIGKILL)
            assert answer.result().json()["success"] is True
        for round in range(8):
            send = (by_query, by_transaction)[round % 2]
            with ThreadPoolExecutor(1) as pool:
                answer = pool.submit(insistent, service, send, f"r{round}", f"insert into t values ('r{round}')")
                time.sleep(round * 0.0015)  # every round meets the request at another point
                os.kill(worker_of(service), signal.SIGKILL)
                assert answer.result().json()["success"] is True
        with service.client() as client:
            twice = Sql(client).rows("select a, count(*) from t group by a having count(*) <> 1")
            assert twice == []
            assert Sql(client).value("select count(*) from t") == 10
    finally:
        service.stop()
