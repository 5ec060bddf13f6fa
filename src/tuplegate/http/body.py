"""The body of a request that is passed on while it comes, instead of being collected first.

What comes before somebody takes it is held, up to a bound; beyond that the client is not read from. Whoever takes the
body is a BodySink, is called for every piece, and can pause the client.
"""

import asyncio
from typing import Protocol

from tuplegate.protocol.errors import ServiceError

_HELD_MAX = 64 * 1024


class BodySink(Protocol):
    def body_piece(self, data: bytes) -> None: ...

    def body_end(self) -> None: ...

    def body_failed(self, error: ServiceError) -> None:
        """The rest will not come: the client was too slow, or what it sent is no body."""


class IncomingBody:
    __slots__ = ("_held", "_held_size", "_sink", "_transport", "complete", "error")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._held: list[bytes] = []
        self._held_size = 0
        self._sink: BodySink | None = None
        self.complete = False
        self.error: ServiceError | None = None

    # -- from the connection --------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        if self._sink is not None:
            self._sink.body_piece(data)
            return
        self._held.append(data)
        self._held_size += len(data)
        if self._held_size > _HELD_MAX:
            self._transport.pause_reading()

    def end(self) -> None:
        self.complete = True
        if self._sink is not None:
            self._sink.body_end()

    def fail(self, error: ServiceError) -> None:
        self.error = error
        if self._sink is not None:
            self._sink.body_failed(error)

    # -- for whoever takes it -------------------------------------------------------------------------------------

    def flow_to(self, sink: BodySink) -> bytes:
        """What has come so far. The sink gets the rest, unless the body is complete."""
        if self.error is not None:
            raise self.error
        held = b"".join(self._held)
        self._held = []
        if not self.complete:
            self._sink = sink
        if self._held_size > _HELD_MAX:
            self.resume()
        return held

    def pause(self) -> None:
        self._transport.pause_reading()

    def resume(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()
