"""Rows of a stream as they arrive from the engine: buffers them up to a bound, and writes them as lines.

If the reader is too slow, the connection is not read any further, and so the engine waits.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from typing import Final

from psycopg.pq.abc import PGresult

from tuplegate.direct_future import yield_to_loop
from tuplegate.engine.libpq.connections.commands import Command
from tuplegate.engine.libpq.connections.server_errors import check
from tuplegate.engine.libpq.pools.pool import Member
from tuplegate.engine.libpq.statements.rows import count_affected_rows
from tuplegate.engine.libpq.values.result_size import size_of
from tuplegate.engine.libpq.values.row_encoder import RowEncoder
from tuplegate.engine.port import Notice, StreamSums

_ROWS_MAX: Final = 1000
_BYTES_MAX: Final = 4 * 2**20


class ArrivingRows:
    """The rows of one statement that were not read yet. `results` are the closing answers, once all have arrived."""

    def __init__(self, member: Member) -> None:
        self.results: list[PGresult] = []
        self.affected_rows = 0
        self._member = member
        self._chunks: list[PGresult] = []
        self._rows = self._bytes = 0
        self._arrived = asyncio.Event()
        self._is_left = False

    async def read(
        self, commands: Sequence[Command], clock: AbstractContextManager[None]
    ) -> AsyncIterator[list[PGresult]]:
        """Run the commands and yield their rows as they arrive. Only the waiting is inside `clock`."""
        answer = self._member.send(commands, self._take)
        answer.add_done_callback(lambda _: self._arrived.set())
        self._member.flush()
        while not answer.done() or self._chunks:
            with clock:
                await self._arrived.wait()
            self._arrived.clear()
            yield self._take_all()
            self._member.resume()
        self.results = answer.result()
        check(self.results)
        self.affected_rows = count_affected_rows(self.results[-1]) or self.affected_rows

    def leave(self) -> None:
        """Take no more rows, since nobody reads them."""
        self._is_left = True
        self._take_all()
        self._member.resume()

    def _take(self, chunk: PGresult, _command: int) -> None:
        if self._is_left:
            return
        self._chunks.append(chunk)
        self._rows += chunk.ntuples
        self._bytes += size_of(chunk)
        self.affected_rows = count_affected_rows(chunk) or self.affected_rows
        self._arrived.set()
        if self._rows >= _ROWS_MAX or self._bytes >= _BYTES_MAX:
            self._member.pause()

    def _take_all(self) -> list[PGresult]:
        chunks, self._chunks = self._chunks, []
        self._rows = self._bytes = 0
        return chunks


class StreamedRows:
    """The part of the port's `RowStream` that is the same for every engine."""

    reached: bytes | None = None
    on_replica = False

    def __init__(self, encoder: RowEncoder, rows_max: int | None) -> None:
        self.columns = encoder.columns
        self.types = encoder.types
        self.notices: list[Notice] = []
        self.affected_rows = 0
        self.finished = False
        self._writer = LineWriter(encoder, rows_max)

    @property
    def row_count(self) -> int:
        return self._writer.row_count

    @property
    def exec_us(self) -> int:
        raise NotImplementedError

    def sum_up(self) -> StreamSums:
        writer = self._writer
        return StreamSums(writer.row_count, self.affected_rows, writer.truncated, self.notices, self.exec_us)


class LineWriter:
    """Writes rows as lines, up to the bound of the whole stream."""

    def __init__(self, encoder: RowEncoder, rows_max: int | None) -> None:
        self.row_count = 0
        self.truncated = False
        self._encoder = encoder
        self._rows_max = rows_max
        self._taken = 0
        """Bytes encoded since the last return to the event loop."""

    async def write(self, result: PGresult) -> bytes:
        """Write the rows; return to the event loop between pieces. After a UnicodeDecodeError, write no more."""
        if self.truncated:
            return b""
        count = result.ntuples
        if self._rows_max is not None and self.row_count + count > self._rows_max:
            count = self._rows_max - self.row_count
            self.truncated = True
        try:
            lines = await self._encode(result, count)
        except UnicodeDecodeError:
            self.truncated = True
            raise
        self.row_count += count
        return lines

    async def _encode(self, result: PGresult, count: int) -> bytes:
        self._taken += size_of(result)
        if self._taken <= self._encoder.at_once:
            return self._encoder.encode_lines(result, count)
        self._taken = 0
        pieces = []
        for piece, _rows in self._encoder.encode_in_pieces(result, count, lines=True):
            pieces.append(piece)
            await yield_to_loop()
        return b"".join(pieces)
