"""Writes to a client, and tracks how far behind it is."""

import asyncio
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, Protocol

from tuplegate.http.sharing.memory import Holding, Memory
from tuplegate.http.sharing.stalls import cut_off

STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}

CONTENT_POLICY: Final = b"default-src 'none'; frame-ancestors 'none'"
"""For answers that are no pages: a browser runs and shows nothing of them."""

NO_STORE: Final = b"no-store"

TLS_HEADERS: Final = "strict-transport-security: max-age=31536000\r\n"

# For answers that are no pages: nothing in them may be run, framed, guessed at or kept.
_SECURITY_HEADERS: Final = (
    f"cache-control: {NO_STORE.decode()}\r\nx-content-type-options: nosniff\r\nreferrer-policy: no-referrer\r\n"
    f"content-security-policy: {CONTENT_POLICY.decode()}\r\n"
)
_WRITE_HIGH: Final = 64 * 1024
"""Bytes that may wait for a client with a key before it is behind. A stranger is behind with the first."""


class CommonHeaders:
    """The headers that all answers of a server begin with; renewed once a second for the date."""

    def __init__(self, *, with_tls: bool) -> None:
        self._tls = TLS_HEADERS if with_tls else ""
        self.lines = b""
        self.json_head = b""
        """The start of the most common answer: 200, in JSON."""
        self.renew()

    def renew(self) -> None:
        self.lines = f"date: {formatdate(usegmt=True)}\r\nserver: tuplegate\r\n{_SECURITY_HEADERS}{self._tls}".encode()
        self.json_head = STATUS_LINES[200] + self.lines + b"content-type: application/json\r\nx-request-id: "


class Companion(Protocol):
    """Something that lives and ends with a client's connection."""

    def end(self) -> None: ...


class Outgoing:
    """The way to one client. `owner` is for whom its answers are held while the client does not take them.

    `is_behind`: the client has not taken its data, so nothing more should be produced for it: no more of this answer,
    and no other. `written` counts bytes.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        common: CommonHeaders,
        memory: Memory,
        address: str,
        on_caught_up: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._holding = Holding(memory, address, transport)
        self._waiter: asyncio.Future[None] | None = None
        self.common = common
        self.address = self.owner = address
        self._on_caught_up = on_caught_up
        self.companion: Companion | None = None
        self.is_behind = False
        self.is_lost = False
        self.written = 0
        transport.set_write_buffer_limits(high=0)

    def belong_to(self, owner: str) -> None:
        """Hold answers for this owner from now on: its key was seen."""
        self.owner = owner
        if not self.is_lost:
            self._transport.set_write_buffer_limits(high=_WRITE_HIGH)

    def pass_to(self, on_caught_up: Callable[[], None]) -> None:
        """Report to another object from now on that the client has caught up."""
        self._on_caught_up = on_caught_up

    def write(self, data: bytes) -> None:
        if not self.is_lost:
            self.written += len(data)
            self._transport.write(data)

    def accompany(self, companion: Companion) -> None:
        """End the companion when the client's connection ends."""
        self.companion = companion
        if self.is_lost:
            companion.end()

    async def wait_until_taken(self) -> None:
        """Wait until the client has taken most of what it was sent, or has left."""
        if self.is_behind and not self.is_lost:
            self._waiter = self._loop.create_future()
            await self._waiter

    def cut_off(self) -> None:
        """Drop the connection at once, with everything that the client has not taken yet."""
        cut_off(self._transport)

    # -- from the connection --------------------------------------------------------------------------------------

    def note_behind(self) -> None:
        self.is_behind = True
        self.charge_again()

    def note_caught_up(self) -> None:
        self.is_behind = False
        self._holding.resize(0)
        self._wake()
        self._on_caught_up()

    def charge_again(self) -> None:
        """Account for waiting bytes, which may have become more or less. Called once a second."""
        if self.is_behind:
            self._holding.record(self.owner, self._transport.get_write_buffer_size())

    def note_lost(self) -> None:
        self.is_lost = True
        self._holding.resize(0)
        self._wake()
        self._on_caught_up = do_nothing  # otherwise the two would keep each other alive
        companion, self.companion = self.companion, None
        if companion is not None:
            companion.end()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def do_nothing() -> None:
    pass
