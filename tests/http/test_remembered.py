"""What the service remembers of what clients send stays small."""

import json
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.servers import needs_linux
from tests.service import Service, Sql, running_service
from tests.workers import peak_mb, workers


def resident_mb(service: Service) -> float:
    [pid] = workers(service)
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6


@pytest.fixture(scope="module")
def alone() -> Iterator[Service]:
    """A service whose memory nobody else uses."""
    with running_service() as running:
        yield running


@needs_linux
def test_results_of_many_columns_with_ever_new_names(alone: Service) -> None:
    """How to write a row is remembered by its columns; the memory for that is bounded, however wide rows are."""
    with alone.client() as client:
        sql = Sql(client)

        def ask(number: int) -> None:
            columns = ",".join(f'1 "{number:_>40}{column}"' for column in range(1600))
            assert len(sql.rows(f"select {columns}")[0]) == 1600

        for number in range(20):
            ask(number)
        before = resident_mb(alone)
        for number in range(20, 220):
            ask(number)
        assert resident_mb(alone) - before < 40


@pytest.mark.parametrize("length", [64, 5000])
def test_a_database_name_that_is_too_long(sql: Sql, length: int) -> None:
    """It is not found, and not repeated as a whole."""
    sql.client.headers["Tuplegate-Database"] = "x" * length
    answer = sql.answer("select 1")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert answer.json()["error"]["message"] == f"there is no database '{'x' * 63}…' for this token"


@needs_linux
def test_long_request_targets(alone: Service) -> None:
    """Anybody may send them, without a token, and each another one."""
    with closing(HTTPConnection(urlsplit(alone.url).netloc, timeout=60)) as client:  # httpx reads each for milliseconds

        def ask(number: int) -> None:
            client.request("GET", f"/{number}/{'x' * 20_000}?{'y' * 10_000}")
            answer = client.getresponse()
            answer.read()
            assert answer.status == 404

        for number in range(50):
            ask(number)
        before = resident_mb(alone)
        for number in range(50, 1050):
            ask(number)
        assert resident_mb(alone) - before < 20


@needs_linux
@pytest.mark.parametrize(
    "body",
    [
        {"sql": f"selec '{'x' * 9_000_000}'"},
        {"sql": "select $1::int", "params": ["x" * 9_000_000]},
        {"statements": ["select 1", f"selec '{'x' * 9_000_000}'"]},
        {"sql": f"/*+ STREAM */ selec '{'x' * 9_000_000}'"},
    ],
    ids=["statement", "parameter", "transaction", "stream"],
)
def test_large_requests_that_fail(service: Service, client: httpx.Client, body: dict[str, Any]) -> None:
    """Nothing holds them once they are answered, and nobody waits for the collector."""
    path = "/v1/transaction" if "statements" in body else "/v1/query"
    content = json.dumps(body).encode()

    def ask() -> None:
        answer = client.post(path, content=content, headers={"Content-Type": "application/json"})
        assert '"success":false' in answer.text

    ask()
    before = peak_mb(service)
    for _ in range(6):
        ask()
    assert peak_mb(service) - before < 100
