"""The connections of one target, made on demand, bounded, each clean before it is handed out again.

Cleaning a connection. A query that names nothing that could, on a database without code of the tenant's own, leaves
nothing behind, and nothing is done; a change leaves what it knows of sequences, and `DISCARD SEQUENCES` removes that.
After every other request `DISCARD ALL` removes settings, role, temporary tables, prepared statements, cursors, listens,
advisory locks and sequence caches. Two things survive it: the random seed, and the names of custom settings (`app.user`
reads as '' instead of NULL for ever after). Both can only be touched by a statement that names how, or by code that
does (see `database_state`). After such a one the seed is set anew and the server is asked how much memory its settings
take: if that is not what it was when the connection was new, the connection is closed. Whether a database has code is
asked after every statement that is not plain, before any other connection to it is trusted, and at least once a second
while it is used, for what other workers have made.
"""

import asyncio
import math
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import structlog
from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

from tuplegate.engine.libpq.connection import Command, Connection, ConnectionLost, CopyStarted, LoginRefused, Meter
from tuplegate.engine.libpq.failures import check, find_error
from tuplegate.engine.libpq.kept import KEPT_MAX, Kept, Key
from tuplegate.engine.libpq.places import Places
from tuplegate.engine.libpq.stocks import Stocks
from tuplegate.engine.port import EngineBusy, EngineFailure, EngineUnavailable, OutcomeUnknown
from tuplegate.engine.postgres.replication.primary import Primary
from tuplegate.engine.postgres.replication.verified import Expected
from tuplegate.engine.postgres.safety.database_state import CODE, DatabaseState
from tuplegate.engine.postgres.safety.stubborn import Ending, Stubborn
from tuplegate.engine.postgres.safety.traces import UNTOLD
from tuplegate.protocol.statements import Leftovers
from tuplegate.reply import Reply

_log: Final = structlog.get_logger()

_IDLE: Final = int(pq.TransactionStatus.IDLE)

_SEQUENCES: Final = Leftovers.SEQUENCES
_ANYTHING: Final = Leftovers.ANYTHING

_DISCARD: Final = Command(b"DISCARD ALL", begins=False)
_DISCARD_SEQUENCES: Final = Command(b"DISCARD SEQUENCES", begins=False)
_ROLLBACK: Final = Command(b"ROLLBACK", begins=False)
# The server knows the settings of PL/pgSQL once it is used. The service's own records use it, so it is there from the
# start: else every connection would look changed after its first record.
_LOAD_PLPGSQL: Final = Command(b"DO $$BEGIN END$$")
_CANCEL_GRACE_S: Final = 5.0
_SUSPENDED_S: Final = 10.0
_RECENT_S: Final = 5.0
"""A pool that has a connection takes no other pool's place that was used so recently: opening one costs far more than a
short statement."""
_PATIENCE_S: Final = 1.0
"""Unless somebody has waited for so long: what it waits for is no short statement."""
_RESTORE_EVERY_S: Final = 2.0
_GONE_PAUSE_S: Final = 0.05
_GONE_PAUSE_MAX_S: Final = 1.0
_TYPES_FRESH_S: Final = 1.0
"""How long a type renamed by a function, or through another worker, may keep its old name in answers."""


_TRACES: Final = b"SELECT tuplegate.traces($1)"


class _Committing(Exception):
    """The statement is through, and its commit waits for a standby: it is too late to cancel it."""


class Member(Connection):
    """A connection of a pool.

    `settings_memory` is what the server's settings took when it was new. `reset` is still to be sent, in front of the
    next statement and in the same write: so a connection is handed on while others wait for it. `kept` are the
    statements that are prepared on it, by what they were made of. `is_fresh` until it was handed on.
    """

    settings_memory: bytes | None = None
    idle_since: float = 0.0
    given_up: bool = False
    is_fresh: bool = True
    reset: Command | None = None

    def __init__(self, pgconn: PGconn, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(pgconn, loop)
        self.kept: dict[Key, Kept] = {}

    def take_reset(self) -> Command | None:
        """What is to be sent before anything else; whoever takes it sends it."""
        reset, self.reset = self.reset, None
        return reset

    def discard(self) -> None:
        """Whatever runs next finds nothing of what ran before, and nothing that is kept."""
        self.reset = _DISCARD
        self.kept.clear()

    def hide_kept(self) -> None:
        """What runs next could see the statements that are kept, and is not to."""
        if self.kept:
            self.discard()


class Pool:
    """See the module's text."""

    def __init__(
        self,
        conninfo: str,
        primary: Primary,
        expected: Expected,
        state: DatabaseState,
        *,
        size_max: int,
        queue_max: int,
        connect_timeout_s: float,
        code_check_s: float,
        places: Places,
        forget_settings: Callable[[], Awaitable[None]],
        restore_login: Callable[[], Awaitable[None]],
        database: str,
        stubborn: Stubborn,
        is_certain: Callable[[], Awaitable[bool]],
        waits_for_standby: Callable[[int], Awaitable[bool]],
        is_confirmed: Callable[[], Awaitable[bool]],
        meter: Meter,
        stocks: Stocks,
        position: list[Command] | None,
    ) -> None:
        self.state = state
        self.position = position
        """What asks for the engine's position; None where nobody wants to know it."""
        self.encoders = state.encoders
        self._conninfo = conninfo
        self.primary = primary
        self._expected = expected
        self._size_max = size_max
        self._queue_max = queue_max
        self._connect_timeout_s = connect_timeout_s
        self._code_check_s = code_check_s
        self._places = places
        self._forget_settings = forget_settings
        self._restore_login = restore_login
        self._restored_at = -math.inf
        self._database = database
        self._stubborn = stubborn
        self._is_certain = is_certain
        self._waits_for_standby = waits_for_standby
        self._is_confirmed = is_confirmed
        self._meter = meter
        self._stocks = stocks
        self._role_has_settings = False
        self._free: list[Member] = []
        self._members: set[Member] = set()
        self._opening = 0
        self._waiters: deque[tuple[Reply[Member], float, float]] = deque()
        """Each with its deadline, and since when it waits."""
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._suspended = False

    # -- taking and giving back ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise EngineBusy while the database may begin nothing new."""
        if self.state.crowded:
            raise EngineBusy("the database holds more locks than there is room for; it can be used again in a moment")
        if self._stubborn.full:
            self._stubborn.check(self._database)

    @property
    def _most(self) -> int:
        """Connections that there may be: twice as many while commits wait for a standby and hold theirs, so that reads
        go on."""
        return 2 * self._size_max if self.primary.replication.stands_still else self._size_max

    def check_commits(self) -> None:
        """Raise EngineUnavailable while nothing can be committed."""
        if self.primary.refuses is not None:
            raise EngineUnavailable(self.primary.refuses)

    def take(self) -> Member | None:
        """A free connection, if there is one."""
        while self._free:
            member = self._free.pop()
            if not member.closed:
                return member
        return None

    async def wait(self, deadline: float) -> Member:
        """A connection, opened or waited for. Raises EngineBusy or EngineUnavailable."""
        if self._closed:
            raise EngineUnavailable("the service is stopping")
        if self._suspended:
            deadline = min(deadline, self._loop.time() + _SUSPENDED_S)
        elif self.size < self._most and self._places.take(self._loop.time() - _RECENT_S if self.size else math.inf):
            return await self._open()
        if len(self._waiters) >= self._queue_max:
            self._waiters = deque(entry for entry in self._waiters if not entry[0].done())
        if len(self._waiters) >= self._queue_max:
            raise EngineBusy(f"{self._queue_max} statements are waiting for a connection already")
        waiter: Reply[Member] = Reply(self._loop)
        self._waiters.append((waiter, deadline, self._loop.time()))
        if self.size == 0 and not self._suspended:
            self._places.ask(self._place_found)
        try:
            return await waiter
        except asyncio.CancelledError:
            # The task was cancelled, perhaps just as it was given a connection: that one must not be lost.
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.give_back_unclean(waiter.result())
            raise

    def end_waiting(self, now: float) -> None:
        """Turns away whoever has waited past its deadline; for whoever waits long a place is made."""
        wanted = False
        for waiter, deadline, since in self._waiters:
            if waiter.done():
                continue
            if deadline < now:
                waiter.set_exception_soon(EngineBusy("no connection became free before the statement's time was over"))
            elif since < now - _PATIENCE_S:
                wanted = True
        if wanted and self.size < self._most and not self._suspended and not self._closed:
            self._spawn(self._replace())

    def turn_away(self, reason: str) -> None:
        """Whoever waits is told that nothing comes of it here."""
        while self._waiters:
            waiter, _, _ = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception_soon(EngineUnavailable(reason))

    def _hand_over(self, member: Member) -> bool:
        """Gives the connection to whoever has waited longest, if anybody waits. They go on together, when the loop has
        seen to what it has in hand (see `fairness.Lane.leave`)."""
        member.is_fresh = False
        waiters = self._waiters
        while waiters and not self._suspended:
            waiter, _, _ = waiters.popleft()
            if not waiter.done():
                waiter.set_result_soon(member)
                return True
        return False

    def _place_found(self) -> None:
        self._spawn(self._replace())

    def inspects(self, plain: bool, now: float) -> bool:
        """Whether the connection must be inspected after this statement, not only discarded."""
        state = self.state
        return not plain or state.has_lasting_code or now - state.code_checked_at > self._code_check_s

    def give_back(self, member: Member, left: Leftovers) -> None:
        """Takes a connection whose statement is answered and for which DISCARD ALL is enough, or not even needed.

        One that is still inside a transaction is rolled back. One that turns out to be lost is no matter: what was
        answered was answered.
        """
        if (member.collected or member.is_heavy) and not self._is_light(member):
            return
        try:
            if member.pgconn.transaction_status != _IDLE:
                member.send([_ROLLBACK])
            self._give_back(member, left)
        except ConnectionLost:
            pass

    def _give_back(self, member: Member, left: Leftovers) -> None:
        if left is _ANYTHING or self.state.has_code or len(member.kept) > KEPT_MAX:
            member.discard()
        elif left is _SEQUENCES:
            member.reset = _DISCARD_SEQUENCES
        else:
            member.flush()
            self._free_again(member)
            return
        if self._waiters and self._hand_over(member):
            return
        reset = member.take_reset()
        assert reset is not None
        sent = member.send([reset])
        member.flush()
        sent.add_done_callback(lambda done: self._after_reset(member, done))

    def _is_light(self, member: Member) -> bool:
        """What it held is let go. One that takes much memory all the same is closed."""
        member.let_go()
        if member.is_swollen:
            member.close("it holds the room of a large message")
        return not member.closed

    async def freshen(self, member: Member) -> None:
        """Sends the reset that is due, where it cannot go along with a statement."""
        reset = member.take_reset()
        if reset is not None:
            check(await member.run(reset))

    def freshen_ahead(self, member: Member) -> Reply[list[PGresult]] | None:
        """Puts the reset that is due in front of whatever is sent next. It is answered before that; whoever reads the
        answer checks this one, too."""
        reset = member.take_reset()
        return None if reset is None else member.send([reset])

    def retire(self, member: Member) -> None:
        """Takes a connection whose statement has ended, and that nothing else is to run on."""
        member.close("the engine failed in it")

    def give_back_unclean(self, member: Member, *, plain: bool = False) -> None:
        """Takes a connection that may still be inside a transaction, and cleans and inspects it. `plain`: the text
        itself has left nothing that DISCARD ALL does not remove."""
        self._spawn(self._inspect(member, plain))

    @property
    def demands(self) -> bool:
        """What was written must be confirmed by a standby before it is acknowledged."""
        return self.primary.demands

    async def see_confirmed(self) -> None:
        """Raises OutcomeUnknown where no standby has what was committed."""
        if not await self._is_confirmed():
            raise OutcomeUnknown("it was applied, but no standby is known to have it, so that it could still be lost")

    async def flush_commits(self) -> None:
        """Returns when all that was committed is so for good. Raises OutcomeUnknown where that is not known in time."""
        if not await self._is_certain():
            raise OutcomeUnknown("it was applied, but the engine did not say in time that it is so for good")

    def abandon(self, member: Member) -> None:
        """Takes a connection whose statement is still running: cancels it in the engine, then closes the connection.

        While the server waits for a reader it acts on no cancel, and reading on could let the statement commit: closing
        is what ends it then.
        """
        ending = self._end(member, "its reader is gone") if member.is_paused else self._cancel_and_close(member)
        self._give_up(member, ending)

    def _give_up(self, member: Member, ending: Coroutine[Any, Any, None] | None) -> None:
        """Trusts nothing that is known of the database's code until the statement on the connection is sure to have
        ended: it may commit after its connection was given up, and make code."""
        if member.given_up:
            if ending is not None:
                self._spawn(ending)
            return
        member.given_up = True
        self.state.begin_doubt()
        self._spawn(self._see_gone(member, ending))

    async def _see_gone(self, member: Member, ending: Coroutine[Any, Any, None] | None) -> None:
        try:
            if ending is not None:
                await ending
            await self._until_gone(member)
        finally:
            self.state.end_doubt()

    async def _until_gone(self, member: Member) -> None:
        pause = _GONE_PAUSE_S
        while True:
            # As a rule the process ends by itself; one that is told to writes to the engine's log.
            await asyncio.sleep(pause)
            if await self._is_gone(member):
                return
            pause = min(2 * pause, _GONE_PAUSE_MAX_S)

    async def _is_gone(self, member: Member) -> bool:
        """Return whether the server process of a closed connection has ended; ask it to where it has not."""
        if self.primary.has_left(member.server):
            return True
        if any(other.backend == member.backend for other in self._members if not other.closed):
            return True  # the number was given to a new connection of this pool
        try:
            return await self._stubborn.is_gone(self._database, member.backend)
        except EngineFailure:
            return False

    def expire(self, member: Member) -> None:
        """The statement's time is over: cancels it; its answer, an error as a rule, goes to whoever waits for it."""
        self._spawn(self._cancel_or_close(member))

    async def _cancel_or_close(self, member: Member) -> None:
        try:
            await self._cancel(member)
        except TimeoutError:
            await self._end(member, "the engine did not cancel its statement in time")
        except _Committing:
            await self._see_committed(member)
        except (ConnectionLost, CopyStarted):
            member.close("its statement was cancelled")

    async def _end(self, member: Member, reason: str) -> None:
        """Ends the server process, and then closes the connection.

        To close the connection first is not enough: code can swallow every cancel, and tell its process not to look
        whether its client is still there. While the process lives the connection keeps its place, here and in the room.
        """
        ending: Ending | None = None
        try:
            ending = await self._stubborn.end(self._database, member.backend)
            # One that waits for a reader is ended by closing the connection.
            if not member.is_paused:
                await ending.settled.wait()
        finally:
            if ending is not None and not ending.is_gone and not member.closed and not self._closed:
                ending.on_gone, member.on_lost = member.on_lost, None
            member.close(reason)

    async def _cancel(self, member: Member) -> None:
        """Returns when the engine is done with the statement."""
        member.drain()  # while the server waits for a reader it acts on no cancel
        async with asyncio.timeout(_CANCEL_GRACE_S):
            if self.primary.replication.waits and await self._waits_for_standby(member.backend):
                raise _Committing
            await member.cancel()
            await member.drained()

    def leave(self, member: Member) -> None:
        """Takes a connection whose commit goes on for too long. It is left to itself: a commit is never cancelled."""
        self._spawn(self._see_committed(member))

    async def _see_committed(self, member: Member) -> None:
        """Closes the connection, which the commit does not notice. Until that has ended it keeps its place."""
        on_gone, member.on_lost = member.on_lost, None
        member.given_up = True
        self.state.begin_doubt()
        member.close("its commit waits for too long, as for a standby that is away")
        try:
            await self._until_gone(member)
        finally:
            self.state.end_doubt()
            if on_gone is not None:
                on_gone()

    def _after_reset(self, member: Member, reset: Reply[list[PGresult]]) -> None:
        if reset.cancelled() or reset.exception() is not None or find_error(reset.result()) is not None:
            member.close("its reset failed")
        else:
            self._free_again(member)

    def _free_again(self, member: Member) -> None:
        if self._hand_over(member):
            return
        if self._closed or self._suspended or self._places.wanted:
            member.close("its place is needed")
            return
        member.idle_since = self._loop.time()
        self._free.append(member)

    # -- cleaning -----------------------------------------------------------------------------------------------

    async def _inspect(self, member: Member, plain: bool) -> None:
        member.reset = None
        member.kept.clear()
        if not self._is_light(member):
            return
        try:
            member.send([_ROLLBACK])
            discarded = member.send([_DISCARD])
            memory = await self._inspection(member, self._loop.time() - self._code_check_s)
        except (ConnectionLost, CopyStarted):
            return
        if find_error(discarded.result()) is not None:
            member.close("its reset failed")
        elif memory is None or memory != member.settings_memory:
            member.close("a setting could not be undone")
        elif memory == UNTOLD and (not plain or self.state.has_lasting_code):
            member.close("a setting may be left")
        else:
            self._free_again(member)

    async def _inspection(self, member: Member, oldest: float = math.inf) -> bytes | None:
        """Sets the seed anew; the size of the server's settings, or None where it does not say.

        Asks whether there is code, unless that was answered since `oldest`.
        """
        seed = str(random.uniform(-1, 1)).encode()  # noqa: S311 - it replaces the server's own, which is no secret either
        asked = self.state.ask()
        traces = Command(_TRACES, [seed])
        asks = self.state.must_ask(oldest)
        results = await (member.run(traces, CODE) if asks else member.run(traces))
        if find_error(results) is not None or not results or results[0].ntuples != 1:
            return None
        now = self._loop.time()
        if asks:
            told = results[1]
            lasting, any_code, self._role_has_settings = (told.get_value(0, column) == b"t" for column in range(3))
            self.state.answer(asked, has_code=any_code, has_lasting_code=lasting, now=now)
        self._forget_types(asked, now)
        return results[0].get_value(0, 0)

    def _forget_types(self, asked: int, now: float) -> None:
        """What ran before the inspection may have changed types, by its text or through code."""
        if asked != self.state.forgotten_after or now - self.encoders.forgotten_at > _TYPES_FRESH_S:
            self.state.forgotten_after = asked
            self.encoders.forgotten_at = now
            self.encoders.forget()

    async def _cancel_and_close(self, member: Member) -> None:
        try:
            await self._cancel(member)
        except TimeoutError:
            await self._end(member, "the engine did not cancel its statement in time")
        except _Committing:
            await self._see_committed(member)
        except (ConnectionLost, CopyStarted):
            pass
        finally:
            member.close("its statement was cancelled")

    # -- opening and closing ------------------------------------------------------------------------------------

    async def _open(self) -> Member:
        """Opens one more connection; its place in the room is taken already."""
        self._opening += 1
        member: Member | None = None
        try:
            member = await self._connect()
            await member.run(_LOAD_PLPGSQL)
            member.settings_memory = await self._inspection(member)
            if self._role_has_settings:
                # A statement has given its own role settings; a connection that starts with them is no clean one.
                member.close("its role has settings")
                await self._forget_settings()
                member = await self._connect()
                await member.run(_LOAD_PLPGSQL)
                member.settings_memory = await self._inspection(member)
        except ConnectionLost as exc:
            self._give_up_place()
            _log.warning("no connection to the engine", reason=str(exc))
            raise EngineUnavailable("the engine accepts no connection just now") from exc
        except BaseException:
            if member is not None:
                member.close("whoever wanted it is gone")
            self._give_up_place()
            raise
        finally:
            self._opening -= 1
        self._members.add(member)
        member.on_lost = lambda: self._lost(member)
        member.stock = self._stocks.open(self._database, member.found_room)
        if member.closed:
            self._lost(member)
            raise EngineUnavailable("the engine closed the connection")
        return member

    async def _connect(self) -> Member:
        """Logs in. A statement can give its own role another password; then the role gets back the service's."""
        try:
            return await self._log_in()
        except LoginRefused:
            if self._loop.time() < self._restored_at + _RESTORE_EVERY_S:
                raise
            self._restored_at = self._loop.time()
            await self._restore_login()
            return await self._log_in()

    async def _log_in(self) -> Member:
        return await self.primary.open(Member, self._conninfo, self._connect_timeout_s, self._expected, self._meter)

    async def open_apart(self) -> Member:
        """A connection for the service's own use, beyond this pool's size but within the room. It is never handed on:
        whoever has it closes it."""
        if self._closed:
            raise EngineUnavailable("the service is stopping")
        if self._suspended:
            raise EngineBusy("the database is being copied or replaced just now")
        if not self._places.take():
            raise EngineBusy("every connection to the engine is in use")
        try:
            member = await self._connect()
        except BaseException as exc:
            self._give_up_place()
            if isinstance(exc, ConnectionLost):
                raise EngineUnavailable("the engine accepts no connection just now") from exc
            raise
        member.on_lost = self._give_up_place
        return member

    def _lost(self, member: Member) -> None:
        if member not in self._members:
            return
        self._members.discard(member)
        if member in self._free:
            self._free.remove(member)
        if member.cut_off and not self._closed:
            self._give_up(member, None)
        self._give_up_place()

    def _give_up_place(self) -> None:
        """A connection went, or did not come; whoever waits for one must not wait for that one."""
        self._places.give_back()
        if self._waiters and not self._closed and not self._suspended:
            self._spawn(self._replace())

    async def _replace(self) -> None:
        """Somebody waits and a connection went: opens another for them."""
        if self._suspended or self.size >= self._most or not self._places.take():
            return
        try:
            member = await self._open()
        except EngineUnavailable as exc:
            self.turn_away(str(exc))
        else:
            self._free_again(member)

    def suspend(self) -> None:
        """Lets go of the database: whoever wants a connection waits, what is idle is closed, the rest when it is."""
        self._suspended = True
        self.close_idle(float("inf"))

    def resume(self) -> None:
        self._suspended = False
        for _ in range(min(len(self._waiters), self._size_max)):
            self._spawn(self._replace())

    def close_idle(self, older_than: float) -> None:
        """Closes what has not been used since `older_than`, on the loop's clock."""
        for member in [m for m in self._free if m.idle_since < older_than]:
            member.close("it was idle")

    @property
    def idle_since(self) -> float | None:
        """When the longest idle connection was used last; None where none is idle."""
        return min((member.idle_since for member in self._free), default=None)

    @property
    def is_unused(self) -> bool:
        return not (self._members or self._opening or self._waiters or self._tasks)

    @property
    def processes(self) -> list[int]:
        """The server's processes behind the connections."""
        return [member.backend for member in self._members]

    @property
    def idle(self) -> int:
        return len(self._free)

    @property
    def waiting(self) -> int:
        """Statements that wait for a connection."""
        return sum(not waiter.done() for waiter, _, _ in self._waiters)

    @property
    def size(self) -> int:
        return len(self._members) + self._opening

    async def close(self) -> None:
        self._closed = True
        for member in list(self._members):
            member.close("the service is stopping")
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task: asyncio.Task[None] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
