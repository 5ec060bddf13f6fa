"""Heads of requests that came before: one that comes again, byte for byte, is not read again.

A client sends the same head again and again, over all its connections, and reading it takes a tenth of a whole request.
What is kept follows from the bytes alone, whoever has sent them first and whatever came before them, or is looked at
anew for each request.
"""

from typing import TYPE_CHECKING, Final

import httptools

if TYPE_CHECKING:
    from tuplegate.http.exchange import Gate

HeaderMap = dict[bytes, bytes]

_SPECIAL: Final = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"trailer"})
"""Headers that say how a request is to be read; one that has them is read by the parser every time."""


def add_header(headers: HeaderMap, name: bytes, value: bytes) -> None:
    key = name.lower()
    headers[key] = value if key not in headers else headers[key] + b", " + value


class Reading:
    """What a parser makes of a head that stands alone."""

    def __init__(self, raw: bytes) -> None:
        self.method = ""
        self.target = b""
        self.headers: HeaderMap = {}
        self._complete = False
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        try:
            self._parser.feed_data(raw)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._complete = False
        self._parser = None  # else the two would hold each other

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        add_header(self.headers, name, value)

    def on_headers_complete(self) -> None:
        parser = self._parser
        assert parser is not None, "it is being read"
        self.method = parser.get_method().decode("latin-1")
        self._complete = parser.get_http_version() == "1.1" and parser.should_keep_alive()

    @property
    def is_plain(self) -> bool:
        """Whether it is a whole head, and its length says all about the body that follows, and another request may."""
        return self._complete and _SPECIAL.isdisjoint(self.headers)

    @property
    def length(self) -> bytes:
        return self.headers.get(b"content-length", b"0")


class Head:
    """What the parser made of the `raw` head of a request, blank line included, whose body has `length` bytes; and what
    was found out about it since, for the requests that come with it."""

    __slots__ = (
        "extra_headers", "gate", "headers", "holders", "is_usual", "length", "method", "path", "query", "raw", "target",
        "token_digest",
    )  # fmt: skip

    def __init__(
        self,
        raw: bytes,
        method: str,
        target: bytes,
        path: str,
        query: str,
        headers: HeaderMap,
        extra_headers: bytes,
        length: int,
    ) -> None:
        self.raw = raw
        self.method = method
        self.target = target
        self.path = path
        self.query = query
        self.headers = headers
        self.extra_headers = extra_headers
        self.length = length
        self.holders = 0
        self.gate: Gate | None = None
        self.token_digest: bytes | None = None
        self.is_usual = False
        """Its headers say nothing about how a query is to be run or answered."""


class Heads:
    """Those that the connections of a server hold; one is found no more when none of them does.

    One for all connections, because what is needed for every request then stays in the nearest cache.
    """

    def __init__(self) -> None:
        self._by_raw: dict[bytes, Head] = {}

    def __len__(self) -> int:
        return len(self._by_raw)

    def find(self, raw: bytes) -> Head | None:
        return self._by_raw.get(raw)

    def hold(self, head: Head) -> None:
        """`let_go` must follow."""
        if head.holders == 0:
            self._by_raw[head.raw] = head
        head.holders += 1

    def let_go(self, head: Head) -> None:
        head.holders -= 1
        if head.holders == 0:
            del self._by_raw[head.raw]
