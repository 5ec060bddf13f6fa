"""What h11, llhttp and the service make of the same bytes, in one shape; and where they may differ.

The rule: whatever the service's reader accepts, h11 and llhttp accept, with the same method, target, headers and body,
and cut into the same requests. Whatever h11 accepts and the service refuses is in `STRICTER`, with the reason. Anything
else is a difference that a proxy in front of the service could be fooled by.
"""

import importlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol, cast

import h11
import httptools

from tuplegate.protocol.errors import ServiceError

_HEAD_BYTES_MAX = 256 * 1024


@dataclass
class Request:
    """One request as a reader saw it. `complete` once its end was seen; until then `body` is what came of it."""

    method: str
    target: bytes
    headers: dict[bytes, bytes]
    keep_alive: bool
    body: bytes = b""
    complete: bool = False


@dataclass
class Reading:
    """All requests in a stream. `refusal` is what was wrong with the rest. `begins` are offsets of requests and `read`
    is that of what follows the last complete one, where the reader knows them. A reading that `stopped` says nothing
    about what follows."""

    requests: list[Request] = field(default_factory=list)
    refusal: str | None = None
    begins: list[int] = field(default_factory=list)
    read: int = 0
    stopped: bool = False


class Reader(Protocol):
    """The service's reader: `next` gives a head, bytes of a body, an end, or None where more bytes are needed."""

    def feed(self, data: bytes) -> None: ...

    def next(self) -> Any: ...


# -- the three readers ------------------------------------------------------------------------------------------------


def service_reader() -> Callable[[], Reader]:
    """Makes readers of the service, which share what they remember of heads as its connections do.

    They are found by name, so that the rest of this file can be used without them.
    """
    heads = importlib.import_module("tuplegate.http.parsing.message").HeadCache()
    buffer = importlib.import_module("tuplegate.http.parsing.framing").Buffer
    reader = importlib.import_module("tuplegate.http.parsing.request_reader").RequestReader

    def make() -> Reader:
        unread = buffer()
        return cast(Reader, SimpleNamespace(feed=unread.feed, next=reader(heads, unread).next))

    return make


def read_ours(new_reader: Callable[[], Reader], pieces: Sequence[bytes]) -> Reading:
    reader = new_reader()
    reading = Reading()
    request: Request | None = None
    for piece in pieces:
        reader.feed(piece)
        try:
            for event in _events(reader):
                request = _take(reading, request, event)
        except ServiceError as exc:
            if exc.body.code != "malformed_request":
                raise
            reading.refusal = str(exc)
            return reading
    return reading


def _events(reader: Reader) -> Iterator[Any]:
    while (event := reader.next()) is not None:
        yield event


def _take(reading: Reading, request: Request | None, event: Any) -> Request | None:
    """Heads and ends are told apart by name, so that readers need not share their classes."""
    name = type(event).__name__
    if name == "Head":
        assert request is None, "a head came before the end of the request before it"
        request = Request(event.method, bytes(event.target), dict(event.headers), event.keep_alive)
        reading.requests.append(request)
    elif name == "End":
        assert request is not None, "an end came without a head"
        request.complete = True
        request = None
    else:
        assert request is not None, "a body came without a head"
        assert isinstance(event, bytes), f"no part of a body: {event!r}"
        request.body += event
    return request


def read_h11(data: bytes) -> Reading:
    """Every request is read by a reader of its own, so that one that should close does not end the reading.

    h11 takes no empty line before a request. RFC 9112, 2.2, lets a server skip it, so it is skipped here.
    """
    reading = Reading()
    rest = data
    while True:
        reading.read = begin = len(data) - len(rest)
        while rest.startswith(b"\r\n"):
            rest = rest[2:]
        if rest in (b"", b"\r"):
            return reading
        reading.begins.append(begin)
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES_MAX)
        connection.receive_data(rest)
        try:
            request = _h11_request(reading, connection)
        except h11.RemoteProtocolError as exc:
            reading.refusal = str(exc)
            return reading
        if request is None or not request.complete:
            return reading
        rest = connection.trailing_data[0]


def _h11_request(reading: Reading, connection: h11.Connection) -> Request | None:
    request: Request | None = None
    body: list[bytes] = []
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            keep_alive = event.http_version >= b"1.1" and b"close" not in _options(event.headers)
            headers = _joined(event.headers)
            request = Request(event.method.decode("latin-1"), event.target, headers, keep_alive)
            reading.requests.append(request)
        elif isinstance(event, h11.Data):
            body.append(bytes(event.data))
        else:
            if request is not None:
                request.body = b"".join(body)
                request.complete = isinstance(event, h11.EndOfMessage)
            return request


class _Heard:
    """What llhttp calls back. Trailers are left out; blanks around values are taken off, which llhttp leaves on."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.parser: Any = None
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.in_head = False

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.in_head = True

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.in_head:
            self.headers.append((name, value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        self.in_head = False
        method = self.parser.get_method().decode("latin-1")
        keep_alive = self.parser.should_keep_alive()
        self.reading.requests.append(Request(method, self.url, _joined(self.headers), keep_alive))

    def on_body(self, data: bytes) -> None:
        self.reading.requests[-1].body += data

    def on_message_complete(self) -> None:
        self.reading.requests[-1].complete = True


def read_llhttp(data: bytes) -> Reading:
    """Stops where a protocol other than HTTP may begin."""
    reading = Reading()
    heard = _Heard(reading)
    heard.parser = httptools.HttpRequestParser(heard)
    try:
        heard.parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        reading.stopped = True
        reading.requests[-1].complete = False  # its body was left unread
    except httptools.HttpParserError as exc:
        reading.refusal = f"{type(exc).__name__}: {exc}"
    return reading


def _joined(headers: Any) -> dict[bytes, bytes]:
    joined: dict[bytes, bytes] = {}
    for spelled, value in headers:
        name = spelled.lower()
        joined[name] = joined[name] + b", " + value if name in joined else value
    return joined


def _options(headers: Any) -> list[bytes]:
    """What Connection says."""
    return [option.strip().lower() for name, value in headers if name == b"connection" for option in value.split(b",")]


# -- the comparison ---------------------------------------------------------------------------------------------------


def differences(data: bytes, ours: Reading, by_h11: Reading, by_llhttp: Reading) -> list[str]:
    """What must not be; empty where the readings agree as far as they must."""
    wrong = [*_accepted(ours, by_h11, "h11"), *_accepted(ours, by_llhttp, "llhttp")]
    if not wrong:
        wrong += _refused(data, ours, by_h11) if ours.refusal is not None else _missed(ours, by_h11)
    return wrong


def _missed(ours: Reading, by_h11: Reading) -> Iterator[str]:
    """A request that h11 sees whole must not be waited for."""
    for number, theirs in enumerate(by_h11.requests):
        if theirs.complete and (number >= len(ours.requests) or not ours.requests[number].complete):
            yield f"request {number} is complete for h11, and the service waits for more"
        if number >= len(ours.requests) or not ours.requests[number].keep_alive:
            return


def _accepted(ours: Reading, other: Reading, name: str) -> Iterator[str]:
    """Differences in what the service has accepted, up to a request after which the connection closes."""
    for number, request in enumerate(ours.requests):
        if number >= len(other.requests):
            if not other.stopped and not _is_excused(request, name):
                yield f"request {number} was accepted, and {name} refuses it or sees none: {other.refusal}"
            return
        theirs = other.requests[number]
        yield from _parts(number, request, theirs, other, name)
        if not request.keep_alive or not theirs.complete or (name == "llhttp" and _names_a_proxy(request)):
            return


def _parts(number: int, ours: Request, theirs: Request, reading: Reading, name: str) -> Iterator[str]:
    if ours.method != theirs.method:
        yield f"request {number}: method {ours.method!r}, for {name} {theirs.method!r}"
    if ours.target != theirs.target:
        yield f"request {number}: target {ours.target[:200]!r}, for {name} {theirs.target[:200]!r}"
    if _comparable(ours.headers) != _comparable(theirs.headers):
        yield f"request {number}: headers {ours.headers}, for {name} {theirs.headers}"
    excused = _asks_to_stay(ours) if name == "h11" else _names_a_proxy(ours)
    if ours.keep_alive and not theirs.keep_alive and not excused:
        yield f"request {number}: the connection stays open, for {name} it closes"
    last = number == len(reading.requests) - 1
    if last and reading.stopped and not theirs.complete:
        return
    if ours.complete and not theirs.complete:
        if name != "llhttp" or not _is_refused_by_llhttp_alone(ours, reading.refusal or ""):
            yield f"request {number}: complete, for {name} it is not: {reading.refusal}"
    elif ours.complete and ours.body != theirs.body:
        yield f"request {number}: body {ours.body[:200]!r}, for {name} {theirs.body[:200]!r}"
    elif not theirs.body.startswith(ours.body) and not ours.body.startswith(theirs.body):
        yield f"request {number}: body begins {ours.body[:200]!r}, for {name} {theirs.body[:200]!r}"


def _comparable(headers: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """h11 writes codings in lower case."""
    coding = headers.get(b"transfer-encoding")
    return headers if coding is None else {**headers, b"transfer-encoding": coding.lower()}


def _asks_to_stay(request: Request) -> bool:
    """h11 always closes after HTTP/1.0; a server may do what `Connection: keep-alive` asks for."""
    return b"keep-alive" in _options(request.headers.items())


def _names_a_proxy(request: Request) -> bool:
    """llhttp takes Proxy-Connection, which no standard has, for Connection, and ends the connection by it."""
    return b"proxy-connection" in request.headers


def _is_refused_by_llhttp_alone(request: Request, refusal: str) -> bool:
    """llhttp takes blanks behind `chunked` for a part of it, and refuses the request: nothing is smuggled past it."""
    coding = request.headers.get(b"transfer-encoding", b"").lower()
    return "Request has invalid `Transfer-Encoding`" in refusal and coding == b"chunked"


def _is_excused(request: Request, name: str) -> bool:
    """llhttp knows methods by a list of its own; any token is a method."""
    return name == "llhttp" and request.method not in LLHTTP_METHODS


LLHTTP_METHODS = frozenset(
    {"DELETE", "GET", "HEAD", "POST", "PUT", "CONNECT", "OPTIONS", "TRACE", "COPY", "LOCK", "MKCOL", "MOVE",
     "PROPFIND", "PROPPATCH", "SEARCH", "UNLOCK", "BIND", "REBIND", "UNBIND", "ACL", "REPORT", "MKACTIVITY",
     "CHECKOUT", "MERGE", "M-SEARCH", "NOTIFY", "SUBSCRIBE", "UNSUBSCRIBE", "PATCH", "PURGE", "MKCALENDAR",
     "LINK", "UNLINK", "SOURCE", "QUERY"}
)  # fmt: skip


def _refused(data: bytes, ours: Reading, by_h11: Reading) -> Iterator[str]:
    """A refusal of what h11 accepts must have a reason from the list."""
    done = sum(request.complete for request in ours.requests)
    if any(not request.keep_alive for request in ours.requests[:done]):
        return  # what follows a request that closes is nobody's
    if done >= len(by_h11.requests):
        return  # h11 has accepted nothing of it either
    theirs = by_h11.requests[done]
    if not theirs.complete and by_h11.refusal is not None:
        return  # h11 has accepted its head, and refuses its body
    begin = by_h11.begins[done]
    end = by_h11.begins[done + 1] if done + 1 < len(by_h11.begins) else len(data)
    if not reasons(data[begin:end], theirs):
        yield f"request {done} was refused ({ours.refusal}), h11 accepts it, and no stricter rule is listed for it"


@dataclass(frozen=True)
class Rule:
    """`applies` judges the bytes of one request, as far as they are there, and what h11 read in them."""

    reason: str
    applies: Callable[[bytes, Request], bool]


_BARE_LF = re.compile(rb"(?<!\r)\n")
_FOLD = re.compile(rb"\n[ \t]")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_PLAIN_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?::[0-9]{1,5})?")
_TARGET = re.compile(
    rb"/(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*(?:\?(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?"
)
_ESCAPED = re.compile(rb"%(?:2f|5c|00)", re.IGNORECASE)
_ONCE = re.compile(
    rb"\n(authorization|content-type|expect|idempotency-key|origin|tuplegate-[a-z-]+)[ \t]*:", re.IGNORECASE
)
_CODING = re.compile(rb"\ntransfer-encoding[ \t]*:[ \t]*([^\r\n]*)", re.IGNORECASE)
_LENGTH = re.compile(rb"\ncontent-length[ \t]*:[ \t]*([^\r\n]*)", re.IGNORECASE)
_PLAIN_SIZE = re.compile(rb"[0-9A-Fa-f]{1,8}")


def _head(data: bytes) -> bytes:
    """Up to the empty line, also where lines end in a bare LF."""
    found = re.search(rb"\n\r?\n", data)
    return data if found is None else data[: found.end()]


def _first_line(data: bytes) -> bytes:
    return data.split(b"\n", 1)[0]


def _is_long(data: bytes, request: Request) -> bool:
    return len(_head(data)) > 16 * 1024 or _head(data).count(b"\n") > 100 or len(request.target) > 8 * 1024


def _has_odd_chunks(data: bytes, request: Request) -> bool:
    """Extensions, blanks, long sizes or trailers in what follows the head."""
    if b"chunked" not in request.headers.get(b"transfer-encoding", b"").lower():
        return False
    rest = data[len(_head(data)) :]
    while True:
        line, found, after = rest.partition(b"\r\n")
        if not found:
            return _PLAIN_SIZE.fullmatch(line.removesuffix(b"\r")) is None and line != b""
        if not _PLAIN_SIZE.fullmatch(line):
            return True
        size = int(line, 16)
        if size == 0:
            return not b"\r\n".startswith(after[:2])  # trailers
        rest = after[size + 2 :]


STRICTER: dict[str, Rule] = {
    "bare_lf": Rule(
        "Only CRLF ends a line. Readers differ about a bare LF, and that is how requests are smuggled.",
        lambda data, _: _BARE_LF.search(_head(data)) is not None,
    ),
    "obs_fold": Rule(
        "RFC 9112, 5.2, lets a server refuse a folded header.", lambda data, _: _FOLD.search(_head(data)) is not None
    ),
    "junk_host": Rule(
        "RFC 9112, 3.2: a Host that is no host and port gets 400.",
        lambda _, request: not _PLAIN_HOST.fullmatch(request.headers.get(b"host", b"x")),
    ),
    "coding_in_1_0": Rule(
        "RFC 9112, 6.1: framing of HTTP/1.0 with a transfer coding is faulty.",
        lambda data, request: b"transfer-encoding" in request.headers and b"HTTP/1.0" in _first_line(data),
    ),
    "coding_and_length": Rule(
        "RFC 9112, 6.3: a coding and a length together are a sign of smuggling.",
        lambda _, request: b"transfer-encoding" in request.headers and b"content-length" in request.headers,
    ),
    "coding_spelled_oddly": Rule(
        "`chunked` alone is known. It may be asked for in lower case, and without blanks behind it.",
        lambda data, _: any(value != b"chunked" for value in _CODING.findall(_head(data))),
    ),
    "repeated_length": Rule(
        "RFC 9112, 6.3, lets a server refuse lengths that are given twice, also where they agree.",
        lambda data, _: len(_LENGTH.findall(_head(data))) > 1 or any(b"," in v for v in _LENGTH.findall(_head(data))),
    ),
    "said_twice": Rule(
        "Who asks, for what and how is said once: of two headers, another reader may take the other.",
        lambda data, _: any(count > 1 for count in Counter(map(bytes.lower, _ONCE.findall(_head(data)))).values()),
    ),
    "long_length": Rule(
        "A length of more digits than a length can have, leading zeros included.",
        lambda data, _: any(
            len(value.strip()) > 15 or (value[:1] == b"0" and len(value.strip()) > 1)
            for value in _LENGTH.findall(_head(data))
        ),
    ),
    "version": Rule(
        "Versions other than 1.0 and 1.1 are not spoken.",
        lambda data, _: not _first_line(data).rstrip(b"\r").endswith((b" HTTP/1.1", b" HTTP/1.0")),
    ),
    "target_form": Rule(
        "A target is a path, with or without a query; `*` and other hosts are for proxies.",
        lambda _, request: request.target[:1] != b"/",
    ),
    "target_characters": Rule(
        "RFC 3986: characters that must be escaped, and escapes that are none or hide a separator.",
        lambda _, request: _TARGET.fullmatch(request.target) is None or _ESCAPED.search(request.target) is not None,
    ),
    "method": Rule(
        "Methods that no route has, or that llhttp does not know.",
        lambda _, request: request.method not in LLHTTP_METHODS or request.method in ("CONNECT", "TRACE"),
    ),
    "control_characters": Rule(
        "RFC 9110, 5.5: control characters in values are invalid; h11 takes all but NUL, CR and LF.",
        lambda _, request: any(_CONTROL.search(value) for value in request.headers.values()),
    ),
    "too_long": Rule("Heads are bounded in bytes and in headers.", _is_long),
    "odd_chunks": Rule(
        "Chunk extensions, trailers, blanks and long sizes are of no use to this service and have been misread.",
        _has_odd_chunks,
    ),
}


def reasons(data: bytes, request: Request) -> list[str]:
    """Names of the stricter rules that apply to a request that h11 accepts; `data` begins with it."""
    bare = data.lstrip(b"\r\n")
    found = [name for name, rule in STRICTER.items() if rule.applies(bare, request)]
    return found if bare is data else [*found, BLANK_LINE]


BLANK_LINE = "blank_line"
"""RFC 9112, 2.2: an empty line before a request may be skipped, or refused."""
