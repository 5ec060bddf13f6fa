"""The body of a request that did not arrive completely with its head.

Nothing of it is read until the handler asks for it, after the head was judged. The body is either collected, within the
memory for that, or passed on to a BodySink as it arrives.
"""

import asyncio
from typing import Protocol

from tuplegate.direct_future import Wakeup
from tuplegate.http.sharing.memory import STRANGER, Holding, Memory
from tuplegate.protocol.errors import ServiceError


class BodySink(Protocol):
    def body_piece(self, data: bytes) -> None: ...

    def body_end(self) -> None: ...

    def body_failed(self, error: ServiceError) -> None:
        """The rest will not arrive: the client was too slow, or it sent something that is no body."""


class Source(Protocol):
    """Where a body comes from."""

    def want_body(self) -> None:
        """Deliver the body from now on, but not within this call."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class IncomingBody:
    """`length` is the length that the head gives, or negative. `is_wanted` is set once a handler has asked for the
    body."""

    def __init__(
        self, first: bytes, length: int, source: Source, memory: Memory, owner: str, transport: asyncio.Transport
    ) -> None:
        """`first` is the part that arrived with the head. Raises busy. `release` must follow."""
        self._held = bytearray(first)
        self._source = source
        self._memory = memory
        self._transport = transport
        self._holding = Holding(memory, owner, transport)
        self._holding.resize(len(first))
        self._most = 0
        self._sink: BodySink | None = None
        self._arrived = Wakeup()
        self.length = length
        self.is_wanted = False
        self.complete = False
        self.failed = False
        self._error: ServiceError | None = None
        """Forgotten when it is raised: it and the frame that raises it would keep each other alive."""

    # -- from the connection --------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Take a piece of the body. Raises body_too_large and busy."""
        if self._sink is not None:
            self._sink.body_piece(data)
            return
        size = len(self._held) + len(data)
        if size > self._most:
            raise too_large(self._most)
        if size > self._holding.size:
            self._holding.resize(max(size, min(2 * size, self.length if self.length >= 0 else self._most)))
        self._held += data

    def end(self) -> None:
        self.complete = True
        if self._sink is not None:
            self._sink.body_end()
        self._arrived.wake()

    def fail(self, error: ServiceError) -> None:
        self.failed = True
        if self._sink is not None:
            self._sink.body_failed(error)
        else:
            self._error = error
        self._arrived.wake()

    # -- for the handler ------------------------------------------------------------------------------------------

    async def collect(self, owner: str, most: int) -> bytes:
        """Return the whole body, once it is there. Raises the error of a body that failed, body_too_large and busy."""
        self._check()
        if self.length > most or len(self._held) > most:
            raise too_large(most)
        self.release()
        self._holding, self._most = Holding(self._memory, owner, self._transport), most
        # A client with a key is refused at once if its whole body has no room. A stranger's length is not trusted.
        self._holding.resize(len(self._held) if owner.startswith(STRANGER) else max(self.length, len(self._held)))
        self.is_wanted = True
        self._source.want_body()
        await self._arrived.wait()
        self._check()
        return bytes(self._held)

    def _check(self) -> None:
        if self._error is not None:
            raise self._pop_error()

    def _pop_error(self) -> ServiceError:
        """Return the error and forget it. The caller must raise it without a variable: the error would refer to its
        frame."""
        error, self._error = self._error, None
        assert error is not None
        return error

    def release(self) -> None:
        self._holding.resize(0)

    def flow_to(self, sink: BodySink) -> bytes:
        """Return the bytes that have arrived so far, and give the rest to the sink as it arrives."""
        self._check()
        held, self._held = bytes(self._held), bytearray()
        self.release()
        self._sink = sink
        self.is_wanted = True
        self._source.want_body()
        return held

    def pause(self) -> None:
        self._source.pause_reading()

    def resume(self) -> None:
        self._source.resume_reading()


def too_large(most: int) -> ServiceError:
    return ServiceError("body_too_large", f"the request body is over the limit of {most} bytes")
