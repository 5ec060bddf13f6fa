"""The head of a request: reads its bytes, and decides which heads are refused.

Strict: RFC 9112 and 9110 as docs/http.md lists them. If those leave a choice, it takes the reading that no other server
in front of us can understand differently. Pure: the same bytes always give the same Head. So a head that arrives again
need not be parsed again (see `HeadCache`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tuplegate.protocol.errors import ServiceError

HEAD_BYTES_MAX: Final = 32 * 1024
FIELDS_MAX: Final = 100
_ROOM_BYTES, _ROOM_FIELDS = 2 * 1024, 10
"""The bytes and headers that the service's own processes together may add to a head when they pass it on."""
BLANK_LINE: Final = b"\r\n\r\n"
CHUNKED: Final = -1
"""The length of a body in chunks, which mark its end themselves."""

TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
VALUE: Final = rb"[\t\x20-\x7e\x80-\xff]*"
LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_NAME: Final = re.compile(TOKEN)
REQUEST_LINE: Final = re.compile(rb"(%b) ([!-~]+) HTTP/1\.([01])" % TOKEN)
_VALUE: Final = re.compile(VALUE)
_TARGET_WRONG: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})|#")
_ABSOLUTE: Final = re.compile(rb"https?://([^/?]*)([/?].*)?", re.IGNORECASE)
_CONNECTION_BYTES_MAX: Final = 256
"""Bytes of the Connection header; with more the connection is closed after the answer."""
_HOST: Final = re.compile(rb"(?:[0-9A-Za-z._~!$&'()*+,;=%-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")

# Headers for identity, target and length may come only once: another reader may take the other one.
_ONCE: Final = frozenset({
    b"authorization", b"content-length", b"content-type", b"expect", b"host", b"idempotency-key",
    b"neon-connection-string", b"origin", b"transfer-encoding", b"tuplegate-database", b"tuplegate-transaction-id",
})  # fmt: skip


def malformed(message: str) -> ServiceError:
    return ServiceError("malformed_request", f"this is not an HTTP/1.1 request: {message}")


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """The size of a head, and the number of its headers, that are taken at most."""

    bytes_max: int = HEAD_BYTES_MAX
    fields_max: int = FIELDS_MAX


FROM_CLIENTS: Final = HeadLimits()
FROM_OURSELVES: Final = HeadLimits(HEAD_BYTES_MAX + _ROOM_BYTES, FIELDS_MAX + _ROOM_FIELDS)
"""The limits on connections that only processes of the service can open: a head that was accepted once must be accepted
there."""


class Fields:
    """The headers of a request, and their meaning. Immutable: the heads of many requests may share them. `length` is
    that of the body, or CHUNKED."""

    def __init__(self, raw: bytes, fields_max: int, *, is_http_1_1: bool) -> None:
        """`raw` begins behind the first line of the request and ends with the blank line. Raises malformed_request."""
        headers = read_fields(raw[:-4].split(b"\r\n") if len(raw) > 4 else [], fields_max)
        self.headers: Final[Mapping[bytes, bytes]] = MappingProxyType(headers)
        self.length: Final = _body_length(headers, is_http_1_1=is_http_1_1)
        self.expects_continue: Final = is_http_1_1 and headers.get(b"expect", b"").lower() == b"100-continue"
        self.keep_alive: Final = is_kept_alive(headers, is_http_1_1=is_http_1_1)
        _check_host(headers, is_http_1_1=is_http_1_1)


class Head:
    """The head of a request. Immutable but for `noted`: many requests over many connections may share it.

    `origin_form` is the target without its host, if it names one; `path` and `query` are its parts as they were sent,
    still percent-encoded. `noted` is what a route has derived from the head alone; it is forgotten with the head.
    """

    def __init__(self, raw: bytes, known: Fields | None = None, fields_max: int = FIELDS_MAX) -> None:
        """Parse a head that ends with the blank line. `known` are its headers, if the same ones came before behind the
        same version of HTTP. Raises malformed_request."""
        end = raw.find(b"\r\n")
        line = REQUEST_LINE.fullmatch(raw, 0, end)
        if line is None:
            raise malformed("its first line is not of the form METHOD target HTTP/1.1")
        self.is_http_1_1: Final = line[3] == b"1"
        fields = known or Fields(raw[end + 2 :], fields_max, is_http_1_1=self.is_http_1_1)
        self.method: Final = line[1].decode()
        self.target: Final = line[2]
        self.origin_form: Final = _origin_form(self.method, line[2])
        path, _, query = self.origin_form.decode().partition("?")
        self.path: Final = path
        self.query: Final = query
        self.fields: Final = fields
        self.headers: Final = fields.headers
        self.length: Final = fields.length
        self.expects_continue: Final = fields.expects_continue
        self.keep_alive: Final = fields.keep_alive
        self.noted: object = None


def read_fields(lines: list[bytes], fields_max: int) -> dict[bytes, bytes]:
    """Return headers by their names in lower case, without blanks around a value; repeated ones become a list."""
    if len(lines) > fields_max:
        raise malformed(f"it has more than {fields_max} headers")
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or _NAME.fullmatch(name) is None:
            raise malformed(f"a header is not of the form name: value, near {_shown(line)}")
        if _VALUE.fullmatch(value) is None:
            raise malformed(f"the header {name.decode()} has a control character in its value")
        key = name.lower()
        value = value.strip(b" \t")
        if key not in headers:
            headers[key] = value
        elif key in _ONCE:
            raise malformed(f"the header {name.decode()} is given twice")
        else:
            headers[key] += b", " + value
    return headers


def is_kept_alive(headers: Mapping[bytes, bytes], *, is_http_1_1: bool) -> bool:
    """Return whether another message may follow over the connection."""
    given = headers.get(b"connection")
    if given is None:
        return is_http_1_1
    if len(given) > _CONNECTION_BYTES_MAX:
        return False
    options = {option.strip().lower() for option in given.split(b",")}
    return b"close" not in options and (is_http_1_1 or b"keep-alive" in options)


def _body_length(headers: Mapping[bytes, bytes], *, is_http_1_1: bool) -> int:
    coding, length = headers.get(b"transfer-encoding"), headers.get(b"content-length")
    if coding is not None:
        if not is_http_1_1:
            raise malformed("HTTP/1.0 has no Transfer-Encoding")
        if length is not None:
            raise malformed("it has both a Content-Length and a Transfer-Encoding")
        if coding.lower() != b"chunked":
            raise malformed(f"its Transfer-Encoding is not chunked, but {_shown(coding)}")
        return CHUNKED
    if length is None:
        return 0
    if LENGTH.fullmatch(length) is None:
        raise malformed(f"its Content-Length is no number of bytes: {_shown(length)}")
    return int(length)


def _origin_form(method: str, target: bytes) -> bytes:
    if method == "CONNECT":
        if _HOST.fullmatch(target) is None:
            raise malformed("the target of CONNECT is a host and a port")
        return target
    if _TARGET_WRONG.search(target) is not None:
        raise malformed("its target has a % without two hexadecimal digits, or a fragment")
    if target[:1] == b"/" or (target == b"*" and method == "OPTIONS"):
        return target
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None or _HOST.fullmatch(absolute[1]) is None:
        raise malformed("its target is no path, and no address of the form http://host/path")
    rest = absolute[2] or b"/"
    return rest if rest[:1] == b"/" else b"/" + rest


def _check_host(headers: Mapping[bytes, bytes], *, is_http_1_1: bool) -> None:
    host = headers.get(b"host")
    if host is None:
        if is_http_1_1:
            raise malformed("it needs a Host header")
    elif _HOST.fullmatch(host) is None:
        raise malformed(f"its Host is not of the form name or name:port: {_shown(host)}")


def _shown(data: bytes) -> str:
    """Return the start of the data as text, for an error message."""
    return ascii(data[:40].decode("latin-1"))


_HELD_MAX: Final = 1024
_HELD_BYTES_MAX: Final = 4 * 1024
_ALL_BYTES_MAX: Final = 2**20
"""The bytes as they were sent; a head takes a few times as much in memory."""
_VERSION_LENGTH: Final = len(b"HTTP/1.1")


class HeadCache:
    """Parses heads, and caches them: clients send the same bytes again and again.

    A cached head equals the result of parsing, so nobody can tell the difference. A head that was not sent for a while
    is forgotten, with the token in it (see `age`). Headers are cached separately as well, together with the version of
    HTTP in front of them: every open transaction has a path of its own, and its client sends the same headers with all
    of them.
    """

    def __init__(self, limits: HeadLimits = FROM_CLIENTS) -> None:
        self.limits = limits
        self._young: dict[bytes, Head] = {}
        self._old: dict[bytes, Head] = {}
        self._young_fields: dict[bytes, Fields] = {}
        self._old_fields: dict[bytes, Fields] = {}
        self._young_bytes = 0

    def read(self, raw: bytes) -> Head:
        """Return the head of these bytes. Raises malformed_request."""
        head = self._young.get(raw)
        if head is not None:
            return head
        head = self._old.get(raw) or self._parse(raw)
        if len(raw) <= _HELD_BYTES_MAX:
            self._young_bytes += len(raw)
            if len(self._young) >= _HELD_MAX or self._young_bytes > _ALL_BYTES_MAX:
                self.age()
            self._young[raw] = head
        return head

    def _parse(self, raw: bytes) -> Head:
        key = raw[raw.find(b"\r\n") - _VERSION_LENGTH :]
        known = self._young_fields.get(key)
        if known is not None:
            return Head(raw, known)
        head = Head(raw, self._old_fields.get(key), self.limits.fields_max)
        if len(key) <= _HELD_BYTES_MAX:
            if len(self._young_fields) >= _HELD_MAX:
                self._old_fields, self._young_fields = self._young_fields, {}
            self._young_fields[key] = head.fields
        return head

    def age(self) -> None:
        """Forget heads that were not sent since the last call."""
        self._old, self._young = self._young, {}
        self._old_fields, self._young_fields = self._young_fields, {}
        self._young_bytes = 0

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())
