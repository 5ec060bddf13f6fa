"""Writes the heads of requests and answers that pass through the alias: copies some headers, and sets others. Pure.

A head is always written from its parsed parts, with framing of our own. So the data plane cannot split the bytes into
other requests than the alias did.
"""

import re

from tuplegate.http.forwarding.answer_reader import AnswerReader
from tuplegate.http.parsing.message import CHUNKED, Head
from tuplegate.protocol.errors import ServiceError

PSEUDONYM = b"tuplegate-alias"

# RFC 9110 §7.6.1, and headers of older clients. Host and framing are made anew for each hop.
_HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te",
    b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings",
})  # fmt: skip
_OF_REQUESTS = _HOP_BY_HOP | {b"host", b"content-length", b"via"}
_OF_ANSWERS = _HOP_BY_HOP | {b"content-length", b"via", b"strict-transport-security"}
# Pages of other origins may not use the alias, so neither side gets these headers.
_CORS = b"access-control-"
_NOT_PASSED_BACK = re.compile(
    rb"\r\n(?:(?:%b):|%b)[^\r]*+" % (b"|".join(map(re.escape, sorted(_OF_ANSWERS))), re.escape(_CORS)), re.IGNORECASE
)
_VIA = re.compile(rb"\r\nvia:", re.IGNORECASE)


WEBSOCKET = b"connection: Upgrade\r\nupgrade: websocket\r\n"


def write_request_head(head: Head, authority: bytes, *, to_websocket: bool = False) -> bytes:
    """Return the head of the request for the data plane. Raises ServiceError for a request that came through an alias
    before."""
    headers = head.headers
    passed = headers.get(b"via", b"")
    if PSEUDONYM in passed:
        raise ServiceError(
            "malformed_request",
            "the request has come through an alias already",
            hint="Does the setting data_url of the alias lead to an alias?",
        )
    lines = [b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (head.method.encode(), head.origin_form, authority)]
    named = _named_by_connection(headers.get(b"connection", b""))
    lines += [
        _line(name, value)
        for name, value in headers.items()
        if name not in _OF_REQUESTS and name not in named and name != b"origin" and not name.startswith(_CORS)
    ]
    if head.length == CHUNKED:
        lines.append(b"transfer-encoding: chunked\r\n")
    elif b"content-length" in headers:
        lines.append(b"content-length: %d\r\n" % head.length)
    elif head.method not in ("GET", "HEAD", "OPTIONS"):
        lines.append(b"content-length: 0\r\n")
    if to_websocket:
        lines.append(WEBSOCKET)
    lines.append(b"via: %b1.1 %b\r\n\r\n" % (passed + b", " if passed else b"", PSEUDONYM))
    return b"".join(lines)


def write_answer_headers(answer: AnswerReader, own: bytes) -> bytes:
    """Return the headers of an answer for the client; `own` are the headers of this hop."""
    length = b"" if answer.length is None else b"content-length: %b\r\n" % answer.length
    if not answer.tells_connection and _VIA.search(answer.lines) is None:
        passed_on = _NOT_PASSED_BACK.sub(b"", answer.lines)[2:]
        return b"%b%b%bvia: 1.1 %b\r\n%b" % (passed_on, b"\r\n" if passed_on else b"", length, PSEUDONYM, own)
    given = answer.headers
    named = _named_by_connection(b",".join(value for name, value in given if name == b"connection"))
    passed = b", ".join(value for name, value in given if name == b"via")
    lines = [
        _line(name, value)
        for name, value in given
        if name not in _OF_ANSWERS and name not in named and not name.startswith(_CORS)
    ]
    lines.append(b"%bvia: %b1.1 %b\r\n%b" % (length, passed + b", " if passed else b"", PSEUDONYM, own))
    return b"".join(lines)


def _named_by_connection(value: bytes) -> frozenset[bytes]:
    if not value:
        return frozenset()
    return frozenset(part.strip().lower() for part in value.split(b","))


def _line(name: bytes, value: bytes) -> bytes:
    if b"\r" in value or b"\n" in value or b"\x00" in value:  # the parser refuses these; this is a second check
        raise ServiceError("malformed_request", "a header has a line break in its value")
    return b"%b: %b\r\n" % (name, value)
