"""What a hostile or clumsy client sends: each gets its status in the one error shape, and the next request works."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.needs import needs
from tests.service import Service, Sql, running_service

JSON_TYPE = "Content-Type: application/json"
TEXT_TYPE = "Content-Type: text/plain"
BODY_BYTES_MAX = 10 * 2**20
ERROR_FIELDS = {"code", "message", "sqlstate", "position", "hint", "detail", "statement", "retryable"}


@dataclass
class Answer:
    """One answer as it was on the wire."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error, in the one shape."""
        assert self.headers["content-type"] == "application/json"
        body = self.json
        assert body["success"] is False
        assert set(body["error"]) == ERROR_FIELDS
        assert body["error"]["message"]
        assert body["request_id"].startswith("req_")
        assert body["request_id"] == self.headers["x-request-id"]
        error: dict[str, Any] = body["error"]
        return error


def answers_in(data: bytes) -> list[Answer]:
    """All answers in what a connection gave, interim ones left out."""
    found = []
    while data:
        head, _, rest = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        assert first.startswith("HTTP/1.1 "), f"not an answer: {data[:200]!r}"
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        status = int(first.split()[1])
        if status < 200:
            data = rest
            continue
        length = int(headers.get("content-length", len(rest)))
        assert len(rest) >= length, "the answer was cut off"
        found.append(Answer(status, headers, rest[:length]))
        data = rest[length:]
    return found


def connect(service: Service, timeout_s: float = 20) -> socket.socket:
    address = urlsplit(service.url)
    assert address.hostname is not None
    opened = socket.create_connection((address.hostname, address.port or 80), timeout=timeout_s)
    if address.scheme == "https":
        return service.trust.wrap_socket(opened, server_hostname=address.hostname)
    return opened


def read_all(sock: socket.socket) -> bytes:
    """Everything until the service closes the connection; it must, within the socket's time."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := sock.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def talk(service: Service, data: bytes, timeout_s: float = 20) -> list[Answer]:
    """Sends bytes as they are and returns the answers; the last of them must close the connection."""
    with connect(service, timeout_s) as sock:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(data)
        return answers_in(read_all(sock))


def ask(service: Service, data: bytes, timeout_s: float = 20) -> Answer:
    """The one answer to what was sent."""
    answers = talk(service, data, timeout_s)
    assert len(answers) == 1, answers
    return answers[0]


def head(service: Service, *lines: str, first: str = "POST /v1/query HTTP/1.1", key: str | None = None) -> bytes:
    token = service.key if key is None else key
    return "\r\n".join([first, "Host: test", f"Authorization: Bearer {token}", *lines, "\r\n"]).encode("latin-1")


def post(service: Service, body: bytes, *lines: str, kind: str = JSON_TYPE, close: bool = True) -> bytes:
    path = "/v1/query" if kind == JSON_TYPE else "/query"
    end = ["Connection: close"] if close else []
    return head(service, kind, f"Content-Length: {len(body)}", *lines, *end, first=f"POST {path} HTTP/1.1") + body


def send_json(service: Service, body: str | bytes) -> Answer:
    return ask(service, post(service, body.encode() if isinstance(body, str) else body))


def send_text(service: Service, body: bytes) -> Answer:
    return ask(service, post(service, body, kind=TEXT_TYPE))


@pytest.fixture(scope="module")
def sql(service: Service) -> Iterator[Sql]:
    """One client for the whole module: making one costs more than most of these tests."""
    with service.client() as client:
        yield Sql(client)


@pytest.fixture(autouse=True)
def unharmed(service: Service, sql: Sql) -> Iterator[None]:
    """Whatever a test sent: the service had no fault of its own, and the next request works."""
    faults = service.log.count("unexpected failure")
    yield
    assert sql.value("select 42") == 42
    assert service.log.count("unexpected failure") == faults


@pytest.fixture(scope="module")
def hasty() -> Iterator[Service]:
    """A service that waits one second for headers, and one for a body."""
    with running_service("--header-timeout-s", "1", "--body-timeout-s", "1") as running:
        yield running


# -- JSON --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"sql": "select 1"',
        b'{"sql": "select 1"} trailing',
        b"{'sql': 'select 1'}",
        b'{"sql": "select 1",}',
        b'\xef\xbb\xbf{"sql": "select 1"}',
        b'{"sql": "select \n 1"}',
        b'{"sql": "select $1", "params": [01]}',
        b'{"sql": "select $1", "params": [NaN]}',
        b'{"sql": "select $1", "params": ["\\q"]}',
        b"sql=select+1",
        b"select 1",
        b"\x00\x01\x02",
    ],
)
def test_a_body_that_is_not_json_is_refused(service: Service, body: bytes) -> None:
    """Broken JSON runs nothing."""
    answer = send_json(service, body)
    assert answer.status == 400
    assert answer.error["code"] == "malformed_request"


@pytest.mark.parametrize(
    "body",
    [
        "null", "[]", "1", '"select 1"', "{}", '{"sql": null}', '{"sql": 1}', '{"sql": ["select 1"]}', '{"sql": {}}',
        '{"sql": "select 1", "params": {}}', '{"sql": "select 1", "params": "x"}', '{"sql": "select 1", "params": 1}',
        '{"sql": "select 1", "timeout_ms": 0}', '{"sql": "select 1", "timeout_ms": -5}',
        '{"sql": "select 1", "timeout_ms": "100"}', '{"sql": "select 1", "timeout_ms": 1.5}',
        '{"sql": "select 1", "timeout_ms": true}', '{"sql": "select 1", "timeout_ms": 99999999999999999999999}',
        '{"sql": "select 1", "max_rows": -1}', '{"sql": "select 1", "max_rows": "1"}',
        '{"sql": "select 1", "row_mode": "object"}', '{"sql": "select 1", "row_mode": null}',
        '{"sql": "select 1", "big_numbers": "strings"}', '{"sql": "select 1", "big_numbers": 1}',
    ],
)  # fmt: skip
def test_a_field_of_the_wrong_type_is_refused(service: Service, body: str) -> None:
    """JSON that is not a query request says which field is wrong, as 400."""
    answer = send_json(service, body)
    assert answer.status == 400
    assert answer.error["code"] == "malformed_request"


@pytest.mark.parametrize("field", ["parms", "Params", "SQL", "statement", "paramters", ""])
def test_an_unknown_field_is_refused_and_runs_nothing(service: Service, sql: Sql, field: str) -> None:
    """A misspelt `params` must not run a statement without its parameters."""
    sql("create table if not exists misspelt (a int)")
    answer = send_json(service, json.dumps({"sql": "insert into misspelt values (1)", field: [1]}))
    assert answer.status == 400
    assert answer.error["code"] == "malformed_request"
    assert sql.value("select count(*) from misspelt") == 0


@pytest.mark.parametrize(
    "body",
    [
        b'{"sql": "select \xff"}',
        b'{"sql": "select \'\xc3\x28\'"}',
        b'{"sql": "select \'\xed\xa0\x80\'"}',
        b'{"sql": "select $1::text", "params": ["\xff"]}',
        b'{"sql": "select $1::jsonb", "params": ["\xff"]}',
        b'{"sql": "select $1::text[]", "params": [["\xff"]]}',
        b'{"\xff": 1, "sql": "select 1"}',
    ],
)
def test_json_that_is_not_utf_8_is_refused(service: Service, body: bytes) -> None:
    """Invalid UTF-8 is a malformed request, in the SQL, in a parameter and in a name."""
    answer = send_json(service, body)
    assert answer.status == 400
    assert answer.error["code"] == "malformed_request"


@pytest.mark.parametrize(
    "body",
    [
        b'{"sql": "select $1::text", "params": [{"a": "\xff"}]}',
        b'{"sql": "select $1::json", "params": [{"\xff": 1}]}',
    ],
)
def test_invalid_utf_8_inside_an_object_parameter_is_an_error_of_the_client(service: Service, body: bytes) -> None:
    """It is refused by the service or by the engine, but it is no success and no fault."""
    answer = send_json(service, body)
    assert answer.status in (200, 400)
    assert answer.error["code"] in ("malformed_request", "sql_error")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (r'{"sql": "select \ud800"}', "malformed_request"),
        (r'{"sql": "select $1::text", "params": ["\ud800 x"]}', "malformed_request"),
        (r'{"sql": "select $1::text", "params": ["\udc00\ud800"]}', "malformed_request"),
        (r'{"sql": "select $1::text[]", "params": [["\ud800 x"]]}', "malformed_request"),
    ],
)
def test_a_lone_surrogate_is_refused(service: Service, body: str, code: str) -> None:
    """Half of a surrogate pair is no character."""
    answer = send_json(service, body)
    assert answer.status == 400
    assert answer.error["code"] == code


@pytest.mark.parametrize(
    "body",
    [
        r'{"sql": "select \u0000"}',
        r'{"sql": "\u0000"}',
        r'{"sql": "select 1 -- \u0000"}',
        r'{"sql": "select $1::text", "params": ["a\u0000b"]}',
        r'{"sql": "select $1::text[]", "params": [["\u0000"]]}',
    ],
)
def test_a_nul_character_is_refused(service: Service, body: str) -> None:
    """The engine's text cannot hold NUL, and nothing may be cut off at one."""
    answer = send_json(service, body)
    assert answer.status == 400
    assert "NUL" in answer.error["message"]


def test_a_nul_character_in_plain_text_is_refused(service: Service) -> None:
    """A NUL byte would end the statement early in the engine's protocol."""
    answer = send_text(service, b"select 1\x00; drop table x")
    assert answer.status == 400
    assert "NUL" in answer.error["message"]


@pytest.mark.parametrize("body", [b"select \xff", b"select '\xed\xa0\x80'", "select 'é'".encode("utf-16"), b"\x80"])
def test_plain_text_that_is_not_utf_8_is_refused(service: Service, body: bytes) -> None:
    """The raw SQL route takes UTF-8 and nothing else."""
    answer = send_text(service, body)
    assert answer.status == 400
    assert answer.error["code"] == "malformed_request"


@pytest.mark.parametrize("depth", [7, 100, 340, 450, 900, 1_000, 100_000])
@pytest.mark.parametrize("kind", ["int[]", "text", "jsonb"])
def test_deeply_nested_parameters_are_no_fault(service: Service, depth: int, kind: str) -> None:
    """However deep a parameter is nested, the answer is the client's error or the engine's, or it just works."""
    nested = "[" * depth + "1" + "]" * depth
    answer = send_json(service, f'{{"sql": "select $1::{kind} as v", "params": [{nested}]}}')
    assert answer.status in (200, 400), answer.body
    if answer.status == 400 or not answer.json["success"]:
        assert answer.error["code"] in ("malformed_request", "sql_error", "parameter_mismatch")


# -- parameters --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "params"),
    [
        ("select 1", [1]),
        ("select $1::int", None),
        ("select $1::int", []),
        ("select $1::int", [1, 2]),
        ("select $1::int, $2::int", [1]),
        ("select $1::int[]", [[1], [2]]),
        ("select set_config('a.b', $1, false)", []),
        pytest.param("do $$ begin null; end $$", [1], marks=needs("do_block")),
        ("select $1::int", [1] * 65_535),
        ("select $1::int", [1] * 65_536),
    ],
)
def test_a_wrong_number_of_parameters_is_refused(service: Service, statement: str, params: list[Any] | None) -> None:
    """Too many and too few are 400, whichever way the statement would have run."""
    answer = send_json(service, json.dumps({"sql": statement} | ({} if params is None else {"params": params})))
    assert answer.status == 400
    assert answer.error["code"] == "parameter_mismatch"


@pytest.mark.parametrize(
    ("statement", "param", "sqlstate"),
    [
        ("select $1::int", "abc", "22P02"),
        ("select $1::int", True, "22P02"),
        ("select $1::int", 1.5, "22P02"),
        ("select $1::int", {"a": 1}, "22P02"),
        ("select $1::int", 2**40, "22003"),
        ("select $1::int[]", {"a": 1}, "22P02"),
        pytest.param("select $1::int[]", [1, [2]], "22P02", marks=needs("arrays")),
        ("select $1::bool", 7, "22P02"),
        ("select $1::date", "soon", "22007"),
        ("select $1::uuid", "x", "22P02"),
        pytest.param("select $1::jsonb", {"a": "\0"}, "22P05", marks=needs("postgresql")),
        pytest.param("select $2::int", 1, "42P18", marks=needs("postgresql")),
    ],
)
def test_a_parameter_of_the_wrong_kind_is_the_engines_error(
    sql: Sql, statement: str, param: Any, sqlstate: str
) -> None:
    """The engine infers a placeholder's type and refuses what does not fit it."""
    error = sql.fails(statement, [param] if "$2" not in statement else [param, param])
    assert error["code"] == "sql_error"
    assert error["sqlstate"] == sqlstate


def test_as_many_parameters_as_the_protocol_counts_are_taken(sql: Sql) -> None:
    """65,535 placeholders work, so the refusal of one more is the bound and not a guess."""
    placeholders = ",".join(f"(${n}::int)" for n in range(1, 65_536))
    assert sql.value(f"select sum(v) from (values {placeholders}) t (v)", [1] * 65_535) == 65_535


# -- statements --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", " ", "\n\t\r\f\v", ";", " ; ;; ", "-- only a comment", "/* only */", "/* /* */ */;--"]
)
def test_text_without_a_statement_is_refused(service: Service, text: str) -> None:
    """White space, comments and semicolons are no statement."""
    for answer in (send_json(service, json.dumps({"sql": text})), send_text(service, text.encode())):
        assert answer.status == 400
        assert answer.error["code"] == "empty_statement"


@pytest.mark.parametrize("prefix", ["", "select ", "select 1 + "])
def test_nine_megabytes_of_parentheses_are_answered(service: Service, prefix: str) -> None:
    """The engine gives up on them without the service or its connection failing."""
    answer = send_text(service, prefix.encode() + b"(" * 9_000_000)
    assert answer.status == 400
    assert answer.error["code"] == "parse_error"


def test_one_hundred_megabytes_of_parentheses_are_refused(service: Service) -> None:
    """A client that sends all of it can still read the answer."""
    answer = send_text(service, b"(" * 100_000_000)
    assert answer.status == 413
    assert answer.error["code"] == "body_too_large"


# -- size --------------------------------------------------------------------------------------------------------


def test_a_body_over_the_limit_is_refused_before_it_is_sent(service: Service) -> None:
    """Content-Length is enough to know."""
    answer = ask(service, head(service, JSON_TYPE, f"Content-Length: {BODY_BYTES_MAX + 1}"))
    assert answer.status == 413
    assert answer.error["code"] == "body_too_large"


def test_a_body_of_exactly_the_limit_is_taken(service: Service) -> None:
    """The bound itself is allowed."""
    answer = send_text(service, b"select 1".ljust(BODY_BYTES_MAX))
    assert answer.status == 200
    assert answer.json["success"]


def chunked_request(service: Service, size: int, key: str | None = None) -> bytes:
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    return head(service, JSON_TYPE, "Transfer-Encoding: chunked", key=key) + chunk * (size // 0x10000 + 1)


def test_a_chunked_body_over_the_limit_is_refused_while_it_comes(service: Service) -> None:
    """Without a length it is refused at the bound; the end of the body is never awaited."""
    answer = ask(service, chunked_request(service, BODY_BYTES_MAX))
    assert answer.status == 413
    assert answer.error["code"] == "body_too_large"


def test_a_body_over_the_limit_with_a_bad_token_is_unauthenticated(service: Service) -> None:
    """The token is judged before the body, with a length and without."""
    with_length = head(service, JSON_TYPE, f"Content-Length: {BODY_BYTES_MAX + 1}", key="svc_k_wrong")
    for request in (with_length, chunked_request(service, BODY_BYTES_MAX, key="svc_k_wrong")):
        answer = ask(service, request)
        assert answer.status == 401
        assert answer.error["code"] == "unauthenticated"


def test_a_body_over_the_limit_for_an_unknown_path_is_not_found(service: Service) -> None:
    """The route is judged before everything else."""
    first = "POST /nowhere HTTP/1.1"
    answer = ask(service, head(service, JSON_TYPE, f"Content-Length: {BODY_BYTES_MAX + 1}", first=first))
    assert answer.status == 404


@pytest.mark.parametrize("length", ["9" * 30, "-1", "1e3", "0x10", "+5", "1 2", ""])
def test_a_content_length_that_is_no_length_is_refused(service: Service, length: str) -> None:
    """Nothing is guessed about how long a body is."""
    answer = ask(service, head(service, JSON_TYPE, f"Content-Length: {length}", "Connection: close"))
    assert answer.status in (400, 413)
    assert answer.error["code"] in ("malformed_request", "body_too_large")


# -- routes and types --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/query", "application/x-www-form-urlencoded"),
        ("/v1/query", "text/plain"),
        ("/v1/query", "application/json; charset=latin1"),
        ("/v1/query", "multipart/form-data; boundary=x"),
        ("/v1/query", "nonsense"),
        ("/v1/query", ""),
        ("/query", "application/x-www-form-urlencoded"),
        ("/query", "application/json"),
        ("/query", "text/html"),
        ("/query", "text/plain; charset=utf-16"),
    ],
)
def test_a_wrong_content_type_is_refused(service: Service, path: str, kind: str) -> None:
    """The form type that curl sends by default among them."""
    body = b'{"sql": "select 1"}'
    lines = (f"Content-Type: {kind}", f"Content-Length: {len(body)}", "Connection: close")
    answer = ask(service, head(service, *lines, first=f"POST {path} HTTP/1.1") + body)
    assert answer.status == 415
    assert answer.error["code"] == "unsupported_media_type"


@pytest.mark.parametrize(
    "kind",
    ["application/json", "Application/JSON", "application/json;charset=utf-8", 'application/json; charset="UTF-8"'],
)
def test_a_content_type_may_be_written_in_every_legal_way(service: Service, kind: str) -> None:
    """Case, blanks and quotes do not matter."""
    answer = ask(
        service, post(service, b'{"sql": "select 1"}', kind=JSON_TYPE).replace(b"application/json", kind.encode())
    )
    assert answer.status == 200


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/query", "POST"),
        ("PUT", "/v1/query", "POST"),
        ("DELETE", "/query", "POST"),
        ("PATCH", "/query", "POST"),
        ("POST", "/health", "GET"),
        ("POST", "/", "GET"),
        ("PROPFIND", "/v1/query", "POST"),
    ],
)
def test_a_wrong_method_is_refused_with_allow(service: Service, method: str, path: str, allow: str) -> None:
    """The answer names the methods that the route takes."""
    answer = ask(service, head(service, "Content-Length: 0", "Connection: close", first=f"{method} {path} HTTP/1.1"))
    assert answer.status == 405
    assert answer.error["code"] == "method_not_allowed"
    assert allow in answer.headers["allow"].split(", ")


@pytest.mark.parametrize(
    "path",
    [
        "/nowhere",
        "/v1/",
        "/v1/query/",
        "//v1/query",
        "/v1/../v1/query",
        "/V1/QUERY",
        "/%00",
        "/%ff",
        "/%zz%",
        "/query%0d%0aX: 1",
        "*",
    ],
)
def test_an_unknown_path_is_not_found(service: Service, path: str) -> None:
    """Odd ones too, with or without a token, and nothing of them gets into a header."""
    for key in (None, "svc_k_wrong"):
        request = head(service, "Content-Length: 0", "Connection: close", first=f"POST {path} HTTP/1.1", key=key)
        answers = talk(service, request)
        assert [answer.status for answer in answers] in ([404], [400])
        assert answers[0].error["code"] in ("not_found", "malformed_request")
        assert "x" not in answers[0].headers


@pytest.mark.parametrize("accept", ["text/html", "image/png, text/csv", "application/json;q=0", "nonsense"])
def test_what_cannot_be_produced_is_not_acceptable(service: Service, accept: str) -> None:
    """Accept that leaves nothing the route can give is 406."""
    answer = ask(service, post(service, b'{"sql": "select 1"}', f"Accept: {accept}"))
    assert answer.status == 406
    assert answer.error["code"] == "not_acceptable"


@pytest.mark.parametrize("accept", ["*/*", "text/html, */*;q=0.1", "application/json", "application/*"])
def test_an_accept_that_allows_json_gets_json(service: Service, accept: str) -> None:
    """What browsers and libraries send by default is taken."""
    answer = ask(service, post(service, b'{"sql": "select 1"}', f"Accept: {accept}"))
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"


def test_a_percent_encoded_letter_is_the_letter(service: Service) -> None:
    """`%71uery` is another way to write `query`."""
    request = post(service, b"select 1", kind=TEXT_TYPE).replace(b"POST /query", b"POST /%71uery")
    assert ask(service, request).status == 200


def test_an_absolute_url_is_taken_by_its_path(service: Service) -> None:
    """RFC 9112 §3.2.2: a server must accept the form that clients of a proxy send."""
    request = post(service, b"select 1", kind=TEXT_TYPE).replace(b"POST /query", b"POST http://test:80/query")
    assert ask(service, request).status == 200


def test_head_is_answered_like_get_without_a_body(service: Service) -> None:
    """Headers as for GET; 405 where there is no GET."""
    for path, status in (("/", 200), ("/health", 200), ("/query", 405)):
        with connect(service) as sock:
            sock.sendall(head(service, "Connection: close", first=f"HEAD {path} HTTP/1.1"))
            data = read_all(sock)
        assert data.startswith(f"HTTP/1.1 {status} ".encode())
        assert data.endswith(b"\r\n\r\n")
        assert data.count(b"\r\n\r\n") == 1
        assert int(data.split(b"content-length: ")[1].split(b"\r\n")[0]) > 0


# -- HTTP itself -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 100,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS client
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",  # an HTTP/2 client
        b"hello?\r\n\r\n",
        b"GET\r\n\r\n",
        b"FOO / HTTP/1.1\r\n\r\n",
        b"get / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nX : 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: a\x00b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n",
        b"SELECT 1;\n",
        b"\xff\xfe\xfd\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused_and_closed(service: Service, data: bytes) -> None:
    """Garbage gets one answer, in the one shape, and the connection ends."""
    answer = ask(service, data)
    assert answer.status == 400
    assert answer.error["code"] == "malformed_request"
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    "lines",
    [
        ("Content-Length: 5", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", "Content-Length: 5"),
        ("Content-Length: 5", "Content-Length: 50"),
        ("Content-Length: 5, 50",),
        ("Transfer-Encoding: xchunked",),
        ("Transfer-Encoding: chunked, identity",),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",),
    ],
)
def test_a_body_with_two_lengths_is_refused(service: Service, lines: tuple[str, ...]) -> None:
    """A request that two parsers read differently smuggles: it is refused whole, and nothing behind it is read."""
    smuggled = b"0\r\n\r\n" + head(service, first="GET /health HTTP/1.1")
    answer = ask(service, head(service, JSON_TYPE, *lines) + smuggled)
    assert answer.status == 400
    assert answer.error["code"] == "malformed_request"


def test_a_trailer_is_no_header(service: Service) -> None:
    """RFC 9110 §6.5.1: a token that comes behind the body authenticates nothing."""
    request = b"POST /query HTTP/1.1\r\nHost: test\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n"
    request += (
        b"Connection: close\r\n\r\n8\r\nselect 1\r\n0\r\n" + f"Authorization: Bearer {service.key}\r\n\r\n".encode()
    )
    answer = ask(service, request)
    assert answer.status == 401
    assert answer.error["code"] == "unauthenticated"


def test_two_authorization_headers_are_refused(service: Service) -> None:
    """Which of them counts is not ours to guess, even when they are equal."""
    answer = ask(service, post(service, b'{"sql": "select 1"}', f"Authorization: Bearer {service.key}"))
    assert answer.status == 400
    assert answer.error["code"] == "malformed_request"


def test_an_http_1_0_request_is_answered_and_closed(service: Service) -> None:
    """An old client gets a whole answer and the end of the connection."""
    answer = ask(service, post(service, b"select 1", kind=TEXT_TYPE, close=False).replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert answer.status == 200
    assert answer.headers["connection"] == "close"


def test_a_stream_for_http_1_0_is_not_chunked(service: Service) -> None:
    """RFC 9112 §6.1: such a client would take the chunk sizes for data; the end of the connection ends the stream."""
    request = post(service, b"/*+ STREAM */ select 7 as n", kind=TEXT_TYPE, close=False)
    answer = ask(service, request.replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert answer.status == 200
    assert "transfer-encoding" not in answer.headers
    assert answer.body.startswith(b"event: columns\n")
    assert b"event: done\n" in answer.body


def test_pipelined_requests_are_answered_in_order(service: Service) -> None:
    """Thirty requests in one write, the first the slowest."""
    requests = [post(service, b"select pg_sleep(0.2), 0 as n", kind=TEXT_TYPE, close=False)]
    requests += [post(service, f"select {n} as n".encode(), kind=TEXT_TYPE, close=n == 29) for n in range(1, 30)]
    answers = talk(service, b"".join(requests))
    assert [answer.json["rows"][0]["n"] for answer in answers] == list(range(30))
    assert len({answer.headers["x-request-id"] for answer in answers}) == 30


@pytest.mark.parametrize("statement", [b"select 7 as n", b"select 7 as n, pg_sleep(0.2)"])
def test_garbage_behind_a_request_does_not_take_its_answer(service: Service, statement: bytes) -> None:
    """The request before it was whole: it is answered, then the garbage is."""
    answers = talk(service, post(service, statement, kind=TEXT_TYPE, close=False) + b"\x00garbage\r\n\r\n")
    assert [answer.status for answer in answers] == [200, 400]
    assert answers[0].json["rows"][0]["n"] == 7
    assert answers[1].error["code"] == "malformed_request"


@pytest.mark.parametrize("statement", [b"select 7 as n", b"select 7 as n, pg_sleep(0.2)"])
def test_bytes_behind_the_last_request_do_not_take_its_answer(service: Service, statement: bytes) -> None:
    """After `Connection: close` nothing more is read, but what was asked is answered."""
    request = post(service, statement, kind=TEXT_TYPE)
    answer = ask(service, request + head(service, first="GET / HTTP/1.1"))
    assert answer.status == 200
    assert answer.json["rows"][0]["n"] == 7


def test_an_offered_upgrade_is_ignored(service: Service) -> None:
    """`curl --http2` and Java's own client offer h2c with a first request; its answer comes over HTTP/1.1."""
    lines = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA")
    with connect(service) as sock:
        sock.sendall(post(service, b"select 7 as n", *lines, kind=TEXT_TYPE, close=False))
        received = b""
        while b'"rows"' not in received and (part := sock.recv(1 << 16)):
            received += part
    answers = answers_in(received)
    assert [answer.status for answer in answers] == [200]
    assert answers[0].json["rows"] == [{"n": 7}]


def test_connect_gets_one_answer(service: Service) -> None:
    """This is no proxy, and says so once."""
    answer = ask(service, head(service, "Connection: close", first="CONNECT example.org:443 HTTP/1.1"))
    assert answer.status in (400, 404, 405)
    assert answer.error["code"] in ("malformed_request", "not_found", "method_not_allowed")


def test_expect_continue_gets_its_interim_answer(service: Service) -> None:
    """The body is asked for, then the statement answered."""
    request = post(service, b"select 7 as n", "Expect: 100-continue", kind=TEXT_TYPE)
    start, body = request[:-13], request[-13:]
    with connect(service) as sock:
        sock.sendall(start)
        assert sock.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(body)
        (answer,) = answers_in(read_all(sock))
    assert answer.json["rows"] == [{"n": 7}]


def test_expect_continue_with_too_long_a_body_is_refused_at_once(service: Service) -> None:
    """The client is not told to go on."""
    with connect(service) as sock:
        sock.sendall(head(service, JSON_TYPE, "Expect: 100-continue", f"Content-Length: {BODY_BYTES_MAX + 1}"))
        data = read_all(sock)
    assert b"100 Continue" not in data
    assert answers_in(data)[0].status == 413


@pytest.mark.parametrize("end", [b"\r\n\r\n", b""])
@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\nX-Long: ", b"GET / HTTP/1.1\r\n", b"GET /"])
def test_headers_over_their_bound_are_refused(service: Service, start: bytes, end: bytes) -> None:
    """A value, a name and a URL; also one that never ends, long before the time for headers is over."""
    answer = ask(service, start + b"a" * 300_000 + end, timeout_s=5)
    assert answer.status == 400
    assert answer.error["code"] == "malformed_request"


@pytest.mark.parametrize("name", ["X-{}", "X"])
def test_too_many_headers_are_refused(service: Service, name: str) -> None:
    """A thousand headers, of many names and of one."""
    lines = "".join(f"{name.format(n)}: 1\r\n" for n in range(1000))
    answer = ask(service, f"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{lines}\r\n".encode())
    assert answer.status == 400
    assert answer.error["code"] == "malformed_request"


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_half_a_request_and_a_closed_connection_harm_nobody(service: Service, sql: Sql, share: float) -> None:
    """What was not whole is not run."""
    sql("create table if not exists halves (a int)")
    request = post(service, b"insert into halves values (1)", kind=TEXT_TYPE)
    with connect(service) as sock:
        sock.sendall(request[: int(len(request) * share)])
    assert sql.value("select count(*) from halves") == 0


def drip(service: Service, start: bytes, piece: bytes) -> bytes:
    """Sends `start`, then a piece whenever a moment passed without an answer; what came back when it was closed."""
    received = b""
    deadline = time.monotonic() + 60
    with connect(service) as sock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        sock.sendall(start)
        sock.settimeout(0.2)
        while time.monotonic() < deadline:
            try:
                part = sock.recv(1 << 16)
            except TimeoutError:
                sock.sendall(piece)
                continue
            if not part:
                return received
            received += part
    assert time.monotonic() < deadline, "the service waits for ever"
    return received


def test_headers_that_come_too_slowly_are_cut_off(hasty: Service) -> None:
    """A byte now and then does not keep the connection."""
    (answer,) = answers_in(drip(hasty, b"GET / HTTP/1.1\r\nX: ", b"a"))
    assert answer.status == 408
    assert answer.error["code"] == "request_timeout"


def test_a_body_that_comes_too_slowly_is_cut_off(hasty: Service) -> None:
    """The time is for the whole body, not for each byte."""
    (answer,) = answers_in(drip(hasty, head(hasty, JSON_TYPE, "Content-Length: 1000"), b" "))
    assert answer.status == 408
    assert answer.error["code"] == "request_timeout"


def test_a_connection_that_sends_nothing_is_closed(hasty: Service) -> None:
    """Without a request there is nothing to answer."""
    assert drip(hasty, b"", b"") == b""
