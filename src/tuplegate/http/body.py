"""The body of a request that has not come whole with its head.

Nothing of it is read before somebody asks for it: whoever answers the request has judged the head by then. It is either
collected, within the memory there is for that, or passed on to a BodySink as it comes.
"""

import asyncio
from typing import Protocol

from tuplegate.direct_future import DirectFuture
from tuplegate.http.memory import STRANGER, Holding, Memory
from tuplegate.protocol.errors import ServiceError


class BodySink(Protocol):
    def body_piece(self, data: bytes) -> None: ...

    def body_end(self) -> None: ...

    def body_failed(self, error: ServiceError) -> None:
        """The rest will not come: the client was too slow, or what it sent is no body."""


class Source(Protocol):
    """Where a body comes from."""

    def want_body(self) -> None:
        """Gives it from now on, but not within this call."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class IncomingBody:
    """`length` is what its head says, or negative. `is_wanted` once somebody has asked for it."""

    __slots__ = (
        "_error", "_held", "_holding", "_memory", "_most", "_sink", "_source", "_waiter", "complete", "failed",
        "is_wanted", "length",
    )  # fmt: skip

    def __init__(self, first: bytes, length: int, source: Source, memory: Memory, owner: str) -> None:
        """`first` is what came with the head. Raises busy. `release` must follow."""
        self._held = bytearray(first)
        self._source = source
        self._memory = memory
        self._holding = Holding(memory, owner)
        self._holding.resize(len(first))
        self._most = 0
        self._sink: BodySink | None = None
        self._waiter: DirectFuture[None] | None = None
        self.length = length
        self.is_wanted = False
        self.complete = False
        self.failed = False
        self._error: ServiceError | None = None
        """Until it is raised: it would know of whoever raised it, and the two could not be freed at once."""

    # -- from the connection --------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Raises what is wrong with so long a body."""
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
        self._wake()

    def fail(self, error: ServiceError) -> None:
        self.failed = True
        if self._sink is not None:
            self._sink.body_failed(error)
        else:
            self._error = error
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # -- for whoever takes it -------------------------------------------------------------------------------------

    async def collect(self, owner: str, most: int) -> bytes:
        """All of it, once it is there. Raises what went wrong with it, body_too_large, and busy."""
        self._check()
        if self.length > most or len(self._held) > most:
            raise too_large(most)
        self.release()
        self._holding, self._most = Holding(self._memory, owner), most
        # Who has a key is told at once that there is no room for it; what strangers promise is not believed.
        self._holding.resize(len(self._held) if owner.startswith(STRANGER) else max(self.length, len(self._held)))
        self.is_wanted = True
        self._waiter = DirectFuture(asyncio.get_running_loop())
        self._source.want_body()
        await self._waiter
        self._check()
        return bytes(self._held)

    def _check(self) -> None:
        if self._error is not None:
            raise self._pop_error()

    def _pop_error(self) -> ServiceError:
        """Whoever raises it must not have it in a variable, which the error would know of."""
        error, self._error = self._error, None
        assert error is not None
        return error

    def release(self) -> None:
        self._holding.resize(0)

    def flow_to(self, sink: BodySink) -> bytes:
        """What has come so far; the sink gets the rest, as it comes."""
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
