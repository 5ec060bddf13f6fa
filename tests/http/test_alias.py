"""The alias: the data plane through an extra hop, and every way in which that hop could change, hold or leak something.

`fronting` leads to a socket that the test itself answers from, so that it sees what is forwarded and can misbehave.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.http.test_bad_input import (
    JSON_TYPE,
    TEXT_TYPE,
    answers_in,
    ask,
    connect,
    drip,
    head,
    post,
    read_all,
    talk,
)
from tests.http.test_streaming import ENDLESS, Watch
from tests.needs import needs
from tests.servers import needs_linux
from tests.service import Service, Sql, new_data_dir, remove, start_service
from tests.streams import ENDS, SSE, Stream, read_until_cut, tell
from tests.system.test_service import child
from tuplegate.admission.paths import gather_paths
from tuplegate.alias.plane import Alias
from tuplegate.http.connection import HttpBounds
from tuplegate.http.forwarding.upstream import UpstreamAddress
from tuplegate.http.origins import PageOrigins, parse_origin
from tuplegate.http.server import HttpServer
from tuplegate.http.sharing.memory import Memory

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture
def alias(service: Service) -> Service:
    return service.alias


@pytest.fixture
def watch(service: Service) -> Iterator[Watch]:
    opened = Watch(service)
    opened.until(lambda: opened.busy == 0)
    yield opened
    opened.connection.close()


class Upstream:
    """What stands behind an alias: the connections it opens, answered by hand."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(20)
        self.port = self.listener.getsockname()[1]
        self.opened: list[socket.socket] = []

    def accept(self) -> socket.socket:
        connection = self.listener.accept()[0]
        connection.settimeout(20)
        self.opened.append(connection)
        return connection

    @property
    def asked(self) -> bool:
        """Whether a connection waits to be accepted."""
        self.listener.settimeout(0)
        try:
            self.opened.append(self.listener.accept()[0])
        except BlockingIOError:
            return False
        finally:
            self.listener.settimeout(20)
        return True

    def forget(self) -> None:
        """Every connection is closed, so that the next test starts with a new one."""
        for connection in self.opened:
            connection.close()
        self.opened.clear()


def read_until(sock: socket.socket, end: bytes) -> bytes:
    received = b""
    while not received.endswith(end):
        part = sock.recv(1 << 16)
        assert part, f"closed after {received!r}"
        received += part
    return received


def lines_of(request: bytes) -> list[str]:
    return request.decode("latin-1").partition("\r\n\r\n")[0].split("\r\n")


@pytest.fixture(scope="module")
def front() -> Iterator[tuple[Service, Upstream]]:
    upstream = Upstream()
    data_dir = new_data_dir()
    running = start_service(data_dir, "--data-url", f"http://127.0.0.1:{upstream.port}")
    yield running.alias, upstream
    assert running.stop() == 0
    upstream.forget()
    upstream.listener.close()
    remove(data_dir)


@pytest.fixture
def fronting(front: tuple[Service, Upstream]) -> Iterator[Service]:
    yield front[0]
    front[1].forget()


@pytest.fixture
def upstream(front: tuple[Service, Upstream]) -> Upstream:
    return front[1]


# -- the same answers ---------------------------------------------------------------------------------------------


def test_a_query_is_answered_as_by_the_data_plane(service: Service, alias: Service) -> None:
    """Status, body and headers are the data plane's; `Via` is added, and the request id is the one of its log."""
    with service.client() as direct, alias.client() as through:
        first, second = (Sql(client).answer("select 7 as n") for client in (direct, through))
    assert second.json()["rows"] == [{"n": 7}]
    assert second.headers["via"] == "1.1 tuplegate-alias"
    assert set(second.headers) - set(first.headers) == {"via"}
    assert set(first.headers) <= set(second.headers)
    assert second.headers["x-request-id"].startswith("req_")
    assert second.headers.get_list("x-request-id") == [second.headers["x-request-id"]]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/query", {"sql": "selec"}, 400),
        ("POST", "/v1/query", {"sql": "select 1/0"}, 200),
        ("POST", "/v1/transaction", {"statements": ["select 1"]}, 200),
        ("GET", "/v1/transaction/txn_neverseen", None, 404),
        ("GET", "/nowhere?a=1&b=%20", None, 404),
        ("DELETE", "/v1/query", None, 405),
        ("HEAD", "/v1/query", None, 405),
        ("OPTIONS", "/v1/query", None, 204),
    ],
)
def test_refusals_and_routes_are_the_data_planes(
    alias: Service, method: str, path: str, body: Any, status: int
) -> None:
    """The alias judges nothing."""
    with alias.client() as client:
        answer = client.request(method, path, json=body)
    assert answer.status_code == status
    assert "via" in answer.headers


def test_a_wrong_key_is_refused_by_the_data_plane(alias: Service) -> None:
    """The alias adds no rights."""
    with alias.client("svc_k_wrong") as client:
        answer = client.post("/v1/query", json={"sql": "select 1"})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"


def test_pipelined_requests_are_answered_in_order(alias: Service) -> None:
    """Thirty in one write, the first the slowest."""
    requests = [post(alias, b"select pg_sleep(0.2), 0 as n", kind=TEXT_TYPE, close=False)]
    requests += [post(alias, f"select {n} as n".encode(), kind=TEXT_TYPE, close=n == 29) for n in range(1, 30)]
    answers = talk(alias, b"".join(requests))
    assert [answer.json["rows"][0]["n"] for answer in answers] == list(range(30))


def test_an_http_1_0_client_gets_a_stream_without_chunks(alias: Service) -> None:
    """Its end is the end of the connection."""
    request = post(alias, b"/*+ STREAM */ select 7 as n", kind=TEXT_TYPE, close=False)
    answer = ask(alias, request.replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert "transfer-encoding" not in answer.headers
    assert b"event: done\n" in answer.body


def test_an_http_1_0_client_cannot_change_the_protocol(service: Service, alias: Service) -> None:
    """HTTP/1.0 has no upgrade: whatever is in front of such a client would read on in HTTP."""
    request = (
        b"GET /v2 HTTP/1.0\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    assert [ask(plane, request).status for plane in (service, alias)] == [426, 426]


def test_the_banner_and_health_are_its_own(alias: Service) -> None:
    """They say what stands behind."""
    with alias.client() as client:
        banner, health = client.get("/"), client.get("/health")
    assert banner.json()["plane"] == "alias"
    assert "via" not in banner.headers
    assert health.status_code == 200
    assert health.json()["checks"] == {"data_plane": "ok"}


# -- streams ------------------------------------------------------------------------------------------------------


@needs("rows_at_once")
def test_rows_come_while_the_statement_runs(hasty: Service) -> None:
    """The first rows are there while the engine still works on the next. A sign of life finds the client gone."""
    statement = "select g, case when g > 1 then pg_sleep(60) end from generate_series(1, 5) g"
    watch = Watch(hasty)
    with Stream(hasty.alias, statement) as stream:
        events = stream.events()
        assert [next(events).kind for _ in range(2)] == ["columns", "row"]
        watch.until(lambda: watch.count("wait_event = 'PgSleep'") == 1)
    watch.until(lambda: watch.busy == 0)
    watch.connection.close()


def test_a_whole_stream_arrives(alias: Service) -> None:
    """Every row, in order, and the end."""
    told = tell(alias, "select g from generate_series(1, 20000) g", row_mode="arrays")
    assert told.rows == [[g] for g in range(1, 20001)]
    assert told.end == "done"


@pytest.mark.parametrize("accept", [SSE, "application/json"])
def test_a_client_that_leaves_ends_its_statement(alias: Service, watch: Watch, accept: str) -> None:
    """Long before its end, streamed or buffered."""
    with Stream(alias, "select pg_sleep(60)", accept=accept):
        watch.until(lambda: watch.busy == 1)
    watch.until(lambda: watch.busy == 0)


def test_a_client_that_sends_no_more_is_answered(alias: Service) -> None:
    """It has closed its own side only."""
    with connect(alias) as sock:
        sock.sendall(post(alias, b"select 7 as n, pg_sleep(1)", kind=TEXT_TYPE, close=False))
        sock.shutdown(socket.SHUT_WR)
        (answer,) = answers_in(read_all(sock))
    assert answer.json["rows"][0]["n"] == 7


@needs("activity")
def test_a_slow_reader_slows_the_engine(alias: Service, watch: Watch) -> None:
    """The engine rests while the reader does, works on when it reads on, and is free when it leaves."""
    with Stream(alias, ENDLESS, receive_buffer=65536) as stream:
        events = stream.events()
        next(events)
        watch.settle("state = 'idle in transaction'")
        assert len({next(events).data["g"] for _ in range(5000)}) == 5000
        watch.settle("state = 'idle in transaction'")
    watch.until(lambda: watch.busy == 0)


# -- bodies -------------------------------------------------------------------------------------------------------


def test_a_body_is_forwarded_as_it_comes(fronting: Service, upstream: Upstream) -> None:
    """The first half has arrived before the second was sent."""
    with connect(fronting) as sock:
        sock.sendall(head(fronting, JSON_TYPE, "Content-Length: 10", "Connection: close") + b"first")
        behind = upstream.accept()
        request = read_until(behind, b"first")
        assert "content-length: 10" in lines_of(request)
        sock.sendall(b"later")
        assert read_until(behind, b"later") == b"later"
        behind.sendall(OK)
        (answer,) = answers_in(read_all(sock))
    assert answer.body == b"{}"


def test_a_chunked_body_is_forwarded_in_chunks_of_our_own(fronting: Service, upstream: Upstream) -> None:
    """Extensions and trailers of the client's are not passed on."""
    with connect(fronting) as sock:
        start = head(fronting, JSON_TYPE, "Transfer-Encoding: chunked", "Connection: close")
        sock.sendall(start + b"5;ext=1\r\nfirst\r\n")
        behind = upstream.accept()
        assert read_until(behind, b"5\r\nfirst\r\n").count(b"ext") == 0
        sock.sendall(b"5\r\nlater\r\n0\r\nX-Trailer: 1\r\n\r\n")
        assert read_until(behind, b"0\r\n\r\n") == b"5\r\nlater\r\n0\r\n\r\n"
        behind.sendall(OK)
        assert answers_in(read_all(sock))[0].status == 200


def test_a_data_plane_that_does_not_read_stops_the_client(fronting: Service, upstream: Upstream) -> None:
    """The alias keeps no more of a body than the buffers on the way hold."""
    whole = 100_000_000
    piece = b"x" * 100_000
    with connect(fronting, timeout_s=1) as sock:
        sock.sendall(head(fronting, JSON_TYPE, f"Content-Length: {whole}"))
        behind = upstream.accept()
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < whole:
                sent += sock.send(piece)
        assert sent < whole / 2
        received = 0
        sock.settimeout(20)
        while received < sent:
            received += len(behind.recv(1 << 20))


@pytest.mark.parametrize(("key", "status"), [(None, 413), ("svc_k_wrong", 401)])
@pytest.mark.parametrize("framing", ["Content-Length: 50000000", "Transfer-Encoding: chunked"])
def test_a_huge_body_is_refused_by_the_data_plane(alias: Service, framing: str, key: str | None, status: int) -> None:
    """Judged in the same order, and answered before all of it was sent."""
    body = b"x" * 12_000_000
    data = body if framing.startswith("C") else b"%x\r\n%b\r\n" % (len(body), body)
    answer = ask(alias, head(alias, JSON_TYPE, framing, key=key) + data)
    assert answer.status == status
    assert answer.headers["connection"] == "close"


def test_expect_continue_is_answered_by_the_data_plane(alias: Service) -> None:
    """It is told to go on, or at once that the body is too long."""
    request = post(alias, b"select 7 as n", "Expect: 100-continue", kind=TEXT_TYPE)
    with connect(alias) as sock:
        sock.sendall(request[:-13])
        assert sock.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(request[-13:])
        (answer,) = answers_in(read_all(sock))
    assert answer.json["rows"] == [{"n": 7}]
    with connect(alias) as sock:
        sock.sendall(head(alias, JSON_TYPE, "Expect: 100-continue", "Content-Length: 50000000"))
        data = read_all(sock)
    assert b"100 Continue" not in data
    assert answers_in(data)[0].status == 413


def test_an_answer_before_the_end_of_the_body_ends_both_connections(fronting: Service, upstream: Upstream) -> None:
    """What the client still sends is no next request, here or behind."""
    with connect(fronting) as sock:
        sock.sendall(head(fronting, JSON_TYPE, "Content-Length: 1000") + b"x")
        behind = upstream.accept()
        read_until(behind, b"x")
        behind.sendall(OK)
        (answer,) = answers_in(read_all(sock))
        assert answer.headers["connection"] == "close"
    with contextlib.suppress(ConnectionResetError):
        assert behind.recv(1) == b""


# -- what must not get through ------------------------------------------------------------------------------------


def test_what_is_of_one_hop_is_not_forwarded(fronting: Service, upstream: Upstream) -> None:
    """Nor is the client's word on where it comes from, on pages, or on other protocols."""
    lines = (
        "Connection: close, X-Mine", "X-Mine: 1", "Keep-Alive: timeout=5", "TE: trailers", "Trailer: X-Late",
        "Proxy-Authorization: Basic eDp5", "Proxy-Connection: keep-alive", "Via: 1.0 other", "Origin: http://page",
        "Access-Control-Request-Method: POST", "X-Kept: a", "X-Kept: b", "X-Forwarded-For: 10.0.0.1",
    )  # fmt: skip
    with connect(fronting) as sock:
        sock.sendall(head(fronting, *lines, first="GET http://elsewhere:1/a%2Fb?c=%20d HTTP/1.1"))
        behind = upstream.accept()
        first, *given = lines_of(read_until(behind, b"\r\n\r\n"))
        behind.sendall(
            b"HTTP/1.1 200 OK\r\nConnection: X-Hop, close\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nX-Kept: 1\r\n"
            b"Access-Control-Allow-Origin: *\r\nVia: 1.1 inner\r\nX-Kept: 2\r\nContent-Length: 0\r\n\r\n"
        )
        answered = lines_of(read_all(sock))
    assert first == "GET /a%2Fb?c=%20d HTTP/1.1"
    assert sorted(given) == sorted(
        [
            f"host: 127.0.0.1:{upstream.port}",
            f"authorization: Bearer {fronting.key}",
            "x-kept: a, b",
            "x-forwarded-for: 10.0.0.1",
            "via: 1.0 other, 1.1 tuplegate-alias",
        ]
    )
    assert answered == [
        "HTTP/1.1 200 OK",
        "x-kept: 1",
        "x-kept: 2",
        "content-length: 0",
        "via: 1.1 inner, 1.1 tuplegate-alias",
        "connection: close",
    ]


@pytest.mark.parametrize(
    "lines",
    [
        ("Content-Length: 5", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", "Content-Length: 5"),
        ("Content-Length: 5", "Content-Length: 50"),
        ("Content-Length: 5, 50",),
        ("Content-Length: +5",),
        ("Content-Length: 0x5",),
        ("Content-Length : 5",),
        ("Content-Length: 5\r\n ,5",),
        ("Transfer-Encoding: xchunked",),
        ("Transfer-Encoding: chunked, identity",),
        ("Transfer-Encoding:\x0bchunked",),
        ("Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
        ("X: 1\rTransfer-Encoding: chunked",),
        ("X: 1\x00", "Content-Length: 5"),
    ],
)
def test_a_body_with_two_ends_is_refused_and_not_forwarded(
    fronting: Service, upstream: Upstream, lines: tuple[str, ...]
) -> None:
    """A request that two parsers could read differently never gets to the second one."""
    smuggled = b"0\r\n\r\n" + head(fronting, first="GET /smuggled HTTP/1.1")
    answer = ask(fronting, head(fronting, JSON_TYPE, *lines) + smuggled)
    assert answer.status == 400
    assert answer.error["code"] == "malformed_request"
    assert not upstream.asked


@pytest.mark.parametrize(
    "body", [b"zz\r\n", b"5\r\nfirstX\r\n", b"-1\r\n", b"fffffffffffffffff\r\n", b"5\nfirst\n0\n\n"]
)
def test_a_broken_chunk_ends_the_request(fronting: Service, upstream: Upstream, body: bytes) -> None:
    """Even where its start was forwarded already: the end never is, so nothing was asked."""
    with connect(fronting) as sock:
        sock.sendall(head(fronting, JSON_TYPE, "Transfer-Encoding: chunked") + b"3\r\nabc\r\n")
        behind = upstream.accept()
        read_until(behind, b"3\r\nabc\r\n")
        sock.sendall(body)
        (answer,) = answers_in(read_all(sock))
    assert answer.status == 400
    assert answer.error["code"] == "malformed_request"
    with contextlib.suppress(ConnectionResetError):
        assert b"0\r\n" not in read_all(behind)


def test_a_request_inside_a_body_stays_a_body(fronting: Service, upstream: Upstream) -> None:
    """It is counted by the length that the client gave, on both sides."""
    inner = head(fronting, first="GET /inner HTTP/1.1")
    with connect(fronting) as sock:
        sock.sendall(post(fronting, inner))
        behind = upstream.accept()
        request = read_until(behind, inner)
        assert f"content-length: {len(inner)}" in lines_of(request)
        behind.sendall(OK)
        assert len(answers_in(read_all(sock))) == 1


def test_a_request_does_not_come_around_twice(alias: Service) -> None:
    """An alias that leads to an alias would never end."""
    answer = ask(alias, post(alias, b"select 1", "Via: 1.1 tuplegate-alias", kind=TEXT_TYPE))
    assert answer.status == 400
    assert "data_url" in answer.error["hint"]


# -- a data plane that is not there, or does not behave -----------------------------------------------------------


def test_a_data_plane_that_is_not_there(service: Service) -> None:
    """503 in the one shape, with Retry-After, and the alias's health says so."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    data_dir = new_data_dir()
    running = start_service(data_dir, "--data-url", f"http://127.0.0.1:{port}")
    try:
        answer = ask(running.alias, post(running, b'{"sql": "select 1"}'))
        assert answer.status == 503
        assert answer.error["code"] == "data_plane_unavailable"
        assert answer.error["retryable"] is True
        assert int(answer.headers["retry-after"]) > 0
        with running.alias.client() as client:
            health = client.get("/health")
        assert health.status_code == 503
        assert health.json()["status"] == "failing"
        assert health.json()["checks"]["data_plane"] != "ok"
    finally:
        assert running.stop() == 0
        remove(data_dir)


@contextlib.contextmanager
def served(fronting: Service, upstream: Upstream) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client that got an answer and stays, and the connection behind the alias that is its own."""
    with connect(fronting) as sock:
        sock.sendall(head(fronting, first="GET /first HTTP/1.1"))
        behind = upstream.accept()
        read_until(behind, b"\r\n\r\n")
        behind.sendall(OK)
        assert answers_in(read_until(sock, b"{}"))[0].status == 200
        yield sock, behind


def test_a_connection_is_used_again_by_its_client_and_nobody_else(fronting: Service, upstream: Upstream) -> None:
    with served(fronting, upstream) as (sock, behind), connect(fronting) as other:
        other.sendall(head(fronting, "Connection: close", first="GET /other HTTP/1.1"))
        of_other = upstream.accept()
        assert read_until(of_other, b"\r\n\r\n").startswith(b"GET /other ")
        sock.sendall(head(fronting, "Connection: close", first="GET /second HTTP/1.1"))
        assert read_until(behind, b"\r\n\r\n").startswith(b"GET /second ")
        behind.sendall(OK)
        assert answers_in(read_all(sock))[0].status == 200


def test_a_connection_ends_with_its_client(fronting: Service, upstream: Upstream) -> None:
    with served(fronting, upstream) as (_, behind):
        pass
    with contextlib.suppress(ConnectionResetError):
        assert behind.recv(1) == b""


def test_an_answer_that_nobody_read_reaches_nobody(fronting: Service, upstream: Upstream) -> None:
    """Its client left just as it came. Whoever asks next gets the answer to what it asked."""
    for number in range(20):
        with connect(fronting) as leaving:
            leaving.sendall(head(fronting, first="GET /secret HTTP/1.1"))
            behind = upstream.accept()
            read_until(behind, b"\r\n\r\n")
            behind.sendall(OK.replace(b"{}", b"[]"))
        with connect(fronting) as sock:
            sock.sendall(head(fronting, "Connection: close", first=f"GET /{number} HTTP/1.1"))
            own = upstream.accept()
            assert read_until(own, b"\r\n\r\n").startswith(b"GET /%d " % number)
            own.sendall(OK)
            (answer,) = answers_in(read_all(sock))
        assert answer.body == b"{}"


def test_a_read_is_asked_again_when_a_kept_connection_ends(fronting: Service, upstream: Upstream) -> None:
    """The other side may close a connection just while it is used again; asking twice harms nothing."""
    with served(fronting, upstream) as (sock, behind):
        sock.sendall(head(fronting, "Connection: close", first="GET /second HTTP/1.1"))
        read_until(behind, b"\r\n\r\n")
        behind.close()
        again = upstream.accept()
        assert read_until(again, b"\r\n\r\n").startswith(b"GET /second ")
        again.sendall(OK)
        assert answers_in(read_all(sock))[0].status == 200


def test_a_write_is_not_sent_twice(fronting: Service, upstream: Upstream) -> None:
    """It may have been applied: the client is told that nobody knows."""
    with served(fronting, upstream) as (sock, behind):
        sock.sendall(post(fronting, b'{"sql": "insert"}'))
        read_until(behind, b'{"sql": "insert"}')
        behind.close()
        (answer,) = answers_in(read_all(sock))
    assert answer.status == 503
    assert answer.error["code"] == "outcome_unknown"
    assert answer.error["retryable"] is False
    assert not upstream.asked


def test_a_write_that_did_not_get_there_whole_was_not_applied(fronting: Service, upstream: Upstream) -> None:
    """The data plane runs nothing before it has all of a body."""
    with connect(fronting) as sock:
        sock.sendall(head(fronting, JSON_TYPE, "Content-Length: 1000") + b"x")
        behind = upstream.accept()
        read_until(behind, b"x")
        behind.close()
        (answer,) = answers_in(read_all(sock))
    assert answer.error["code"] == "data_plane_unavailable"


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ],
)
def test_an_answer_that_is_cut_off_is_not_made_whole(fronting: Service, upstream: Upstream, said: bytes) -> None:
    """The client gets what there was, and can tell that its end is missing."""
    with connect(fronting) as sock:
        sock.sendall(head(fronting, first="GET /x HTTP/1.1"))
        behind = upstream.accept()
        read_until(behind, b"\r\n\r\n")
        behind.sendall(said)
        received = read_until(sock, b"half" if b"9" in said else b"half\r\n")
        behind.close()
        received += read_all(sock)
    assert b"half" in received
    assert b"0\r\n\r\n" not in received
    assert b"content-length: 9" in received or b"transfer-encoding: chunked" in received


@pytest.mark.parametrize(
    "said", [b"\x00garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000, b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n"]
)
def test_what_is_no_answer_is_not_passed_on(fronting: Service, upstream: Upstream, said: bytes) -> None:
    """Nothing of it reaches the client."""
    with connect(fronting) as sock:
        sock.sendall(head(fronting, "Connection: close", first="GET /x HTTP/1.1"))
        behind = upstream.accept()
        read_until(behind, b"\r\n\r\n")
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            behind.sendall(said)
        (answer,) = answers_in(read_all(sock))
    assert answer.status == 503
    assert answer.error["code"] == "data_plane_unavailable"


def test_two_answers_to_one_request(fronting: Service, upstream: Upstream) -> None:
    """The second one is nobody's: the connection that said it is not used again."""
    with connect(fronting) as sock:
        sock.sendall(head(fronting, "Connection: close", first="GET /x HTTP/1.1"))
        behind = upstream.accept()
        read_until(behind, b"\r\n\r\n")
        behind.sendall(OK + OK.replace(b"{}", b"[]"))
        (answer,) = answers_in(read_all(sock))
    assert answer.body == b"{}"
    with contextlib.suppress(ConnectionResetError):
        assert behind.recv(1) == b""


@needs_linux
def test_a_stream_of_a_data_plane_that_is_killed(service: Service) -> None:
    """It is cut without an end, and works again when the data plane does."""
    data_dir = new_data_dir()
    behind = start_service(data_dir, "--planes", "data")
    front_dir = new_data_dir()
    front = start_service(front_dir, "--data-url", behind.url)
    through = front.alias
    through.key = behind.key
    try:
        with Stream(through, "select 1, pg_sleep(60)") as stream:
            assert next(stream.events()).kind == "columns"
            os.kill(child(behind, engine=False), signal.SIGKILL)
            assert not {event.kind for event in read_until_cut(stream)} & set(ENDS)
        with through.client() as client:
            deadline = Watch(behind)
            deadline.until(lambda: client.get("/health").status_code == 200)
            deadline.connection.close()
            assert Sql(client).value("select 7") == 7
    finally:
        assert front.stop() == 0
        assert behind.stop() == 0
        remove(front_dir)
        remove(data_dir)


# -- slow clients -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hasty() -> Iterator[Service]:
    """A service that waits one second for headers, one for a body, two for a reader, and one for a sign of life."""
    data_dir = new_data_dir()
    patience = ("--header-timeout-s", "1", "--body-timeout-s", "1", "--reader-timeout-s", "2", "--heartbeat-s", "1")
    running = start_service(data_dir, *patience)
    yield running
    assert running.stop() == 0
    remove(data_dir)


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"GET /v1/transaction/txn_aaaaaaaa HTTP/1.1\r\nX: ", b"a"),
        (b"POST /query HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\nAuthorization: Bearer ", b" "),
        (b"POST /query HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nAuthorization: Bearer ", b"1\r\n \r\n"),
    ],
)
def test_a_request_that_comes_too_slowly_is_cut_off(hasty: Service, start: bytes, piece: bytes) -> None:
    """The time is for the whole, not for each byte."""
    if start.endswith(b"Bearer "):
        start += hasty.key.encode() + b"\r\n\r\n"
    (answer,) = answers_in(drip(hasty.alias, start, piece))
    assert answer.status == 408
    assert answer.error["code"] == "request_timeout"


def test_a_reader_that_takes_nothing_is_cut_off(hasty: Service) -> None:
    """And its statement is ended."""
    watch = Watch(hasty)
    try:
        with Stream(hasty.alias, ENDLESS, receive_buffer=4096) as stream:
            assert stream.answer.status == 200
            watch.until(lambda: watch.busy == 1)
            watch.until(lambda: watch.busy == 0)
    finally:
        watch.connection.close()


# -- redirects ----------------------------------------------------------------------------------------------------


def test_every_route_of_the_control_plane_alone_is_redirected(service: Service) -> None:
    """As the banners of the planes list them."""
    endpoints = {}
    for url in (service.url, service.control_url):
        endpoints[url] = {line.split()[1] for line in httpx.get(url, trust_env=False, verify=False).json()["endpoints"]}
    only_control = endpoints[service.control_url] - endpoints[service.url]
    if not only_control:
        pytest.skip("the control plane has no routes of its own yet")
    for template in only_control:
        path = template.replace("{", "").replace("}", "")
        answer = httpx.get(
            f"{service.alias_url}{path}?a=%20b",
            headers={"Origin": service.control_url},
            trust_env=False,
            verify=False,
        )
        assert answer.status_code == 307, path
        assert answer.headers["location"] == f"{service.control_url}{path}?a=%20b"
        assert not [name for name in answer.headers if name.startswith("access-control-")]


async def redirected(request: bytes) -> bytes:
    """The answer of an alias that knows one route of the control plane."""
    upstream = UpstreamAddress(parse_origin("http://127.0.0.1:1"), None, 10)
    control, paths = parse_origin("https://control.example:8443"), gather_paths(["/v1/keys/{id}"])
    alias = Alias(upstream, control, paths, b"", PageOrigins([]))
    server = HttpServer(alias.handle, HttpBounds(10, 5, 5, 5, 5), Memory(2**20))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        await server.start(listener)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(request)
        answer = await reader.read()
        writer.close()
        await server.stop(1, lambda: None)
    return answer


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH", "DELETE", "PUT", "OPTIONS"])
@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/v1/keys/a?b=c&d=%20", "/v1/keys/a?b=c&d=%20"),
        ("/v1/keys/%2e%2E", "/v1/keys/%2e%2E"),
        ("/v1/key%73/a", "/v1/key%73/a"),
        ("http://alias.example/v1/keys/a", "/v1/keys/a"),
    ],
)
def test_a_redirect_keeps_path_and_query(method: str, target: str, path: str) -> None:
    """With any method and its body; it leads to the control plane and nowhere else."""
    request = f"{method} {target} HTTP/1.1\r\nHost: x\r\nOrigin: http://page\r\nContent-Length: 2\r\n"
    answer = asyncio.run(redirected(f"{request}Connection: close\r\n\r\n{{}}".encode())).decode()
    lines = lines_of(answer.encode())
    assert lines[0] == "HTTP/1.1 307 Temporary Redirect"
    assert f"location: https://control.example:8443{path}" in lines
    assert "access-control" not in answer.lower()
    assert json.loads(answer.partition("\r\n\r\n")[2])["location"] == f"https://control.example:8443{path}"
