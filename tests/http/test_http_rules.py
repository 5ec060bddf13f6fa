"""RFC 9112 and RFC 9110, rule by rule, against the real server. docs/http.md lists the same rules by the same names."""

import re
import socket
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.http.test_bad_input import answers_in, connect, read_all
from tests.service import Service, Sql

PAGE = Path(__file__).parent.parent.parent / "docs" / "http.md"


@dataclass(frozen=True)
class Rule:
    """What is sent, and the statuses of all answers. `{key}` stands for a token; a request that should be run and is
    has an answer with 7 in it. `open`: the connection stays open behind the last answer."""

    name: str
    sent: bytes
    statuses: tuple[int, ...]
    stays_open: bool = False


def request(
    *lines: str, first: str = "POST /query HTTP/1.1", host: str = "Host: test", body: bytes = b"select 7 as n"
) -> bytes:
    """One that would be run, with these headers too, and without a length."""
    start = [first, *([host] if host else []), "Authorization: Bearer {key}", "Content-Type: text/plain", *lines]
    return "\r\n".join([*start, "\r\n"]).encode("latin-1") + body


def sized(*lines: str, first: str = "POST /query HTTP/1.1", host: str = "Host: test") -> bytes:
    return request(*lines, "Content-Length: 13", first=first, host=host)


def chunked(data: bytes, *lines: str) -> bytes:
    return request("Transfer-Encoding: chunked", *lines, body=data)


GET = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n"
CLOSE = "Connection: close"
REFUSED = (400,)
RUN = (200,)

RULES = [
    # -- lines
    Rule("empty-line-first", b"\r\n\r\n" + sized(CLOSE), RUN),
    Rule("empty-lines-first", b"\r\n" * 5 + sized(CLOSE), REFUSED),
    Rule("bare-lf-in-head", GET.replace(b"\r\n", b"\n"), REFUSED),
    Rule("bare-lf-in-one-line", b"GET / HTTP/1.1\r\nHost: test\nX: y\r\n\r\n", REFUSED),
    Rule("bare-cr-in-head", b"GET / HTTP/1.1\r\nHost: test\r\nX: a\rb\r\n\r\n", REFUSED),
    Rule("blank-before-first-header", b"GET / HTTP/1.1\r\n Host: test\r\n\r\n", REFUSED),
    Rule("garbage", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", REFUSED),
    # -- the first line
    Rule("two-spaces", b"GET  / HTTP/1.1\r\nHost: test\r\n\r\n", REFUSED),
    Rule("tab-for-space", b"GET\t/ HTTP/1.1\r\nHost: test\r\n\r\n", REFUSED),
    Rule("blank-behind-version", b"GET / HTTP/1.1 \r\nHost: test\r\n\r\n", REFUSED),
    Rule("no-version", b"GET /\r\n", REFUSED),
    Rule("version-0-9", b"GET / HTTP/0.9\r\nHost: test\r\n\r\n", REFUSED),
    Rule("version-1-2", b"GET / HTTP/1.2\r\nHost: test\r\n\r\n", REFUSED),
    Rule("version-2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", REFUSED),
    Rule("version-in-lower-case", b"GET / http/1.1\r\nHost: test\r\n\r\n", REFUSED),
    Rule("version-1-0", b"GET / HTTP/1.0\r\n\r\n", RUN),
    Rule("version-1-0-kept-alive", b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", RUN, stays_open=True),
    Rule("method-is-case-sensitive", b"get / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n", (405,)),
    Rule("method-is-a-token", b"G{T / HTTP/1.1\r\nHost: test\r\n\r\n", REFUSED),
    # -- the target
    Rule("absolute-target", sized(CLOSE, first="POST http://test/query HTTP/1.1"), RUN),
    Rule("absolute-target-of-no-host", b"GET http:///x HTTP/1.1\r\nHost: test\r\n\r\n", REFUSED),
    Rule("target-of-another-scheme", b"GET ftp://test/ HTTP/1.1\r\nHost: test\r\n\r\n", REFUSED),
    Rule("target-without-slash", b"GET query HTTP/1.1\r\nHost: test\r\n\r\n", REFUSED),
    Rule("star-is-for-options", b"GET * HTTP/1.1\r\nHost: test\r\n\r\n", REFUSED),
    Rule("authority-is-for-connect", b"GET test:80 HTTP/1.1\r\nHost: test\r\n\r\n", REFUSED),
    Rule("connect-is-not-offered", b"CONNECT test:80 HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n", (404,)),
    Rule("fragment", b"GET /#x HTTP/1.1\r\nHost: test\r\n\r\n", REFUSED),
    Rule("percent-without-digits", b"GET /%7 HTTP/1.1\r\nHost: test\r\n\r\n", REFUSED),
    Rule("target-is-ascii", "GET /ä HTTP/1.1\r\nHost: test\r\n\r\n".encode(), REFUSED),
    Rule("encoded-letter", sized(CLOSE, first="POST /%71uery HTTP/1.1"), RUN),
    Rule("encoded-slash", sized(CLOSE, first="POST /v1%2fquery HTTP/1.1"), (404,)),
    Rule("dot-segments", sized(CLOSE, first="POST /x/../query HTTP/1.1"), (404,)),
    Rule("path-of-many-parts", sized(CLOSE, first=f"POST {'/%71' * 5000} HTTP/1.1"), (404,)),
    Rule("unknown-parameter", sized(CLOSE, first="POST /query?api_key=x HTTP/1.1"), REFUSED),
    # -- Host
    Rule("no-host", sized(host=""), REFUSED),
    Rule("two-hosts", sized("Host: test"), REFUSED),
    Rule("empty-host", sized(host="Host:"), REFUSED),
    Rule("junk-host", sized(host="Host: a b"), REFUSED),
    Rule("host-with-path", sized(host="Host: test/x"), REFUSED),
    Rule("host-with-user", sized(host="Host: me@test"), REFUSED),
    Rule("host-and-port", sized(CLOSE, host="Host: test:8080"), RUN),
    Rule("host-ipv6", sized(CLOSE, host="Host: [::1]:8080"), RUN),
    # -- headers
    Rule("blank-before-colon", sized("X : y"), REFUSED),
    Rule("folded", sized("X: y\r\n z"), REFUSED),
    Rule("no-colon", sized("X"), REFUSED),
    Rule("no-name", sized(": y"), REFUSED),
    Rule("name-is-a-token", sized("X(y: z"), REFUSED),
    Rule("nul-in-value", sized("X: a\0b"), REFUSED),
    Rule("control-in-value", sized("X: a\x01b"), REFUSED),
    Rule("high-byte-in-value", sized("X: \xe4", CLOSE), RUN),
    Rule("empty-value", sized("X:", CLOSE), RUN),
    Rule("blanks-around-value", sized("Connection: \t close \t"), RUN),
    Rule("names-in-any-case", sized("cOnNeCtIoN: CLOSE"), RUN),
    Rule("repeated-header", sized("X: 1", "X: 2", CLOSE), RUN),
    Rule("repeated-authorization", sized("Authorization: Bearer {key}"), REFUSED),
    Rule("repeated-content-type", sized("Content-Type: text/plain"), REFUSED),
    Rule("repeated-connection-string", sized("Neon-Connection-String: a", "Neon-Connection-String: b"), REFUSED),
    Rule("repeated-idempotency-key", sized("Idempotency-Key: a", "Idempotency-Key: b"), REFUSED),
    Rule("repeated-database", sized("Tuplegate-Database: a", "Tuplegate-Database: b"), REFUSED),
    Rule("a-hundred-headers", sized(*(f"X{n}: y" for n in range(94)), CLOSE), RUN),
    Rule("more-than-a-hundred", sized(*(f"X{n}: y" for n in range(100))), REFUSED),
    Rule("head-of-32-kib", sized("X: " + "y" * 33_000), REFUSED),
    Rule("head-without-end", b"GET / HTTP/1.1\r\nHost: test\r\nX: " + b"y" * 33_000, REFUSED),
    # -- how long the body is
    Rule("no-length-is-no-body", b"GET / HTTP/1.1\r\nHost: test\r\n\r\n" * 2, (200, 200), stays_open=True),
    Rule("length-twice", sized("Content-Length: 13"), REFUSED),
    Rule("lengths-that-differ", sized("Content-Length: 14"), REFUSED),
    Rule("length-as-list", request("Content-Length: 13, 13"), REFUSED),
    Rule("length-negative", request("Content-Length: -13"), REFUSED),
    Rule("length-with-sign", request("Content-Length: +13"), REFUSED),
    Rule("length-hexadecimal", request("Content-Length: 0xd"), REFUSED),
    Rule("length-fraction", request("Content-Length: 13.0"), REFUSED),
    Rule("length-empty", request("Content-Length:"), REFUSED),
    Rule("length-with-blank", request("Content-Length: 1 3"), REFUSED),
    Rule("length-leading-zeros", request("Content-Length: 000013", CLOSE), RUN),
    Rule("length-of-4400-zeros", request(f"Content-Length: {'0' * 4400}"), REFUSED),
    Rule("length-beyond-limit", request("Content-Length: 999999999999", CLOSE), (413,)),
    Rule("length-and-coding", sized("Transfer-Encoding: chunked"), REFUSED),
    Rule("coding-unknown", request("Transfer-Encoding: gzip"), REFUSED),
    Rule("coding-before-chunked", request("Transfer-Encoding: gzip, chunked"), REFUSED),
    Rule("coding-behind-chunked", request("Transfer-Encoding: chunked, gzip"), REFUSED),
    Rule("coding-identity", request("Transfer-Encoding: identity"), REFUSED),
    Rule("coding-twice", request("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), REFUSED),
    Rule("coding-with-parameter", request("Transfer-Encoding: chunked;x=y"), REFUSED),
    Rule("coding-empty", request("Transfer-Encoding:"), REFUSED),
    Rule(
        "coding-in-any-case",
        chunked(b"d\r\nselect 7 as n\r\n0\r\n\r\n", CLOSE).replace(b": chunked", b": CHUNKED"),
        RUN,
    ),
    Rule(
        "coding-in-1-0",
        request("Transfer-Encoding: chunked", first="POST /query HTTP/1.0", body=b"d\r\nselect 7 as n\r\n0\r\n\r\n"),
        REFUSED,
    ),
    # -- chunks
    Rule("chunks", chunked(b"6\r\nselect\r\n7\r\n 7 as n\r\n0\r\n\r\n", CLOSE), RUN),
    Rule("chunk-size-in-upper-case", chunked(b"D\r\nselect 7 as n\r\n0\r\n\r\n", CLOSE), RUN),
    Rule("chunk-extension", chunked(b'd;a=b;c="d";e\r\nselect 7 as n\r\n0\r\n\r\n', CLOSE), RUN),
    Rule("chunk-extension-malformed", chunked(b"d;\0\r\nselect 7 as n\r\n0\r\n\r\n"), REFUSED),
    Rule("chunk-size-with-blank", chunked(b"d \r\nselect 7 as n\r\n0\r\n\r\n"), REFUSED),
    Rule("chunk-size-with-prefix", chunked(b"0xd\r\nselect 7 as n\r\n0\r\n\r\n"), REFUSED),
    Rule("chunk-size-with-sign", chunked(b"+d\r\nselect 7 as n\r\n0\r\n\r\n"), REFUSED),
    Rule("chunk-size-negative", chunked(b"-d\r\nselect 7 as n\r\n0\r\n\r\n"), REFUSED),
    Rule("chunk-size-empty", chunked(b"\r\nselect 7 as n\r\n0\r\n\r\n"), REFUSED),
    Rule("chunk-size-too-large", chunked(b"fffffffff\r\nselect 7 as n\r\n0\r\n\r\n"), REFUSED),
    Rule("chunk-size-line-ends-bare", chunked(b"d\nselect 7 as n\r\n0\r\n\r\n"), REFUSED),
    Rule("chunk-longer-than-it-says", chunked(b"c\r\nselect 7 as n\r\n0\r\n\r\n"), REFUSED),
    Rule("chunk-end-bare", chunked(b"d\r\nselect 7 as n\n0\r\n\r\n"), REFUSED),
    Rule("chunk-line-too-long", chunked(b"d;a=" + b"b" * 2000), REFUSED),
    Rule("chunks-mostly-frames", chunked(b"1\r\n \r\n" * 30_000), REFUSED),
    Rule("trailers", chunked(b"d\r\nselect 7 as n\r\n0\r\nX: y\r\n\r\n", CLOSE), RUN),
    Rule("trailers-say-nothing", chunked(b"d\r\nselect 7 as n\r\n0\r\nAuthorization: x\r\n\r\n", CLOSE), RUN),
    Rule("trailers-malformed", chunked(b"d\r\nselect 7 as n\r\n0\r\nX y\r\n\r\n"), REFUSED),
    Rule("trailers-that-frame", chunked(b"d\r\nselect 7 as n\r\n0\r\nContent-Length: 13\r\n\r\n"), REFUSED),
    # -- one after the other
    Rule("pipelined", sized() * 20, (200,) * 20, stays_open=True),
    Rule("pipelined-and-closed", sized() + sized(CLOSE) + sized(), (200, 200)),
    Rule("pipelined-and-malformed", sized() * 3 + b"\0", (200, 200, 200, 400)),
    Rule("pipelined-behind-chunks", chunked(b"d\r\nselect 7 as n\r\n0\r\n\r\n") + sized(CLOSE), (200, 200)),
    Rule("upgrade-is-not-taken-up", sized("Upgrade: h2c", "Connection: Upgrade"), RUN, stays_open=True),
    Rule("upgrades-pipelined", sized("Upgrade: h2c", "Connection: Upgrade") * 600, (200,) * 600, stays_open=True),
    Rule("head-has-no-body", b"HEAD / HTTP/1.1\r\nHost: test\r\n\r\n" + GET, (200, 200), stays_open=True),
]


def spoken(service: Service, rule: Rule, *, piece: int | None = None) -> bytes:
    """What came back, up to the end of the connection; behind an answer that keeps it open one more request ends it."""
    sent = rule.sent.replace(b"{key}", service.key.encode())
    if rule.stays_open:
        sent += b"GET /health HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
    with connect(service) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for at in range(0, len(sent), piece or len(sent)):
                sock.sendall(sent[at : at + (piece or len(sent))])
        except (BrokenPipeError, ConnectionResetError):
            pass
        return read_all(sock)


def check(rule: Rule, received: bytes) -> None:
    # The answer to a HEAD has the length of the body it would have had.
    received = re.sub(rb"content-length: \d+(\r\n\r\nHTTP)", rb"content-length: 0\1", received)
    answers = answers_in(received)
    wanted = (*rule.statuses, *((200,) if rule.stays_open else ()))
    assert tuple(answer.status for answer in answers) == wanted, received[:2000]
    for answer in answers:
        if answer.status >= 400:
            assert answer.error["message"]
        elif b'"rows"' in answer.body:
            assert answer.json["rows"] == [{"n": 7}]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule(service: Service, rule: Rule) -> None:
    check(rule, spoken(service, rule))


@pytest.mark.parametrize("rule", [rule for rule in RULES if len(rule.sent) < 1000], ids=lambda rule: rule.name)
def test_a_rule_in_pieces(service: Service, rule: Rule) -> None:
    """However the bytes are cut."""
    check(rule, spoken(service, rule, piece=7))


def test_the_page_lists_the_rules() -> None:
    listed = re.findall(r"^\| `([a-z0-9-]+)` \|", PAGE.read_text(), re.MULTILINE)
    beside = {"half-closed", "expect-continue", "blank-behind-a-key", "early-answer"}
    assert sorted(listed) == sorted({rule.name for rule in RULES} | beside)


def test_half_closed(service: Service) -> None:
    """Who sends no more is answered, also if that takes a while, and in the middle of a request is told so."""
    for statement in (b"select 7 as n", b"select 7 as n from pg_sleep(1)"):
        with connect(service) as sock:
            lines = f"Content-Length: {len(statement)}"
            sock.sendall(request(lines, body=statement).replace(b"{key}", service.key.encode()))
            sock.shutdown(socket.SHUT_WR)
            (answer,) = answers_in(read_all(sock))
        assert answer.json["rows"] == [{"n": 7}]
    with connect(service) as sock:
        sock.sendall(request("Content-Length: 100").replace(b"{key}", service.key.encode()))
        sock.shutdown(socket.SHUT_WR)
        assert [answer.status for answer in answers_in(read_all(sock))] == [400]


def test_blank_behind_a_key(service: Service, sql: Sql) -> None:
    """`job` and `job ` are one key."""
    sql("create table once (a int)")
    statement = b"insert into once values (1)"
    for key in ("job", "job ", "\tjob \t"):
        data = request(f"Idempotency-Key: {key}", f"Content-Length: {len(statement)}", CLOSE, body=statement)
        with connect(service) as sock:
            sock.sendall(data.replace(b"{key}", service.key.encode()))
            (answer,) = answers_in(read_all(sock))
        assert answer.json["success"] is True
    assert sql.value("select count(*) from once") == 1


def test_early_answer(service: Service) -> None:
    """Nothing of a body is asked for before it is known who sends it."""
    start = request("Content-Length: 5000000", "Expect: 100-continue", body=b"").replace(b"{key}", b"svc_k_x")
    with connect(service) as sock:
        sock.sendall(start)
        received = read_all(sock)
    assert b"100 Continue" not in received
    (answer,) = answers_in(received)
    assert answer.status == 401
    assert answer.headers["connection"] == "close"
