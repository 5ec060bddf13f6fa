"""Heads of requests that came before: one that comes again, byte for byte, is not read again.

A client sends the same head again and again, over all its connections, and reading it takes a tenth of a whole request.
What is kept follows from the bytes alone, whoever has sent them first, or is looked at anew for each request.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from querygate.http.exchange import Gate


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
        headers: dict[bytes, bytes],
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
    """Those that the connections of a server hold; they go with the last that does, and so do the tokens in them.

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
