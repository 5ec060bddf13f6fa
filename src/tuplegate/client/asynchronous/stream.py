"""A streamed answer as an iterator over its rows, in constant memory."""

from collections import deque
from typing import Any

import httpx

from tuplegate.client.asynchronous.transport import AsyncTransport
from tuplegate.client.errors import StreamCut
from tuplegate.client.events import StreamedResult
from tuplegate.client.requests import Call
from tuplegate.client.rows import Row


class AsyncRowStream(StreamedResult):
    """Yields the rows as dicts. The first row, or `async with`, opens the stream.

    Rows are provisional until the last one: an error can still end the iteration. To leave early, use `async with`: it
    closes the connection, which cancels the statement. `columns` and `types` are known once the stream is open,
    `row_count`, `affected_rows`, `truncated` and `notices` after the last row.
    """

    def __init__(self, transport: AsyncTransport, call: Call, timeout_s: float) -> None:
        super().__init__(call.exact)
        self._transport = transport
        self._call = call
        self._timeout_s = timeout_s
        self._response: httpx.Response | None = None
        self._chunks: Any = None
        self._waiting: deque[tuple[Any, ...]] = deque()

    async def __aenter__(self) -> "AsyncRowStream":
        await self._open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def __aiter__(self) -> "AsyncRowStream":
        return self

    async def __anext__(self) -> Row:
        if not self._waiting:
            self._waiting.extend(await self.next_tuples())
        if not self._waiting:
            raise StopAsyncIteration
        return dict(zip(self.columns, self._waiting.popleft(), strict=True))

    async def next_tuples(self) -> list[tuple[Any, ...]]:
        """Return the rows that have arrived since the last call, at least one, as tuples; an empty list at the end."""
        await self._open()
        rows = list(self._waiting)
        self._waiting.clear()
        while not rows and not self._ended:
            rows = await self._read_events()
        if not rows and self._failure is not None:
            raise self._failure
        return rows

    async def aclose(self) -> None:
        """End the stream. A statement that is still running is cancelled."""
        self._ended = True
        if self._response is not None:
            response, self._response = self._response, None
            await response.aclose()

    async def _open(self) -> None:
        """Open the stream and read the columns."""
        if self._response is not None or self._ended:
            return
        self._response = await self._start()
        self._chunks = self._response.aiter_bytes()
        while not self._described and not self._ended:
            self._waiting.extend(await self._read_events())
        if self._failure is not None and not self._described:
            raise self._failure

    async def _start(self) -> httpx.Response:
        """Send the request, and return the head of its answer."""
        return await self._transport.open(self._call, self._transport.start_course(self._timeout_s))

    async def _read_events(self) -> list[tuple[Any, ...]]:
        """Read the next chunk: return its rows, and act on its other events."""
        try:
            chunk = await anext(self._chunks, b"")
        except httpx.TransportError as exc:
            await self.aclose()
            raise StreamCut("the connection was lost within the stream: its rows count for nothing") from exc
        if not chunk:
            await self.aclose()
            raise StreamCut("the stream ended without its last event: its rows count for nothing")
        request_id = None if self._response is None else self._response.headers.get("x-request-id")
        rows = self._take(chunk, request_id)
        if self._ended:
            self._transport.positions.note(self._position)
            await self._finish()
        return rows

    async def _finish(self) -> None:
        """Read the end of the answer, so that the connection can be used again."""
        try:
            async for _ in self._chunks:
                pass
        except httpx.TransportError:
            pass  # all that matters has been read
        await self.aclose()
