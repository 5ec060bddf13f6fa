"""Open transactions and several workers: any of them can be asked, and one that is gone leaves nothing unknown."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import sqlalchemy

import tuplegate.sqlalchemy  # noqa: F401 - makes the dialect known
from tests.control import at_once, new_organization
from tests.dbapi.conftest import address
from tests.http.test_open_transactions import Open, error_of, rows
from tests.service import Service, new_data_dir, remove, start_service
from tests.waiting import eventually
from tests.workers import workers
from tuplegate import dbapi
from tuplegate.dbapi.errors import is_disconnect
from tuplegate.http.parsing.message import FIELDS_MAX, HEAD_BYTES_MAX


@pytest.fixture(scope="module")
def two() -> Iterator[Service]:
    data_dir = new_data_dir()
    running = start_service(data_dir, "--workers", "2")
    with running.client() as client:
        client.post("/v1/query", json={"sql": "create table notes (id int primary key, text text)"})
    yield running
    assert running.stop() == 0
    remove(data_dir)


@pytest.fixture
def clients(two: Service) -> Iterator[list[httpx.Client]]:
    """Clients on connections to both workers: as many to one as to the other."""
    opened = [two.client() for _ in range(8)]
    opened[0].post("/v1/query", json={"sql": "truncate notes"})
    for client in opened:
        client.get("/health")
    yield opened
    for client in opened:
        client.close()


def test_every_worker_answers(clients: list[httpx.Client]) -> None:
    opened = Open(clients[0])
    for number, client in enumerate(clients):
        opened.client = client
        opened.query("insert into notes values ($1, 'x')", number)
        assert opened.state["state"] == "open"
    opened.query("savepoint a")
    for client in clients[:4]:
        answer = client.post(
            f"/v1/transaction/{opened.id}/query",
            json={"sql": "select i from generate_series(1, 5000) i"},
            headers={"Accept": "application/x-ndjson"},
        )
        assert len(answer.text.splitlines()) == 5002
        assert len(answer.headers.get_list("date")) == 1
    assert opened.query("select nothing")["transaction"]["state"] == "failed"
    assert opened.query("rollback to a")["transaction"]["state"] == "open"
    done = opened.commit()
    assert done["success"]
    for client in clients:
        opened.client = client
        assert opened.state["state"] == "committed"
        assert opened.commit() == done
    assert rows(clients[0]) == list(range(8))


@pytest.mark.parametrize("in_chunks", [False, True])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_body_is_never_read_as_another_request(
    two: Service, clients: list[httpx.Client], method: str, in_chunks: bool
) -> None:
    """Whatever a request is handed over with stays its body, also where nobody reads that."""
    opened = Open(clients[0])
    statement = b"insert into notes values (1, 'hidden')"
    hidden = b"POST /query HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %b\r\nContent-Type: text/plain\r\n" % (
        two.key.encode()
    ) + b"Content-Length: %d\r\n\r\n%b" % (len(statement), statement)
    for _ in range(2):  # the second time their heads are known
        for client in clients:
            content = iter([hidden]) if in_chunks else hidden
            assert client.request(method, f"/v1/transaction/{opened.id}", content=content).status_code == 200
    opened.query("insert into notes values (2, 'x')")
    assert opened.commit()["success"]
    assert rows(clients[0]) == [2]


def make_head(path: str, key: str, *, as_long_as_may_be: bool) -> bytes:
    """A request whose head is as long, or has as many headers, as may be."""
    lines = [f"GET {path} HTTP/1.1", "Host:a", f"Authorization:Bearer {key}"]
    if as_long_as_may_be:
        size = len("\r\n".join([*lines, "X:", "", ""]))
        return "\r\n".join([*lines, "X:" + "x" * (HEAD_BYTES_MAX - size), "", ""]).encode()
    return "\r\n".join([*lines, *(f"X{number}:x" for number in range(FIELDS_MAX - 2)), "", ""]).encode()


@pytest.mark.parametrize("as_long_as_may_be", [True, False], ids=["bytes", "headers"])
@pytest.mark.parametrize("plane", ["data", "alias"])
def test_a_head_at_the_limits_is_handed_over(
    two: Service, clients: list[httpx.Client], plane: str, as_long_as_may_be: bool
) -> None:
    """Whatever the workers add to it on their way."""
    opened = Open(clients[0])
    url = urlsplit(two.url if plane == "data" else two.alias_url)
    head = make_head(f"/v1/transaction/{opened.id}", two.key, as_long_as_may_be=as_long_as_may_be)
    with ExitStack() as stack:
        asking = [stack.enter_context(socket.create_connection((url.hostname, url.port), 20)) for _ in clients]
        for sock in asking:  # of both workers
            sock.sendall(head)
            assert sock.recv(2**16).startswith(b"HTTP/1.1 200 ")
            sock.sendall(head.replace(b"\r\nX", b"\r\nY:\r\nX", 1))
            assert sock.recv(2**16).startswith(b"HTTP/1.1 400 ")
    opened.rollback()


def test_what_is_handed_over_is_counted_once(two: Service, clients: list[httpx.Client]) -> None:
    opened = Open(clients[0])
    left = []
    for client in clients:
        answer = client.post(f"/v1/transaction/{opened.id}/query", json={"sql": "select 1"})
        left.append(answer.headers.get_list("ratelimit"))
        assert len(answer.headers.get_list("date")) == 1
    assert all(len(headers) <= 1 for headers in left)
    opened.rollback()


def test_what_was_seen_before_is_good_for_its_own_alone(two: Service, clients: list[httpx.Client]) -> None:
    """Workers remember ids that they have handed over, and the MACs that they were handed with them."""
    key = new_organization(two, "pro").key
    owners = [two.client(key) for _ in clients]
    opened = Open(owners[0])
    path = f"/v1/transaction/{opened.id}/query"
    forged = path.replace(opened.id, opened.id[:-1] + ("a" if opened.id[-1] == "b" else "b"))
    for owner in owners:
        assert owner.post(path, json={"sql": "select 1"}).status_code == 200
    for owner, stranger in zip(owners, clients, strict=True):
        assert error_of(owner.post(forged, json={"sql": "select 1"})) == (404, "not_found")
        assert error_of(stranger.post(path, json={"sql": "select 1"})) == (404, "not_found")
        counted = owner.post(path, json={"sql": "select 1"}, headers={"Tuplegate-Handed-Over": "0" * 64})
        assert counted.headers.get_list("ratelimit") != []
    opened.rollback()
    for owner in owners:
        owner.close()


def test_the_workers_count_together(two: Service, clients: list[httpx.Client]) -> None:
    """However a client spreads its connections; and a worker that was killed counts for nothing."""
    opened = [Open(client) for client in clients * 2]
    for client in clients:
        assert error_of(client.post("/v1/transaction/begin", json={})) == (503, "busy")
    opened.pop().rollback()
    opened.append(Open(clients[0]))
    assert error_of(clients[1].post("/v1/transaction/begin", json={})) == (503, "busy")
    kill_workers(two)
    with two.client() as client:
        opened = [Open(client) for _ in range(16)]
        assert error_of(client.post("/v1/transaction/begin", json={})) == (503, "busy")
        for one in opened:
            one.rollback()


def test_requests_of_all_workers_at_once_do_not_wait_for_each_other(clients: list[httpx.Client]) -> None:
    """Each is handed over, both ways at once, by more than an organization has places in a worker."""
    opened = [Open(client) for client in clients for _ in range(2)]
    answers: list[int] = []

    def ask_often(client: httpx.Client) -> None:
        for _ in range(4):
            for one in opened:
                answer = client.post(f"/v1/transaction/{one.id}/query", json={"sql": "select 1"}, timeout=20)
                answers.append(answer.status_code)

    threads = [threading.Thread(target=ask_often, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8 * 4 * 16
    assert set(answers) <= {200, 409}
    for one in opened:
        one.rollback()


def test_a_client_that_leaves_a_stream_of_another_worker(clients: list[httpx.Client]) -> None:
    """Also where it leaves just as the worker in between finds out: often, since that is a matter of moments."""
    for client in clients * 4:
        opened = Open(clients[0])
        with client.stream(
            "POST",
            f"/v1/transaction/{opened.id}/query",
            json={"sql": "select i, pg_sleep(0.01) from generate_series(1, 100000) i"},
            headers={"Accept": "application/x-ndjson"},
        ) as answer:
            next(answer.iter_lines())
        eventually(partial(takes_a_statement, opened))
        opened.rollback()


def takes_a_statement(opened: Open) -> bool:
    return opened.post("query", sql="savepoint a").status_code == 200


def test_a_commit_that_is_sent_twice_at_once_is_carried_out_once(clients: list[httpx.Client]) -> None:
    for number in range(20):
        opened = Open(clients[number % 8])
        opened.query("insert into notes values ($1, 'x')", number)
        path = f"/v1/transaction/{opened.id}/commit"
        answers = at_once([partial(client.post, path) for client in clients])
        refused = [error_of(answer) for answer in answers if answer.status_code != 200]
        told = [answer.json() for answer in answers if answer.status_code == 200]
        assert set(refused) <= {(409, "transaction_in_use")}
        assert told
        assert all(one == told[0] and one["success"] for one in told), told
        assert opened.commit() == told[0]
    assert rows(clients[0]) == list(range(20))


def test_of_a_commit_and_an_abort_at_once_one_wins(clients: list[httpx.Client]) -> None:
    """All who ask are told the same, before and after."""
    applied = []
    for number in range(40):
        opened = Open(clients[number % 8])
        opened.query("insert into notes values ($1, 'x')", number)
        works = [("commit", clients[0]), ("abort", clients[1]), ("rollback", clients[2]), ("commit", clients[3])]
        works = works[number % 4 :] + works[: number % 4]
        answers = at_once([partial(client.post, f"/v1/transaction/{opened.id}/{what}") for what, client in works])
        state = opened.state["state"]
        assert state in ("committed", "aborted")
        for answer in answers:
            body = answer.json()
            told = body.get("state") or ("committed" if body["success"] and "commit" in body else None)
            assert told in (state, None), (state, body)
        if state == "committed":
            applied.append(number)
    assert rows(clients[0]) == applied


def test_an_end_of_life_and_a_commit_at_once(clients: list[httpx.Client]) -> None:
    """The commit is carried out whole, or the transaction has expired."""
    applied = []
    for number in range(30):
        opened = Open(clients[number % 8], timeout_ms=40 + number)
        answer = opened.post("query", sql="insert into notes select $1, pg_sleep(0.03)::text", params=[number])
        while answer.status_code == 200 and answer.json()["success"]:
            answer = opened.post("commit", statement="select 1")
            if answer.status_code == 200 and answer.json()["success"]:
                applied.append(number)
                break
        eventually(partial(opened.is_in, "committed", "aborted"))
        state = opened.state
        assert state["state"] == ("committed" if applied[-1:] == [number] else "aborted"), answer.text
        assert state.get("reason") in (None, "lifetime"), answer.text
    assert rows(clients[0]) == applied


def test_a_holder_that_is_killed_leaves_it_aborted(two: Service, clients: list[httpx.Client]) -> None:
    opened = [Open(client) for client in clients]
    for number, one in enumerate(opened):
        one.query("insert into notes values ($1, 'x')", number)
    running: list[Any] = []
    threads = [
        threading.Thread(target=lambda one=one: running.append(ask(one, "select pg_sleep(3)"))) for one in opened[:2]
    ]
    for thread in threads:
        thread.start()
    victim = workers(two)[0]
    os.kill(victim, signal.SIGKILL)
    for thread in threads:
        thread.join()
    with two.client() as client:
        states = []
        for one in opened:
            one.client = client
            eventually(partial(is_known, one))
            states.append(one.state)
        gone = [state for state in states if state["state"] == "aborted"]
        assert gone
        assert {state["reason"] for state in gone} == {"lost"}
        for one, state in zip(opened, states, strict=True):
            if state["state"] == "aborted":
                assert error_of(one.post("query", sql="select 1")) == (409, "transaction_aborted")
                assert error_of(one.post("commit")) == (409, "transaction_aborted")
            else:
                assert one.commit()["success"]
        kept = [number for number, state in enumerate(states) if state["state"] != "aborted"]
        assert rows(client) == kept


def ask(one: Open, sql: str) -> Any:
    try:
        return one.post("query", sql=sql)
    except httpx.HTTPError as exc:
        return exc


def is_known(opened: Open) -> bool:
    return opened.client.get(f"/v1/transaction/{opened.id}").status_code == 200


def is_replaced(service: Service, victim: int) -> bool:
    return victim not in workers(service) and len(workers(service)) == 2


def kill_workers(service: Service) -> None:
    """Kill all of them, and wait for those that come after them."""
    for victim in workers(service):
        os.kill(victim, signal.SIGKILL)
        eventually(partial(is_replaced, service, victim))
    with service.client() as client:
        eventually(lambda: client.get("/health").status_code == 200)


def test_a_driver_is_told_that_its_transaction_is_lost(two: Service, clients: list[httpx.Client]) -> None:
    connection = dbapi.connect(address(two))
    cursor = connection.cursor()
    cursor.execute("insert into notes values (1, 'x')")
    kill_workers(two)
    with pytest.raises(dbapi.OperationalError, match="lost") as raised:
        cursor.execute("insert into notes values (2, 'x')")
    assert is_disconnect(raised.value)
    connection.rollback()
    cursor.execute("insert into notes values (3, 'x')")
    connection.commit()
    cursor.execute("select id from notes")
    assert cursor.fetchall() == [(3,)]
    connection.close()


def test_the_pool_of_sqlalchemy_recovers(two: Service, clients: list[httpx.Client]) -> None:
    """A connection whose transaction was lost is replaced, and so are the others of its pool."""
    engine = sqlalchemy.create_engine(address(two))
    with engine.connect() as connection:
        first = connection.connection.dbapi_connection
        connection.execute(sqlalchemy.text("insert into notes values (1, 'x')"))
        kill_workers(two)
        with pytest.raises(sqlalchemy.exc.OperationalError) as raised:
            connection.execute(sqlalchemy.text("insert into notes values (2, 'x')"))
        assert raised.value.connection_invalidated
    with engine.begin() as connection:
        assert connection.connection.dbapi_connection is not first
        connection.execute(sqlalchemy.text("insert into notes values (3, 'x')"))
    with engine.connect() as connection:
        assert connection.scalars(sqlalchemy.text("select id from notes")).all() == [3]
    engine.dispose()
