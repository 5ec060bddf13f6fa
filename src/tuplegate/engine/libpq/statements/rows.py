"""The rows of one result, collected within bounds as JSON, and the types that this needs."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from psycopg import pq
from psycopg.pq.abc import PGresult

from tuplegate.direct_future import yield_to_loop
from tuplegate.engine import port
from tuplegate.engine.libpq.connections.commands import Command
from tuplegate.engine.libpq.connections.server_errors import check
from tuplegate.engine.libpq.pools.frequent_statements import KeptStatement
from tuplegate.engine.libpq.pools.pool import Member
from tuplegate.engine.libpq.values.result_size import size_of
from tuplegate.engine.libpq.values.row_encoder import EncoderCache, RowEncoder
from tuplegate.engine.libpq.values.text_rows import read_text_rows
from tuplegate.engine.libpq.values.types import USED_MAX, read_types

_COMMAND: Final = int(pq.ExecStatus.COMMAND_OK)
_TUPLES: Final = int(pq.ExecStatus.TUPLES_OK)

# The tags of statements whose count the contract calls affected rows; SELECT counts only without columns.
_COUNTED: Final = (b"INSERT", b"UPDATE", b"DELETE", b"MERGE", b"COPY")

UNREADABLE: Final = port.Notice(
    "WARNING", "rows were left out: the statement changed client_encoding while it ran", "22021", None, None
)


class Budget:
    """The bytes that the rows of one answer may still take, and those that were encoded since the last return to the
    loop."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.taken = 0


# size: it carries the state of one result from each of its chunks to the next.
class RowCollector:
    """Takes the chunks of one result and keeps their JSON, up to the bounds. Rows beyond the bounds are read and
    dropped.

    A large chunk is encoded in pieces, one in each turn of the loop. The connection is not read meanwhile, so the
    segment ends when everything is encoded.
    """

    truncated = False
    _kept: KeptStatement | None = None
    _tag = b""
    _known: object = None
    _expected: RowEncoder | None = None
    _encoding: Iterator[None] | None = None
    _failure: Exception | None = None
    unreadable = False

    def __init__(
        self,
        encoders: EncoderCache,
        member: Member,
        shape: port.Shape,
        bounds: port.Bounds,
        encoder: RowEncoder | None = None,
        budget: Budget | None = None,
    ) -> None:
        self._encoders = encoders
        self._member = member
        self._shape = shape
        self._rows_left = bounds.rows_max
        self._budget = budget or Budget(bounds.bytes_max)
        self._unread_bytes = 0
        self._encoder = encoder
        self._parts: list[bytes | memoryview] = []
        self._count = 0
        self._counted = 0
        self._unread: list[PGresult] = []

    def expect(self, kept: KeptStatement) -> None:
        """Prepare for the rows of a statement that may have run before."""
        self._kept = kept
        self._known = self._encoders.known
        self._expected = kept.find_encoder(self._known, self._shape)

    def take(self, chunk: PGresult, _command: int = 0) -> None:
        tag = chunk.command_status
        if tag:
            self._counted = count_affected_rows(chunk)
            self._tag = tag
        if self.truncated:
            return
        if self._encoder is None and not self._unread:
            self._encoder = self._find_encoder(chunk)
        if self._encoder is None:
            self._keep_unread(chunk)
            return
        budget = self._budget
        budget.taken += size_of(chunk)
        if budget.taken > self._encoder.at_once:
            budget.taken = 0
            self._encoding = self._encode_in_pieces(self._encoder, chunk)
            self._member.pause()
            asyncio.get_running_loop().call_soon(self._encode_on)
            return
        try:
            self._encode(self._encoder, chunk)
        except UnicodeDecodeError:
            self._leave_out()

    def _find_encoder(self, result: PGresult) -> RowEncoder | None:
        """Return the encoder of an earlier run, unless a described table was changed since: a prepared statement still
        reads it. None while a type is unknown."""
        known = self._expected
        if known is not None and known.describes(result):
            return known
        return self._encoders.find(result, self._shape)

    def _leave_out(self) -> None:
        """Drop the rows: a function has changed client_encoding, so they cannot be read. The statement's effects
        stay."""
        self.truncated = True
        self.unreadable = True

    def _encode_on(self) -> None:
        """Encode one more piece, unless the connection was given up."""
        assert self._encoding is not None, "it is called until there is no more"
        try:
            if not self._member.given_up:
                next(self._encoding)
                asyncio.get_running_loop().call_soon(self._encode_on)
                return
        except StopIteration:
            pass
        except Exception as exc:  # noqa: BLE001 - it is raised where the result is wanted
            self._failure = exc
        self._encoding = None
        self._member.resume()

    def _keep_unread(self, chunk: PGresult) -> None:
        """Store rows with an unknown type of the tenant's own: the server can be asked only when the statement is
        done."""
        size = size_of(chunk)
        self._unread_bytes += size
        if self._unread_bytes > self._budget.left and self._unread:
            self.truncated = True
        else:
            self._unread.append(chunk)
            self._member.collected += size

    def _encode(self, encoder: RowEncoder, chunk: PGresult) -> None:
        if self._rows_left is not None:
            if chunk.ntuples > self._rows_left:
                self.truncated = True
            if self._rows_left == 0:
                return
        part = encoder.encode_array(chunk, self._rows_left)
        count = chunk.ntuples if self._rows_left is None else min(chunk.ntuples, self._rows_left)
        if len(part) > self._budget.left:
            part, count = self._cut(encoder, chunk, 0, count)
            self.truncated = True
        self._add(part, count)

    def _cut(self, encoder: RowEncoder, chunk: PGresult, first: int, end: int) -> tuple[bytes | memoryview, int]:
        """Return as many rows of the chunk as still fit, from `first` up to `end`, and their number."""
        low, high = first, end
        while low < high:
            middle = (low + high + 1) // 2
            fits = len(encoder.encode_array(chunk, middle, first)) <= self._budget.left
            low, high = (middle, high) if fits else (low, middle - 1)
        return (encoder.encode_array(chunk, low, first) if low > first else b""), low - first

    def _encode_in_pieces(self, encoder: RowEncoder, chunk: PGresult) -> Iterator[None]:
        """Encode as `_encode` does, with a stop after each piece of work. Rows beyond the bounds are not encoded."""
        if self._rows_left is not None and chunk.ntuples > self._rows_left:
            self.truncated = True
        try:
            yield from self._pieces(encoder, chunk)
        except UnicodeDecodeError:
            self._leave_out()

    def _pieces(self, encoder: RowEncoder, chunk: PGresult) -> Iterator[None]:
        pieces: list[bytes | memoryview] = []
        size = row = 0
        for piece, rows in encoder.encode_in_pieces(chunk, self._rows_left, lines=False):
            pieces.append(piece)
            size += len(piece)
            if size > self._budget.left:
                self.truncated = True
                if rows > 1:
                    self._add(*self._cut(encoder, chunk, row, row + rows))
                return
            if rows:
                self._add(piece if len(pieces) == 1 else b"".join(pieces), rows)
                pieces, size, row = [], 0, row + rows
            yield

    def _add(self, part: bytes | memoryview, count: int) -> None:
        self._count += count
        self._budget.left -= len(part)
        self._member.collected += len(part)
        if self._rows_left is not None:
            self._rows_left -= count
        if part:
            self._parts.append(part)

    async def learn(self, member: Member, last: PGresult) -> port.Result:
        """Ask for the types that were unknown while the rows arrived, encode the remaining rows, and return the
        result."""
        while self._encoding is not None:
            await yield_to_loop()
        described = self._unread[0] if self._unread else last
        self._encoder = await find_encoder(self._encoders, member, described, self._shape)
        waiting, self._unread = self._unread, []
        for chunk in waiting:
            for _ in self._encode_in_pieces(self._encoder, chunk):
                await yield_to_loop()
        result = self.finish(last)
        assert result is not None, "the types were asked for"
        return result

    def finish(self, last: PGresult) -> port.Result | None:
        """Return the result, once the engine is done; None if `learn` must be called first. `last` closes the
        result."""
        if not last.nfields and last.status != _TUPLES:
            bare = port.Result(b"[]", b"[]", b"[]", count_affected_rows(last))
            bare.tag = last.command_status or b""
            return bare
        if self._encoding is not None:
            return None
        if self._failure is not None:
            raise self._failure
        encoder = self._encoder or (None if self._unread else self._find_encoder(last))
        if encoder is None:
            return None
        if self._kept is not None:
            self._kept.keep(encoder, self._known)
        rows = _join_rows(self._parts)
        self._parts = []
        # The command tag is in the last chunk, or behind that chunk if it was full.
        tag = last.command_status
        counted = count_affected_rows(last) if tag else self._counted
        result = port.Result(encoder.columns, encoder.types, rows, counted, self._count, self.truncated)
        result.tag = tag or self._tag
        if self.unreadable:
            result.notices.append(UNREADABLE)
        return result


def _join_rows(parts: list[bytes | memoryview]) -> bytes:
    """Return one JSON array, joined in one copy: rows may be tens of megabytes."""
    if len(parts) < 2:
        return b"[%b]" % b"".join(parts)
    parts[0] = b"[" + parts[0]
    parts[-1] = bytes(parts[-1]) + b"]"
    return b",".join(parts)


async def find_encoder(encoders: EncoderCache, member: Member, described: PGresult, shape: port.Shape) -> RowEncoder:
    """Return the encoder for the columns of `described`; ask the server for types that were not seen before."""
    encoder = encoders.find(described, shape)
    if encoder is None:
        await learn_types(encoders, member, [described.ftype(column) for column in range(described.nfields)])
        encoder = encoders.find(described, shape)
    assert encoder is not None, "every type that was asked for is known, if only as unknown"
    return encoder


async def learn_types(encoders: EncoderCache, member: Member, oids: Sequence[int]) -> None:
    """Ask the server, in one question, for those of the types that are unknown, and for the types that they consist
    of."""
    types = encoders.types
    missing = types.find_missing(oids)
    if not missing:
        return
    wanted = "{" + ",".join(map(str, missing)) + "}"
    most = str(len(missing) + USED_MAX)
    results = await member.run(Command(types.question, [wanted.encode(), most.encode()]))
    check(results)
    types.add(read_types(read_text_rows(results[0])), missing)
    types.add({}, types.find_missing(oids))  # what is further away than that stays unknown


def join_results(results: Sequence[port.Result]) -> port.Result:
    """Return the results of one statement that was run several times as one. There is at least one of them."""
    last = results[-1]
    rows = b",".join(result.rows[1:-1] for result in results if result.row_count)
    joined = port.Result(
        last.columns,
        last.types,
        b"[%b]" % rows,
        sum(result.affected_rows for result in results),
        sum(result.row_count for result in results),
        any(result.truncated for result in results),
    )
    joined.tag = last.tag
    if any(result.notices for result in results):
        joined.notices.append(UNREADABLE)
    return joined


def count_affected_rows(result: PGresult) -> int:
    """Return the count of the command tag, if the contract calls it affected rows."""
    tag = result.command_status or b""
    counts = result.status == _COMMAND if tag[:6] == b"SELECT" else tag.startswith(_COUNTED)
    return result.command_tuples or 0 if counts else 0
