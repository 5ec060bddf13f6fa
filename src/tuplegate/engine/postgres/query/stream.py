"""Runs one statement for the port's `stream`: rows leave as the engine makes them, memory stays constant.

The server sends rows only when 8 kB of them are together or the statement ends. So what can be a cursor is one, inside
a block, and is fetched in portions whose size follows the engine's pace: one row at first, more while a portion takes
only milliseconds. The rest (INSERT … RETURNING, SHOW, EXPLAIN, CALL) is run plainly and read row by row as it comes.
A portion is fetched only when the reader has taken the one before: a slow reader slows the engine down, and its time
is not counted as the engine's.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter_ns

from psycopg.pq.abc import PGresult

from tuplegate.direct_future import yield_to_loop
from tuplegate.engine import port
from tuplegate.engine.libpq.connection import Command, ConnectionLost, CopyStarted, RowsTooWide
from tuplegate.engine.libpq.failures import check, find_error, is_internal
from tuplegate.engine.libpq.leftovers import WRITES, is_plain, read_text
from tuplegate.engine.libpq.parameters import describe_statement, write_params
from tuplegate.engine.libpq.result_size import size_of
from tuplegate.engine.libpq.rows import UNREADABLE, affected_rows, find_encoder
from tuplegate.engine.libpq.values import RowEncoder
from tuplegate.engine.postgres.pool import Member, Pool
from tuplegate.engine.postgres.query.execute import (
    CURSORS,
    allow_steps,
    as_reader,
    begin,
    changes_types,
    ended,
    find_room,
    lacks_disk,
    may_commit_lazily,
    may_write,
    too_wide,
    was_ended,
    what_lost_means,
    why_ended,
    works_in_steps,
)
from tuplegate.engine.postgres.query.measures import Measures
from tuplegate.engine.postgres.query.turns import pause_after
from tuplegate.engine.postgres.safety.sizes import DISK_LOW, Room, full

_PORTION_ROWS_MAX = 256
_PORTION_US = 10_000
"""A portion that takes longer is followed by a smaller one, so that rows keep leaving as they are made."""

_PORTION_BYTES = 2**20
"""A larger one is followed by a smaller one, as those who fetch it together hold it in memory."""

_BACKLOG_ROWS_MAX = 1000
_BACKLOG_BYTES_MAX = 4 * 2**20
_APART = (
    "Ask for parts of their values, or for rows that are much wider than those before them in a stream of their own."
)
_CURSOR = b"tuplegate"
_NOTICES_MAX = 100


@asynccontextmanager
async def open_stream(
    pool: Pool,
    member: Member,
    target: port.Target,
    statement: port.Statement,
    shape: port.Shape,
    clock: "EngineClock",
    measures: Measures,
) -> AsyncIterator["Stream"]:
    """The statement parsed, described and under way. The connection is given back when the block is left."""
    answered = broken = False
    plain = is_plain(statement.sql, statement.keyword)
    if not plain:
        pool.state.begin_doubt()
    try:
        stream = await _describe(pool, member, target, statement, shape, clock)
        stream.measures = measures
        yield stream
        answered = stream.finished
    except port.StatementFailed as failure:
        answered, broken = True, is_internal(failure)
        measures.conflicts += isinstance(failure, port.Conflict)
        raise
    finally:
        if broken:
            pool.retire(member)
        elif answered and not clock.timed_out:
            pool.give_back_unclean(member, plain=plain)
        else:
            pool.abandon(member)
        if not plain:
            pool.state.end_doubt()
        if changes_types(statement.keyword):
            pool.encoders.forget()


async def _describe(
    pool: Pool, member: Member, target: port.Target, statement: port.Statement, shape: port.Shape, clock: "EngineClock"
) -> "Stream":
    try:
        with clock:
            member.hide_kept()
            await pool.freshen(member)
            params = await write_params(pool, member, statement, clock, describe=True)
            if clock.timed_out:
                raise why_ended(clock)
            room = await find_room(pool, member, target, statement)
            target = as_reader(target, statement, room)
            described = await _declare(member, target, statement, params)
            kind: type[Stream] = _CursorStream
            if described is None:
                kind = _PlainStream
                described = await describe_statement(member, statement.sql.encode())
                _refuse_copy(statement)
            encoder = await find_encoder(pool, member, described, shape)
    except ConnectionLost as exc:
        raise port.EngineUnavailable("the connection to the engine was lost; nothing was applied") from exc
    except CopyStarted as exc:
        raise port.CopyRefused from exc
    except port.StatementFailed as exc:
        exc.exec_us = clock.elapsed_us
        if was_ended(exc, clock):
            raise ended(exc, clock) from exc
        raise
    return kind(pool, member, target, statement, params, encoder, clock, room)


async def _declare(
    member: Member, target: port.Target, statement: port.Statement, params: list[bytes | None] | None
) -> PGresult | None:
    """Opens the cursor and describes it; None where the statement cannot be one."""
    if statement.keyword not in CURSORS:
        return None
    declare = Command(b"DECLARE tuplegate NO SCROLL CURSOR FOR " + statement.sql.encode(), params)
    describe = Command(b"", portal=_CURSOR)
    results = await member.run(*begin(target.access, on_replica=target.on_replica), declare, describe)
    if find_error(results) is not None:
        check(await member.run(Command(b"ROLLBACK", begins=False)))
        return None
    return results[-1]


def _refuse_copy(statement: port.Statement) -> None:
    """Before the stream has begun it can still be refused as on any other route. Files the engine refuses itself."""
    if statement.keyword == "copy":
        text = statement.sql.lower()
        if "stdin" in text or "stdout" in text:
            raise port.CopyRefused


class EngineClock:
    """What one stream may take. Counts the time that the engine is being waited for, and cancels the statement when
    that is over its limit.

    It has no deadline on the loop's clock: the reader's time is not counted.
    """

    def __init__(
        self,
        pool: Pool,
        member: Member,
        target: port.Target,
        statement: port.Statement,
        bounds: port.Bounds,
        attempts_max: int,
    ) -> None:
        self._pool = pool
        self.member = member
        self.target = target
        self.statement = statement
        self.bounds = bounds
        self.attempts_max = attempts_max
        self.elapsed_us = 0
        self.timed_out = False
        self.stopping = False
        self.outlived = False
        self.crowding = False
        self.filling: int | None = None
        self.begun = 0
        self.deadline = float("inf")
        self._started = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def writes(self) -> bool:
        return may_write(self.target, self.statement, self._pool) and not works_in_steps(self.statement)

    @property
    def may_grow(self) -> bool:
        return self.target.may_write

    def __enter__(self) -> None:
        self._started = perf_counter_ns()
        left_s = max(self.bounds.timeout_ms / 1000 - self.elapsed_us / 1e6, 0)
        self._timer = asyncio.get_running_loop().call_later(left_s, self.expire)

    def __exit__(self, *exc: object) -> None:
        assert self._timer is not None
        self._timer.cancel()
        self.elapsed_us += (perf_counter_ns() - self._started) // 1000

    def expire(self) -> None:
        self.timed_out = True
        self._pool.expire(self.member)


class Stream:
    """What both ways have in common; `lines` gives blocks of rows and ends after the commit."""

    measures: Measures
    reached: bytes | None = None
    on_replica = False

    def __init__(
        self,
        pool: Pool,
        member: Member,
        target: port.Target,
        statement: port.Statement,
        params: list[bytes | None] | None,
        encoder: RowEncoder,
        clock: EngineClock,
        room: Room | None,
    ) -> None:
        self.columns = encoder.columns
        self.types = encoder.types
        self.row_count = 0
        self.affected_rows = 0
        self.notices: list[port.Notice] = []
        self.truncated = False
        self.finished = False
        self.clock = clock
        self._pool = pool
        self._member = member
        self._target = target
        self._statement = statement
        self._params = params
        self._encoder = encoder
        self._room = room
        self._taken = 0
        """Bytes that were encoded since the loop was given back."""

    @property
    def exec_us(self) -> int:
        return self.clock.elapsed_us

    async def lines(self) -> AsyncGenerator[bytes, None]:
        reading = read_text(self._statement.sql, self._statement.keyword)
        lazy = may_commit_lazily(self._target, reading, self._pool) or (
            self._target.may_write and self._statement.keyword in ("call", "do")
        )
        try:
            async for block in self._blocks():
                yield block
            with self.clock:
                if lazy:
                    await self._pool.flush_commits()
                if self._pool.demands and self.clock.writes:
                    await self._pool.see_confirmed()
        except RowsTooWide as exc:  # only a cursor's rows come together, and nothing is committed before their end
            raise too_wide(_APART, self.exec_us) from exc
        except ConnectionLost as exc:
            raise what_lost_means(exc, self._target.access, self.clock) from exc
        except CopyStarted as exc:
            raise port.CopyRefused from exc
        except port.StatementFailed as exc:
            exc.exec_us = self.exec_us
            if was_ended(exc, self.clock):
                raise ended(exc, self.clock) from exc
            if lacks_disk(exc, self._room):
                raise full(DISK_LOW) from exc
            raise
        self.finished = True

    async def _roll_back(self, attempt: int) -> None:
        """Before another try: no row has left yet, so a conflict can be retried unseen."""
        with self.clock:
            check(await self._member.run(Command(b"ROLLBACK", begins=False)))
            await asyncio.sleep(pause_after(attempt))
        self.measures.conflicts += 1
        self.measures.retries += 1
        self.measures.attempts += 1

    def _blocks(self) -> AsyncIterator[bytes]:
        raise NotImplementedError

    async def _encode(self, result: PGresult) -> bytes:
        """The rows as lines, up to the bound of the whole stream. The loop is given back between pieces of them."""
        if self.truncated:
            return b""
        count = result.ntuples
        most = self.clock.bounds.rows_max
        if most is not None and self.row_count + count > most:
            count = most - self.row_count
            self.truncated = True
        try:
            lines = await self._write_lines(result, count)
        except UnicodeDecodeError:
            self.truncated = True
            self.notices.append(UNREADABLE)
            return b""
        self.row_count += count
        return lines

    async def _write_lines(self, result: PGresult, count: int) -> bytes:
        self._taken += size_of(result)
        if self._taken <= self._encoder.at_once:
            return self._encoder.lines(result, count)
        self._taken = 0
        pieces = []
        for piece, _rows in self._encoder.in_pieces(result, count, lines=True):
            pieces.append(piece)
            await yield_to_loop()
        return b"".join(pieces)

    async def _commit(self) -> None:
        state = self._pool.state
        with self.clock:
            if self._room is not None:
                await self._room.check(self._member)
            looked_at = [state.ready_to_commit] if self._target.may_write and state.has_code else []
            results = await self._member.run(*looked_at, Command(b"COMMIT", begins=False))
        check(results)
        if results[-1].command_status != b"COMMIT":
            raise port.StatementFailed("the engine rolled the transaction back", sqlstate="40000")

    def _note(self) -> None:
        self.notices = (self.notices + self._member.take_notices())[:_NOTICES_MAX]


class _CursorStream(Stream):
    async def _blocks(self) -> AsyncIterator[bytes]:
        portion = 1
        attempts = 1
        while True:
            before = self.clock.elapsed_us
            try:
                rows = await self._fetch(portion)
            except port.Conflict:
                if self.row_count or attempts >= self.clock.attempts_max:
                    raise
                await self._roll_back(attempts)
                attempts += 1
                await self._declare_again()
                continue
            if rows.ntuples and (block := await self._encode(rows)):
                yield block
            if rows.ntuples < portion or self.truncated:
                break
            portion = next_portion(portion, self.clock.elapsed_us - before, size_of(rows))
        await self._commit()
        self._note()

    async def _fetch(self, portion: int) -> PGresult:
        with self.clock:
            fetch = Command(b"FETCH %d FROM tuplegate" % portion, begins=False, together=portion)
            results = await self._member.run(fetch)
        check(results)
        self._note()
        return results[0]

    async def _declare_again(self) -> None:
        with self.clock:
            if await _declare(self._member, self._target, self._statement, self._params) is None:
                raise port.Conflict("the statement could not be started again after a conflict", sqlstate="40001")


def next_portion(portion: int, took_us: int, size: int) -> int:
    """As many rows as the engine should make in a few milliseconds, at most twice as many as before, and not too large
    if they are like those of the last portion, which took so long and was of that size."""
    in_time = portion * _PORTION_US // max(took_us, 1)
    in_memory = portion * _PORTION_BYTES // max(size, 1)
    return max(1, min(portion * 2, in_time, in_memory, _PORTION_ROWS_MAX))


class _PlainStream(Stream):
    async def _blocks(self) -> AsyncIterator[bytes]:
        attempts = 1
        while True:
            try:
                async for block in self._once():
                    yield block
            except port.Conflict:
                if self.row_count or attempts >= self.clock.attempts_max:
                    raise
                await self._roll_back(attempts)
                attempts += 1
            else:
                return

    async def _once(self) -> AsyncIterator[bytes]:
        self._backlog: list[PGresult] = []
        self._backlog_rows = self._backlog_bytes = 0
        self._arrived = asyncio.Event()
        member = self._member
        at_once = self._statement.keyword in ("call", "do")
        runs_code = self._statement.keyword in WRITES and self._pool.state.has_lasting_code
        in_block = at_once or runs_code or self._room is not None
        command = Command(self._statement.sql.encode(), self._params, chunk_rows=0 if at_once else 1)
        commands = [*begin(self._target.access, on_replica=self._target.on_replica), command] if in_block else [command]
        if not in_block:
            await allow_steps(member, self._statement)
        answer = member.send(commands, self._take)
        answer.add_done_callback(lambda _: self._arrived.set())
        member.flush()
        while not answer.done() or self._backlog:
            with self.clock:
                await self._arrived.wait()
            self._arrived.clear()
            block = b"".join([await self._encode(chunk) for chunk in self._take_backlog()])
            if block:
                yield block
            member.resume()
        results = answer.result()
        check(results)
        self._note()
        last = results[-1]
        if in_block:
            await self._commit()
        if at_once and last.ntuples:
            yield await self._encode(last)
        self.affected_rows = affected_rows(last) or self._last_counted

    _last_counted = 0

    def _take(self, chunk: PGresult, _command: int) -> None:
        self._backlog.append(chunk)
        self._backlog_rows += chunk.ntuples
        self._backlog_bytes += size_of(chunk)
        self._last_counted = affected_rows(chunk) or self._last_counted
        self._arrived.set()
        if self._backlog_rows >= _BACKLOG_ROWS_MAX or self._backlog_bytes >= _BACKLOG_BYTES_MAX:
            self._member.pause()

    def _take_backlog(self) -> list[PGresult]:
        backlog, self._backlog = self._backlog, []
        self._backlog_rows = self._backlog_bytes = 0
        return backlog
