"""A large answer counts against the memory for rows until its client has taken it, by whichever route it was asked for.

While one is not taken, the rows of the next large answer of the database stay with the engine.
"""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from tests.control import engine, new_organization
from tests.needs import needs
from tests.service import Service, Sql, running_service
from tests.waiting import eventually

SIZE = 12_000_000
"""Far more than the buffers of a socket hold, and less than one organization's share of the memory; twice as much is
more."""
LOOKS, LOOK_S = 20, 0.05
ROWS = f"select repeat('x', 1000) as text from generate_series(1, {SIZE // 1000})"
WAITING = "select count(*) from pg_stat_activity where wait_event = 'ClientWrite' and query like '%second%'"


@pytest.fixture(scope="module")
def small() -> Iterator[Service]:
    with running_service("--workers", "1", "--http-memory-mb", "64") as running:
        yield running


@contextmanager
def sent(service: Service, key: str, path: str, body: object, more: str = "") -> Iterator[socket.socket]:
    """A request whose answer is not read; leaving the block reads it."""
    url, text = urlsplit(service.url), json.dumps(body)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((url.hostname, url.port))
        head = f"POST {path} HTTP/1.1\r\nHost: {url.netloc}\r\nAuthorization: Bearer {key}\r\n{more}"
        head += f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
        client.sendall((head + text).encode())
        assert client.recv(64).startswith(b"HTTP/1.1 20"), "its answer has begun"
        yield client
        size = 0
        while data := client.recv(2**16):
            size += len(data)
        assert size > SIZE


@needs("postgresql")
@pytest.mark.parametrize("way", ["query", "transaction", "with a key", "open", "first of an open one", "last of one"])
def test_the_next_large_answer_waits(small: Service, way: str) -> None:
    made = new_organization(small)
    client = small.client(made.key)
    path, more = "/v1/query", ""
    body: dict[str, object] = {"sql": ROWS}
    match way:
        case "transaction":
            path, body = "/v1/transaction", {"statements": [ROWS]}
        case "with a key":
            more = "Idempotency-Key: one\r\n"
        case "first of an open one":
            path, body = "/v1/transaction/begin", {"statement": ROWS}
        case "open" | "last of one":
            id = client.post("/v1/transaction/begin", json={}).json()["transaction_id"]
            end, name = ("commit", "statement") if way == "last of one" else ("query", "sql")
            path, body = f"/v1/transaction/{id}/{end}", {name: ROWS}
    done = threading.Event()

    def ask() -> None:
        assert len(Sql(client).rows(f"select text from ({ROWS}) as second")) == SIZE // 1000
        done.set()

    database = Sql(client).value("select current_database()")
    with sent(small, made.key, path, body, more), engine(small, database) as look:
        asking = threading.Thread(target=ask)
        asking.start()
        eventually(lambda: look.execute(WAITING).fetchone() == (1,) or done.is_set())
        for _ in range(LOOKS):
            assert not done.is_set(), "the rows of the second answer were fetched"
            time.sleep(LOOK_S)
    asking.join(60)
    assert done.is_set()
    client.close()
