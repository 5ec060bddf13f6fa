"""Runs one statement for the port's `stream`: sends rows on as the engine makes them, in constant memory.

The server sends rows only when it has 8 kB of them or the statement ends. So if a statement can be a cursor, it becomes
one, inside a block, and is fetched in portions. Their size follows the engine's pace: one row at first, more while a
portion takes only milliseconds. Other statements (INSERT … RETURNING, SHOW, EXPLAIN, CALL) run plainly, and each row is
read as it comes. A portion is fetched only when the reader has taken the one before: a slow reader slows the engine
down, and the reader's time does not count as the engine's.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from psycopg.pq.abc import PGresult

from tuplegate.engine import port
from tuplegate.engine.libpq.connections.commands import ROLLBACK, Command, ConnectionLost, CopyStarted, RowsTooWide
from tuplegate.engine.libpq.connections.server_errors import STREAM_APART, check, explain_width, find_error, is_internal
from tuplegate.engine.libpq.pools.measures import Measures
from tuplegate.engine.libpq.pools.turns import choose_pause_s
from tuplegate.engine.libpq.statements.arriving_rows import ArrivingRows, StreamedRows
from tuplegate.engine.libpq.statements.parameters import describe_statement, write_params
from tuplegate.engine.libpq.statements.rows import UNREADABLE, find_encoder
from tuplegate.engine.libpq.values.result_size import size_of
from tuplegate.engine.libpq.values.row_encoder import RowEncoder
from tuplegate.engine.postgres.query.stream_run import StreamRun
from tuplegate.engine.postgres.rules.blocks import COMMIT_BLINDLY, NUMBER, WAIT, open_for
from tuplegate.engine.postgres.rules.statements import (
    allow_steps,
    find_size_check,
    lacks_disk,
    may_commit_lazily,
    must_only_read,
)
from tuplegate.engine.postgres.safety.sizes import DISK_LOW, SizeCheck
from tuplegate.engine.run.ends import explain_full
from tuplegate.engine.run.steps import list_commands
from tuplegate.engine.sql.facts import refuse_copy

_PORTION_ROWS_MAX = 256
_PORTION_US = 10_000
"""A portion that takes longer is followed by a smaller one, so that rows keep leaving as they are made."""

_PORTION_BYTES = 2**20
"""A portion with more bytes is followed by a smaller one, since all concurrent streams hold their portions in
memory."""

_CURSOR = b"tuplegate"
_SAVE = Command(b"SAVEPOINT tuplegate", begins=False)
_GO_BACK = Command(b"ROLLBACK TO tuplegate", begins=False)
_RELEASE = Command(b"RELEASE tuplegate", begins=False)
_CLOSE = Command(b"CLOSE tuplegate", begins=False)
_NOTICES_MAX = 100


@asynccontextmanager
async def open_stream(run: StreamRun, measures: Measures, attempts_max: int) -> AsyncIterator["Stream"]:
    """Parse and describe the statement, and begin it. The connection is given back when the block is left."""
    pool, member, plain = run.pool, run.member, run.facts.plain
    answered = broken = False
    if not plain:
        pool.state.begin_doubt()
    try:
        stream = await begin_stream(run)
        stream.measures, stream.attempts_max = measures, attempts_max
        yield stream
        answered = stream.finished
    except port.StatementFailed as failure:
        answered, broken = True, is_internal(failure)
        measures.conflicts += isinstance(failure, port.Conflict)
        raise
    finally:
        if broken:
            pool.retire(member)
        elif answered and run.ended is None:
            pool.give_back_unclean(member, plain=plain)
        else:
            pool.abandon(member)
        if not plain:
            pool.state.end_doubt()
        if run.facts.changes_types:
            pool.encoders.forget()


async def begin_stream(run: StreamRun) -> "Stream":
    """Parse and describe the statement, and declare its cursor if it can be one."""
    pool, member, statement = run.pool, run.member, run.statement
    try:
        with run:
            if not run.is_inside:
                member.hide_kept()
                await pool.freshen(member)
            size_check = None if run.is_inside else await find_size_check(pool, member, run.target, run.facts)
            if statement.only_reads or must_only_read(run.facts, size_check):
                run.access = port.Access.READ
            described = await _declare(run)
            kind: type[Stream] = _CursorStream
            if described is None:
                kind = _PlainStream
                await _write_params(run)  # fails here if it fails: before anything was answered
                described = await describe_statement(member, statement.sql.encode())
                refuse_copy(statement)
            encoder = await find_encoder(pool.encoders, member, described, statement.shape)
    except ConnectionLost as exc:
        raise port.EngineUnavailable("the connection to the engine was lost; nothing was applied") from exc
    except CopyStarted as exc:
        raise port.CopyRefused from exc
    except port.StatementFailed as exc:
        exc.exec_us = run.elapsed_us
        if run.was_cancelled(exc):
            raise run.explain_cancel(exc) from exc
        raise
    return kind(run, encoder, size_check)


async def _write_params(run: StreamRun) -> list[bytes | None] | None:
    params = await write_params(run.pool.encoders, run.member, run.statement, run, describe=True)
    run.check_ended()
    return params


async def _write_params_in_block(run: StreamRun) -> list[bytes | None] | None:
    """Open a block and write the parameters in it, so that the described tables stay locked. The first question goes
    together with BEGIN."""
    opening = open_for(run.access, on_replica=run.target.on_replica)
    begun = run.member.send(list_commands(opening))
    params = await _write_params(run)
    check(await begun)
    return params


async def _declare(run: StreamRun) -> PGresult | None:
    """Open the cursor and describe it. Return None if the statement cannot be one."""
    if not run.facts.is_query:
        return None
    params = await (_write_params(run) if run.is_inside else _write_params_in_block(run))
    declare = Command(b"DECLARE tuplegate NO SCROLL CURSOR FOR " + run.statement.sql.encode(), params)
    describe = Command(b"", portal=_CURSOR)
    if run.is_inside:
        before, after, back = [_SAVE], [_RELEASE], [_GO_BACK, _RELEASE]
    else:
        before, after, back = [], [], [ROLLBACK]
    results = await run.member.run(*before, declare, *after, describe)
    if find_error(results) is not None:
        check(await run.member.run(*back))
        return None
    return results[-1]


class Stream(StreamedRows):
    """The common part of both kinds of streams. `lines` yields blocks of rows and ends after the commit."""

    measures: Measures
    attempts_max = 1

    def __init__(self, run: StreamRun, encoder: RowEncoder, size_check: SizeCheck | None) -> None:
        super().__init__(encoder, run.bounds.rows_max)
        self._run = run
        self._member = run.member
        self._size_check = size_check
        self._must_confirm = False
        """Whether the statement may have written; then its commit must be waited for."""

    @property
    def exec_us(self) -> int:
        return self._run.elapsed_us

    async def lines(self) -> AsyncGenerator[bytes, None]:
        run, facts = self._run, self._run.facts
        lazy = (
            run.access is port.Access.WRITE
            and not run.is_inside
            and (may_commit_lazily(run.target, facts, run.pool) or facts.keyword in ("call", "do"))
        )
        replicated = run.pool.demands_standby and run.writes and not run.is_inside
        self._must_confirm = lazy or replicated
        try:
            async for block in self._blocks():
                yield block
            if self._must_confirm:
                with run:
                    until = asyncio.get_running_loop().time() + run.left_s
                    if lazy:
                        await run.pool.flush_commits(run.member, until)
                    if replicated:
                        await run.pool.see_confirmed(run.member, until)
        except RowsTooWide as exc:  # only a cursor's rows come together, and nothing is committed before their end
            raise explain_width(STREAM_APART, self.exec_us) from exc
        except ConnectionLost as exc:
            raise run.explain_loss(exc) from exc
        except CopyStarted as exc:
            raise port.CopyRefused from exc
        except port.StatementFailed as exc:
            exc.exec_us = self.exec_us
            if run.was_cancelled(exc):
                raise run.explain_cancel(exc) from exc
            if lacks_disk(exc, self._size_check):
                raise explain_full(DISK_LOW) from exc
            raise
        self.finished = True

    async def _blocks(self) -> AsyncIterator[bytes]:
        """Yield the blocks of `_once`. A conflict is retried invisibly as long as no row has left."""
        attempt = 1
        while True:
            try:
                async for block in self._once(attempt):
                    yield block
            except port.Conflict:
                if self.row_count or attempt >= self.attempts_max:
                    raise
            else:
                return
            with self._run:
                check(await self._member.run(ROLLBACK))
                await asyncio.sleep(choose_pause_s(attempt))
            attempt += 1
            self._run.begun = self._member.meter.begun
            self.measures.conflicts += 1
            self.measures.retries += 1
            self.measures.attempts += 1

    def _once(self, attempt: int) -> AsyncIterator[bytes]:
        """Run the statement to its end, and commit it."""
        raise NotImplementedError

    async def close(self) -> None:
        """Leave nothing open in a transaction that continues."""

    async def _encode(self, result: PGresult) -> bytes:
        try:
            return await self._writer.write(result)
        except UnicodeDecodeError:
            self.notices.append(UNREADABLE)
            return b""

    async def _commit(self) -> None:
        with self._run:
            if self._size_check is not None:
                await self._size_check.check(self._member)
            waits = self._run.may_grow and self._run.pool.state.has_code
            closing = [NUMBER, WAIT, COMMIT_BLINDLY] if waits else [NUMBER, COMMIT_BLINDLY]
            results = await self._member.run(*list_commands(closing))
        check(results)
        self._must_confirm = self._must_confirm and results[0].get_value(0, 0) is not None
        if results[-1].command_status != b"COMMIT":
            raise port.StatementFailed("the engine rolled the transaction back", sqlstate="40000")

    def _note(self) -> None:
        self.notices = (self.notices + self._member.take_notices())[:_NOTICES_MAX]


class _CursorStream(Stream):
    async def _once(self, attempt: int) -> AsyncIterator[bytes]:
        if attempt > 1:
            await self._declare_again()
        portion = 1
        while True:
            before = self._run.elapsed_us
            rows = await self._fetch(portion)
            if rows.ntuples and (block := await self._encode(rows)):
                yield block
            if rows.ntuples < portion or self._writer.truncated:
                break
            portion = choose_portion_rows(portion, self._run.elapsed_us - before, size_of(rows))
        if self._run.is_inside:
            await self.close()
        else:
            await self._commit()
        self._note()

    async def close(self) -> None:
        """Close the cursor, inside a transaction that continues."""
        with self._run:
            check(await self._member.run(_CLOSE))

    async def _fetch(self, portion: int) -> PGresult:
        self._run.check_ended()  # the cancel may have come to the engine between two portions
        with self._run:
            fetch = Command(b"FETCH %d FROM tuplegate" % portion, begins=False, together=portion)
            results = await self._member.run(fetch)
        check(results)
        self._note()
        return results[0]

    async def _declare_again(self) -> None:
        with self._run:
            if await _declare(self._run) is None:
                raise port.Conflict("the statement could not be started again after a conflict", sqlstate="40001")


def choose_portion_rows(portion: int, took_us: int, size: int) -> int:
    """Return the number of rows for the next portion: as many as the engine should make in a few milliseconds, at most
    twice as many as before, and not too large, judged by the last portion's time and size."""
    in_time = portion * _PORTION_US // max(took_us, 1)
    in_memory = portion * _PORTION_BYTES // max(size, 1)
    return max(1, min(portion * 2, in_time, in_memory, _PORTION_ROWS_MAX))


class _PlainStream(Stream):
    async def _once(self, attempt: int) -> AsyncIterator[bytes]:
        member, run, statement = self._member, self._run, self._run.statement
        at_once = statement.keyword in ("call", "do")
        runs_code = run.facts.is_change and run.pool.state.has_lasting_code
        needs_block = at_once or runs_code or self._size_check is not None or bool(statement.params)
        in_block = needs_block and not run.is_inside
        with run:
            params: list[bytes | None] | None = None
            if in_block:
                params = await _write_params_in_block(run)
            elif run.is_inside:
                params = await _write_params(run)
            else:
                await allow_steps(member, run.facts)
        command = Command(statement.sql.encode(), params, chunk_rows=0 if at_once else 1)
        arriving = ArrivingRows(member)
        async for chunks in arriving.read([command], run):
            if block := b"".join([await self._encode(chunk) for chunk in chunks]):
                yield block
        self._note()
        last = arriving.results[-1]
        if in_block:
            await self._commit()
        if at_once and last.ntuples:
            yield await self._encode(last)
        self.affected_rows = arriving.affected_rows
