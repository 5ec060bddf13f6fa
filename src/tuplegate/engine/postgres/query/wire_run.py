"""A client that speaks PostgreSQL's protocol itself, on a connection of its own with its key's role.

libpq opens the connection as usual, and the server is verified. Then the service takes over the socket, and libpq only
cancels and closes. The client's work is a `Run`: the same watches end it for its time and its room. A cancel has no
effect while the client holds a transaction open and nothing runs; then its next statement fails, or the connection is
ended. Once the connection is to end, nothing more is passed on to the engine.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from enum import Enum
from typing import Any, Final

import structlog

from tuplegate.engine import port
from tuplegate.engine.libpq.connections.link import Link
from tuplegate.engine.libpq.pools.pool import Member
from tuplegate.engine.port.wire import WireState
from tuplegate.engine.postgres.pools.pool import Pool
from tuplegate.engine.postgres.safety.guard import SerializableGuard
from tuplegate.engine.postgres.service.settings import EngineSettings
from tuplegate.engine.run.ends import Why, explain_age, explain_full
from tuplegate.engine.run.run import Run, Running

_log: Final = structlog.get_logger()

_CANCELLED: Final = "57014"
_ENDED: Final = ("57P01", _CANCELLED)
_GRACE_S: Final = 5.0
_TICK_S: Final = 0.05
_JUDGED_EVERY_S: Final = 0.25

_WAITS_FOR_CLIENT: Final = (
    "SELECT 1 FROM pg_catalog.pg_stat_activity WHERE pid = $1::pg_catalog.int4"
    " AND (state IN ('idle', 'idle in transaction', 'idle in transaction (aborted)') OR wait_event_type = 'Client')"
)
_HAS_READ_SERIALIZABLY: Final = (
    "SELECT 1 FROM pg_catalog.pg_locks WHERE pid = $1::pg_catalog.int4 AND mode = 'SIReadLock' LIMIT 1"
)
"""Returns a row if an open transaction is serializable and has read anything: only then can it be part of a write
skew."""

_FULL_HINT: Final = (
    "Until there is room, connections with a key that may write run nothing here. Make room with POST /v1/query; a key"
    " that may only read goes on."
)

Fetch = Callable[..., Awaitable[list[tuple[str | None, ...]]]]


class _Stage(Enum):
    """The progress of the service in ending a statement or a connection of the client."""

    NOTHING = "it ends nothing"
    CANCELLING = "it cancels a statement"
    CLOSING = "it ends the connection: nothing more is passed on to the engine"


_TRANSITIONS: Final = {
    _Stage.NOTHING: {_Stage.CANCELLING, _Stage.CLOSING},
    _Stage.CANCELLING: {_Stage.NOTHING, _Stage.CLOSING},
    _Stage.CLOSING: {_Stage.CLOSING},
}


class _End:
    """The end that the service brings about. `why` is kept for the answer that follows from it."""

    def __init__(self) -> None:
        self.stage = _Stage.NOTHING
        self.why: port.StatementFailed | None = None

    def reach(self, stage: _Stage) -> None:
        assert stage in _TRANSITIONS[self.stage], f"nothing goes from {self.stage} to {stage}"
        self.stage = stage

    @property
    def is_closing(self) -> bool:
        return self.stage is _Stage.CLOSING


class _Age:
    """The age of a transaction, which may live until `ends`. `outlived`: the engine cannot check it any more."""

    def __init__(self, life_s: float) -> None:
        self.life_s = life_s
        self.ends = math.inf
        self.outlived = False
        self._judged_at = -math.inf

    def begin(self, now: float) -> None:
        self.ends = now + self.life_s
        self.outlived = False

    def end(self) -> None:
        self.ends = math.inf
        self.outlived = False

    def must_judge(self, now: float) -> bool:
        """Return whether it is time to see whether it is outlived, which is then done."""
        if now - self._judged_at <= _JUDGED_EVERY_S:
            return False
        self._judged_at = now
        return True


class WireRun(Run[Pool]):
    """The work of a client on its own connection: among the runs while a transaction is open or a statement runs."""

    def __init__(
        self,
        pool: Pool,
        target: port.Target,
        bounds: port.Bounds,
        member: Member,
        link: Link,
        running: Running,
        guard: SerializableGuard,
        fetch: Fetch,
        settings: EngineSettings,
    ) -> None:
        super().__init__(pool, target, bounds, math.inf)
        self.begin(member)
        self._link = link
        self._running = running
        self._guard = guard
        self._fetch = fetch
        self._state = WireState.IDLE
        self._started = 0
        """The number of times that a statement has begun to run."""
        self._age = _Age(settings.transaction_life_s)
        self._end = _End()
        self._tasks: set[asyncio.Task[None]] = set()

    # -- the port -----------------------------------------------------------------------------------------------

    def read(self) -> Coroutine[Any, Any, bytes]:
        return self._link.read()

    async def write(self, data: bytes) -> None:
        if not self._end.is_closing:
            await self._link.write(data)

    async def admit(self, begins: int) -> None:
        self.pool.check()
        if self._end.is_closing and self._end.why is not None:
            raise port.StatementFailed(self._end.why.message, sqlstate="57P01")
        if self._age.outlived:
            raise explain_age()
        if self.target.may_write:
            self.pool.check_commits()
            full_at = self.pool.state.full_at
            if full_at is not None:
                raise explain_full(full_at, _FULL_HINT)
        if self._guard.must_wait:
            await self._guard.wait(asyncio.get_running_loop().time() + self.bounds.timeout_ms / 1000)
        self._guard.count(begins)

    def bound(self, bounds: port.Bounds) -> None:
        if self._state is not WireState.RUNNING:
            self.bounds = bounds
        elif bounds.timeout_ms > self.bounds.timeout_ms:
            self.bounds = bounds
            self._give_time()

    def count_begun(self, begins: int) -> None:
        self._guard.count(begins)

    def note(self, state: WireState) -> None:
        was, self._state = self._state, state
        if state is WireState.IDLE:
            self._leave()
        elif self not in self._running.runs:
            self._enter()
        if state is WireState.RUNNING:
            if was is not WireState.RUNNING:
                self._started += 1
                self._give_time()
        else:
            self.deadline = self._age.ends
            if self._end.stage is _Stage.NOTHING:
                self._end.why = None

    def explain(self, sqlstate: str) -> port.StatementFailed | None:
        return self._end.why if sqlstate in _ENDED else None

    async def cancel(self) -> None:
        async with asyncio.timeout(_GRACE_S):
            if not await self._waits_for_standby():
                await self.member.cancel()

    # -- for the watches ----------------------------------------------------------------------------------------

    @property
    def writes(self) -> bool:
        return self.target.may_write and not self._age.outlived

    @property
    def may_grow(self) -> bool:
        return self.target.may_write

    @property
    def keywords(self) -> list[str]:
        """Return the word of a statement that grows the database, or of a read: wire statements are not inspected."""
        return ["insert"] if self.target.may_write else ["select"]

    def end(self, why: Why, full_at: int = 0) -> None:
        if why is Why.OUTLIVED:
            if self._age.must_judge(asyncio.get_running_loop().time()):
                self._spawn(self._judge_age())
            return
        if why is Why.TIME and asyncio.get_running_loop().time() >= self._age.ends:
            self.ended = why
            self._spawn(self._end_life())
            return
        if why is Why.STOPPING and self._state is not WireState.RUNNING:
            return
        if self.ended is None:
            self.ended = why
            self.full_at = full_at
            self._spawn(self._end_running(why))

    async def _end_life(self) -> None:
        if await self._waits_for_standby():
            self.ended = None
            self._age.ends = self.deadline = asyncio.get_running_loop().time() + _GRACE_S
        elif self._state is WireState.IDLE:
            self.ended = None  # it has ended by itself
        else:
            self.end_for(f"the transaction was open for longer than {self._age.life_s:g} s")

    async def _judge_age(self) -> None:
        """Mark the transaction if the engine cannot check it any more: it fails with its next statement."""
        try:
            has_read = bool(await self._fetch(_HAS_READ_SERIALIZABLY, str(self.member.backend)))
        except port.EngineFailure:
            has_read = True
        if self._state is WireState.IDLE:
            return
        if not has_read:
            self.begun = self.member.meter.begun  # nothing that it has read can be missing
            return
        self._age.outlived = True
        self._guard.ended += 1
        if self._state is WireState.RUNNING:
            self._end.why = explain_age()
            await self._cancel_quietly()

    async def _end_running(self, why: Why) -> None:
        """Cancel the running statement; end the server process if that does not help, or nothing runs."""
        if why is Why.TIME and await self._waits_for_client():
            # Neither the time of a slow reader counts, nor that of a client that copies rows to the engine.
            self.ended = None
            self._give_time()
            return
        self._end.why = self.explain_end()
        if not self._end.is_closing:
            self._end.reach(_Stage.CANCELLING)
        try:
            if self._state is WireState.RUNNING and await self._cancel_running():
                return
            _log.warning("a connection of a client was ended", database=self.target.database, reason=why.value)
            await self._end_process()
        finally:
            if not self._end.is_closing:
                self._end.reach(_Stage.NOTHING)
                self.ended = self._end.why = None

    async def _cancel_running(self) -> bool:
        """Cancel the running statement; return whether it has ended, or must be left to its commit. A later statement
        is not meant."""
        started = self._started
        await self._cancel_quietly()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _GRACE_S
        while self._state is WireState.RUNNING and self._started == started and not self._link.is_lost:
            if loop.time() > deadline:
                return await self._waits_for_standby()
            await asyncio.sleep(_TICK_S)
        return True

    async def _end_process(self) -> None:
        self._end.reach(_Stage.CLOSING)
        await self.pool.end_process(self.member)

    async def _cancel_quietly(self) -> None:
        try:
            await self.cancel()
        except TimeoutError:
            pass  # its process is ended in a moment

    async def _waits_for_client(self) -> bool:
        try:
            return bool(await self._fetch(_WAITS_FOR_CLIENT, str(self.member.backend)))
        except port.EngineFailure:
            return False

    async def _waits_for_standby(self) -> bool:
        return self.pool.primary.replication.waits and await self.pool.waits_for_standby(self.member)

    def end_for(self, reason: str) -> None:
        """End the connection at once: its database must be let go of, or its transaction is open for too long."""
        if not self._end.is_closing:
            self._end.reach(_Stage.CLOSING)
            _log.info("a connection of a client was ended", database=self.target.database, reason=reason)
            self._end.why = port.StatementFailed(reason, sqlstate="57P01")
            self._spawn(self._end_process())

    # -- entering and leaving -----------------------------------------------------------------------------------

    def _give_time(self) -> None:
        """Give a statement its time, within that of its transaction."""
        self.deadline = min(asyncio.get_running_loop().time() + self.bounds.timeout_ms / 1000, self._age.ends)

    def _enter(self) -> None:
        now = asyncio.get_running_loop().time()
        self._running.enter(self)
        self._age.begin(now)
        self.begun = self.member.meter.begun
        if self.target.may_write:
            self.pool.state.begin_doubt()

    def _leave(self) -> None:
        self._age.end()
        if self._is_in_doubt:
            self.pool.state.end_doubt()
        self._running.runs.discard(self)

    @property
    def _is_in_doubt(self) -> bool:
        """Return whether it may have written what is not decided."""
        return self.target.may_write and self in self._running.runs

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def leave(self) -> None:
        """The client has left: cancel what runs, and close. The connection keeps its place until its process is
        gone."""
        in_doubt = self._is_in_doubt
        self._link.close()
        self._running.runs.discard(self)
        for task in self._tasks:
            task.cancel()
        self.pool.see_off(self.member, is_running=self._state is WireState.RUNNING, in_doubt=in_doubt)
