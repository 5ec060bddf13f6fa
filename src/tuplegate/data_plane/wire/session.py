"""One client: its bytes to the engine and back.

A statement that may not run is replaced by one that the engine itself refuses, and the engine's error by ours. So the
error comes in its place among the answers, an open transaction fails with it, and later messages up to the next Sync
are skipped, all as PostgreSQL does it.
"""

# size: both directions share what is known of the connection
import asyncio
import secrets
import struct
from collections import deque
from functools import lru_cache
from typing import Final

from tuplegate.admission.identity import Identity
from tuplegate.data_plane.wire.admission import WireAdmission, WireCounts
from tuplegate.data_plane.wire.dumps import replace_question
from tuplegate.data_plane.wire.flow import (
    FAILED,
    HIDDEN,
    IDLE,
    IN_BLOCK,
    OWN,
    ClientMessages,
    EngineMessages,
    Flow,
    Parts,
)
from tuplegate.data_plane.wire.listening import READ_ONLY, SYNCHRONOUS, UNLISTEN, Listening, Place
from tuplegate.data_plane.wire.messages import (
    BIND,
    BOUND,
    CLOSE,
    CLOSED,
    COPY_DONE,
    COPY_FAIL,
    COPY_IN,
    DESCRIBE,
    ERROR,
    EXECUTE,
    FUNCTION,
    PARSE,
    PARSED,
    QUERY,
    READY,
    SYNC,
    SYNC_MESSAGE,
    TERMINATE,
    WireError,
    read_fields,
    write_execute,
    write_message,
    write_query,
    write_run,
)
from tuplegate.data_plane.wire.own_statements import LEAVE_SERIALIZABLE, OwnStatements, return_to
from tuplegate.data_plane.wire.prepared_names import ClosedName, PreparedNames
from tuplegate.data_plane.wire.texts import Judged, check_reads, judge_text
from tuplegate.engine import port
from tuplegate.http.exchange import Counts
from tuplegate.http.websocket import WebSocketConnection
from tuplegate.protocol.time_limits import WorkKind

_REFUSED: Final = b"tuplegate_refused_"
_REFUSED_DIGITS: Final = 32
_NOT_LISTENING: Final = b"UNLISTEN\0"
_NOTHING: Final = b"UNLISTEN tuplegate"
"""Does nothing in a session that listens: nobody listens to that channel."""
_CLOSING: Final = (UNLISTEN,)
_CLOSING_READER: Final = (UNLISTEN, READ_ONLY)
_CLOSING_LAZY: Final = (UNLISTEN, SYNCHRONOUS)
_ENDED: Final = (b"COMMIT\0", b"ROLLBACK\0")
_IN_BLOCK_HINT: Final = "Send it as a simple query, without parameters, or run BEGIN and another statement first."
_BEGINS: Final = (QUERY, PARSE, BIND, FUNCTION)
_PARTS: Final = (PARSE, BIND, DESCRIBE, EXECUTE, CLOSE)
_RUNS: Final = (QUERY, FUNCTION, PARSE, BIND, DESCRIBE, EXECUTE)
"""After any other message the engine can wait outside of a transaction."""
_NOT_BEHIND: Final = "behind VACUUM, ANALYZE, CLUSTER and REINDEX nothing else runs up to the next Sync"
_NOT_SET_BACK: Final = "after a statement, the session could not be brought back to how it must wait for the next one"
_NOT_LAZILY: Final = (
    "in a session that has named synchronous_commit, the end of a transaction comes in a text of its own"
)
_NO_SYNC: Final = "a Query or FunctionCall needs a Sync before it, behind an Execute"
_AFTER_SYNC: Final = "a statement that ends a transaction was prepared behind a Sync whose answer is still to come"


# size: both directions share what is known of the connection.
class WireConnection:
    """A client whose key was accepted, joined to a connection of the engine. `token` is the client's, `bounds` are
    those of a statement."""

    def __init__(
        self,
        websocket: WebSocketConnection,
        opened: port.OpenedWire,
        bounds: port.Bounds,
        identity: Identity,
        target: port.Target,
        usage: Counts,
        token: bytes,
        counts: WireCounts,
        bytes_max: int,
    ) -> None:
        self._websocket = websocket
        self._link = opened.session
        self._blocks_pipelines = opened.blocks_pipelines
        self._bounds = {**identity.allowance.bounds, WorkKind.STATEMENT: bounds}
        self._admission = WireAdmission(opened.session, identity, usage, counts)
        self.target = target
        self.token = token
        self._usage = usage
        self._counts = counts
        self._flow = Flow()
        self._client = ClientMessages(bytes_max)
        self._engine = EngineMessages(self._look)
        self._own_name = b"tuplegate_" + secrets.token_hex(8).encode()
        self._closing = _CLOSING if target.may_write else _CLOSING_READER
        """The statements that end each unit of the client's."""
        self._listening = Listening()
        self._level: OwnStatements | None = None
        """The statements that return the level of a session that listens, and has set it aside."""
        self._refused: dict[bytes, bytes] = {}
        """The errors for the client, by the name that the engine refuses."""
        self._is_skipping = False
        """A message of the extended protocol was refused; later ones are not passed on up to the next Sync."""
        self._hidden = 0
        """Answers to statements of the service's own that the client does not get."""
        self._parts = Parts()
        self._names = PreparedNames()
        self._judged: list[bytes] = []
        """The bytes that the engine gets next."""
        self._has_added_sync = False
        """A Sync that the client has left out is not answered yet."""
        self._own: deque[OwnStatements] = deque()
        """Statements of the service's own that are not answered."""
        self._behind: tuple[bytes, ...] = ()
        """The statements of the service's own to send after the client's statement."""
        self._awaits_rows = False
        """A text takes rows: later messages must come after those."""
        self._may_have_ended = False
        """The text that takes rows may have ended a transaction before."""
        self._began_in = IDLE
        """The status in which the present unit began; 0 if that was unknown."""
        self._has_failed = self._has_ended = False
        """Since the last ReadyForQuery something has failed, or a transaction has ended."""
        self._hides = 0
        """The number of next answers to statements that are to the service's own."""
        self._settled: asyncio.Future[None] | None = None
        self._has_last_word = self._is_leaving = False
        self._ending: WireError | None = None
        self._ended = asyncio.Event()
        self.heard_at = asyncio.get_running_loop().time()

    @property
    def identity(self) -> Identity:
        return self._admission.identity

    @identity.setter
    def identity(self, identity: Identity) -> None:
        self._admission.identity = identity

    @property
    def is_idle(self) -> bool:
        """Return whether the engine waits for the client."""
        return self._flow.waits_for_client

    async def run(self, first: bytes) -> None:
        """Pass bytes on until one side ends; `first` came with the start-up. Raises WireError with the last word."""
        loop = asyncio.get_running_loop()
        up, down = loop.create_task(self._pass_up(first)), loop.create_task(self._pass_down())
        ended = loop.create_task(self._wait_for_end())
        tasks = [up, down, ended]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done() and (failure := task.exception()) is not None:
                    raise failure
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_for_end(self) -> None:
        await self._ended.wait()
        assert self._ending is not None
        raise self._ending

    def end(self, error: WireError, *, at_once: bool) -> None:
        """End the connection with these words: at once, or when nothing runs any more."""
        if self._ending is None or at_once:
            self._ending = error
        if at_once or not self._flow.is_running:
            self._ended.set()

    async def cancel(self) -> None:
        await self._link.cancel()

    # -- to the engine --------------------------------------------------------------------------------------------

    async def _pass_up(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if data:
                self.heard_at = loop.time()
                self._counts.bytes_in += len(data)
            for message in self._client.feed(data):
                if message[0] == TERMINATE:
                    await self._leave(message)
                judged = await self._judge(message)
                self._judged.append(judged)  # only now: meanwhile what was judged before may have been written
            self._websocket.hold(self._client.held)
            await self._write_judged()
            if self._client.has_more:
                data = b""
                await asyncio.sleep(0)  # others have their turn
            else:
                data = await self._websocket.receive()
                if not data:
                    return

    async def _leave(self, message: bytes) -> None:
        """Pass the client's last message on, and wait until the engine has answered the messages before it."""
        self._is_leaving = True
        self._judged.append(message)
        await self._write_judged()
        await self._ended.wait()

    async def _write_judged(self) -> None:
        data = self._judged[0] if len(self._judged) == 1 else b"".join(self._judged)
        self._judged = []
        if data:
            self._tell_state()
            await self._link.write(data)

    async def _judge(self, message: bytes) -> bytes:
        """Return the bytes for the engine in place of a message."""
        kind = message[0]
        if self._is_skipping and kind != SYNC:
            return b""
        if kind in (QUERY, FUNCTION) and self._flow.is_open:
            # Behind a failure the engine would skip it. What is known of the connection would be wrong from then on.
            if self._flow.has_statements:
                self.end(WireError("08P01", _NO_SYNC), at_once=True)
                return b""
            await self._add_sync()
            if self._is_skipping:
                return b""
        self._names.see(kind)
        ends_rows = self._awaits_rows and kind in (COPY_DONE, COPY_FAIL)
        try:
            if self._behind and kind in _BEGINS:
                raise WireError("0A000", _NOT_BEHIND)
            message = await self._judge_kind(kind, message)
        except WireError as refusal:
            refused = self._refuse(kind, refusal)
            if kind != SYNC:
                return refused + (self._end_unit(kind) if kind in (QUERY, FUNCTION) else b"")
            message = refused + message
        self._flow.sent(kind)
        self._parts.sent(kind, self._names.note_close(message) if kind == CLOSE else None)
        if ends_rows:
            self._awaits_rows = False
            self._unlisten_behind(in_block=False)
        return message + self._end_unit(kind) if ends_rows or kind in (QUERY, SYNC, FUNCTION) else message

    async def _add_sync(self) -> None:
        """Send a Sync for a client that has prepared something, run nothing of it, and left its Sync out, as asyncpg
        does. The client does not get the answer. After a failure later messages are skipped, as the engine does."""
        judged = await self._judge(SYNC_MESSAGE)
        self._judged.append(judged)
        self._has_added_sync = True
        await self._settle()

    async def _judge_kind(self, kind: int, message: bytes) -> bytes:
        """Return the bytes for the engine in place of a message; raises WireError if it is refused."""
        if kind == SYNC:
            self._is_skipping = False
            await self._admission.admit_sync()
            return self._unlisten_before_sync(message)
        begins = kind in (QUERY, FUNCTION) or (kind in _PARTS and not self._flow.is_open)
        if self._level is not None and kind in _RUNS:
            await self._return_to_level()
        if begins:
            if self._must_settle:
                await self._settle()
            self._begin_unit()
        if kind == QUERY:
            return await self._judge_query(message)
        if kind == FUNCTION:
            await self._admission.admit(1)
            self._unlisten_behind(in_block=self._is_in_block)
        elif kind == PARSE:
            await self._judge_parse(message)
        elif kind == BIND:
            message = await self._judge_bind(message)
        elif kind in (CLOSE, DESCRIBE, EXECUTE) and self._admission.must_pay(kind):
            await self._admission.admit(1)
        if kind == EXECUTE:
            return self._unlisten_behind_execute(message)
        if kind in (PARSE, BIND, DESCRIBE, COPY_DONE, COPY_FAIL):
            self._listening.sent(kind)
        return message

    def _end_unit(self, kind: int) -> bytes:
        """Return the bytes that must follow a message that the engine answers with ReadyForQuery."""
        if self._awaits_rows:
            return b""
        behind, self._behind = self._behind, ()
        if self._listening.is_on:
            closing = self._add_own(behind + self._closing[1:] + LEAVE_SERIALIZABLE, must_succeed=True)
            self._level = self._own[-1]
            return closing
        if not behind:
            return b""
        # A simple query is answered with less. It drops the client's statement and cursor that have no name.
        if kind == QUERY or (self._names.has_none_to_lose and self._began_in == IDLE):
            self._note_own(must_succeed=True)
            return _write_text(behind)
        return self._add_own(behind, must_succeed=True)

    # -- listening ------------------------------------------------------------------------------------------------

    @property
    def _is_in_block(self) -> bool:
        """Return whether a transaction block is open, and nothing is under way that could end it."""
        return self._flow.status == IN_BLOCK and not self._flow.has_statements

    @property
    def _must_settle(self) -> bool:
        """Return whether the next unit must wait for the messages under way."""
        flow = self._flow
        return flow.answers_own or (flow.is_running and (self._listening.can_end or self._names.is_full))

    def _begin_unit(self) -> None:
        """Prepare for a unit that begins now: a text, or the messages up to the next Sync."""
        if not self._flow.is_running:
            self._parts.begin()
            self._engine.shows_parts = True
        self._began_in = 0 if self._flow.has_asked else self._flow.status

    async def _settle(self) -> None:
        """Wait until all messages are answered, or the engine waits for rows."""
        await self._write_judged()
        while not self._flow.waits_for_client:
            self._settled = asyncio.get_running_loop().create_future()
            await self._settled

    async def _return_to_level(self) -> None:
        """Give a session that listens its own level for the next unit. The engine can read notifications at that level
        before and after it."""
        assert self._level is not None
        await self._write_judged()
        level = await self._level.wait_for_any()
        if level:  # else it was not set aside: the transaction has failed, and gives back what it has changed
            self._link.count_begun(2)
            await self._run_own(return_to(level))
        self._level = None

    def _unlisten_behind_execute(self, message: bytes) -> bytes:
        """Return an Execute, with UNLISTEN after it if it may have ended the transaction: otherwise the engine would
        read notifications while it waits for the next message."""
        listening = self._listening
        listening.sent(EXECUTE)
        if not listening.can_end or self._behind or listening.is_copy(message[5:].partition(b"\0")[0]):
            return message
        if not self._parts.is_exact:
            raise WireError("0A000", _AFTER_SYNC, hint="Wait for that answer, or send it as a simple query.")
        self._flow.sent(EXECUTE)
        listening.put_inside()
        if self._began_in == FAILED:
            return message + self._run_inside()
        # Also before it: what came earlier must not have listened when this commits, and something behind it fails.
        return self._run_inside() + message + self._run_inside()

    def _unlisten_before_sync(self, message: bytes) -> bytes:
        began_in = self._began_in
        place = self._listening.place_in_unit(in_block=began_in == IN_BLOCK, has_failed=began_in == FAILED)
        if place is not Place.NOWHERE:
            if self._closing is _CLOSING_LAZY and self._parts.is_exact and not self._behind:
                message = self._run_inside() + message
            self._unlisten_behind(in_block=False)
        if place is not Place.NOWHERE or not self._listening.awaits_rows:
            self._listening.ended()
        return message

    def _unlisten_behind(self, *, in_block: bool) -> None:
        if not in_block and not self._listening.is_on:
            self._link.count_begun(1)
            self._behind += self._closing

    # -- texts ----------------------------------------------------------------------------------------------------

    async def _judge_query(self, message: bytes) -> bytes:
        text = message[5:-1]
        judged = self._judge_text(text)
        if self._is_way_out(judged):
            self._admission.count(1)
            return message
        if judged.may_end and self._closing is _CLOSING_LAZY:
            await self._commit_synchronously(judged)
        await self._admission.admit(judged.begins)
        if judged.more:
            await self._admission.begin(judged.more)
        if judged.has_steps and judged.is_alone and await self._is_idle():
            await self._leave_serializable()
            self._unlisten_behind(in_block=False)
            return message
        in_block = self._is_in_block
        place = self._listening.place_behind_text(judged, in_block=in_block)
        if place is Place.BEHIND_ROWS:
            await self._settle()
            self._awaits_rows, self._may_have_ended = True, judged.may_end
        elif place is Place.BEHIND:
            self._unlisten_behind(in_block=False)
        asked = replace_question(text)
        if judged.has_no_bound or (judged.takes_more and self._closing is _CLOSING_LAZY):
            # Beside another statement, code runs in one transaction, and what works in steps not at all.
            self._hidden += 1
            return write_query(b"\n;".join((asked, *self._inside)))
        return message if asked is text else write_query(asked)

    async def _commit_synchronously(self, judged: Judged) -> None:
        """Make the next commit wait for the disk. Raises WireError if it does not come alone."""
        if not judged.only_ends:
            raise WireError("0A000", _NOT_LAZILY, hint="Send COMMIT and END in texts of their own.")
        await self._settle()
        if self._flow.status == IN_BLOCK:
            await self._run_own((SYNCHRONOUS,))

    def _judge_text(self, text: bytes) -> Judged:
        """Read a text. Raises WireError if it may not run."""
        judged = judge_text(text)
        if not self.target.may_write:
            check_reads(text, judged)
        self._listening.judge(judged)
        self._link.bound(self._bounds[judged.kind])
        if judged.is_lazy and self.target.may_write:
            self._closing = _CLOSING_LAZY
        return judged

    def _is_way_out(self, judged: Judged) -> bool:
        """Return whether the text ends a transaction that has failed: a client without quota must be able to leave
        it."""
        return judged.only_ends and self._flow.status == FAILED and not self._flow.is_running

    async def _judge_parse(self, message: bytes) -> None:
        name, _, rest = message[5:].partition(b"\0")
        judged = self._judge_text(rest.partition(b"\0")[0])
        if judged.copies and self._flow.has_asked:
            await self._settle()
        if self._is_way_out(judged):
            self._admission.waive()
        await self._admission.admit_part(PARSE)
        self._names.note_parse(name, judged)
        self._listening.note_parse(name, judged)

    async def _judge_bind(self, message: bytes) -> bytes:
        """Return the message, preceded by a statement that keeps code from committing, if necessary. A cursor that is
        made in a block does not outlive it, so it matters where the cursor is made."""
        if self._admission.must_pay(BIND):
            await self._admission.admit(1)
        portal, _, rest = message[5:].partition(b"\0")
        name = rest.partition(b"\0")[0]
        self._listening.note_bind(portal, name)
        judged = self._names.find(name)
        if judged is None:
            return message
        if not judged.has_no_bound:
            await self._admission.begin(judged.more)
            return message
        # What is under way could end the block.
        if self._is_in_block:
            return message
        if self._parts.is_exact and judged.has_steps and self._flow.status == IDLE and not self._flow.has_statements:
            if not self._parts.has_bound:
                await self._write_judged()
                await self._leave_serializable()
                return message
        elif self._parts.is_exact and judged.is_code and self._blocks_pipelines:
            # Up to the next Sync what follows another statement runs in a transaction block.
            self._flow.sent(EXECUTE)
            return self._run_inside() + message
        raise WireError(
            "0A000",
            "with the extended protocol, VACUUM, ANALYZE, CLUSTER and REINDEX must come first behind a Sync that is"
            " answered, CALL and DO behind one; before PostgreSQL 18 these need a transaction block",
            hint=_IN_BLOCK_HINT,
        )

    @property
    def _inside(self) -> tuple[bytes, ...]:
        """Return the statements that end the client's unit, in their own transaction."""
        return (_NOTHING, *self._closing[1:]) if self._listening.is_on else self._closing

    def _run_inside(self) -> bytes:
        """Return the same statements as messages to send between the client's."""
        statements = self._inside
        for _ in statements:
            self._parts.sent_own()
        return b"".join(write_run(self._own_name, statement) for statement in statements)

    async def _is_idle(self) -> bool:
        """Wait for the service's own statements; return whether none of the client's is under way."""
        if self._own:
            await self._write_judged()
            await self._own[-1].wait()
        return self._flow.status == IDLE and not self._flow.is_running

    async def _leave_serializable(self) -> None:
        """Change the session's isolation level for the statement that follows. Raises WireError if that fails."""
        self._behind = return_to(await self._run_own(LEAVE_SERIALIZABLE))

    async def _run_own(self, statements: tuple[bytes, ...]) -> bytes:
        """Run statements of the service's own before the next message; return their first value. Raises WireError."""
        data = self._add_own(statements, must_succeed=False)
        own = self._own[-1]
        self._tell_state()
        await self._link.write(data)
        return await own.wait()

    def _add_own(self, statements: tuple[bytes, ...], *, must_succeed: bool) -> bytes:
        """Return messages with statements of the service's own, to be sent next."""
        self._note_own(must_succeed=must_succeed)
        return b"".join(write_run(self._own_name, statement) for statement in statements) + SYNC_MESSAGE

    def _note_own(self, *, must_succeed: bool) -> None:
        self._own.append(OwnStatements(must_succeed=must_succeed))
        self._flow.sent(HIDDEN)
        self._engine.shows_parts = True
        self._engine.shows_rows = self._flow.hides

    def _refuse(self, kind: int, error: WireError) -> bytes:
        """Return a statement that the engine refuses, in place of a message, and note the error for the client."""
        # A name that a client could know beforehand it could give to a statement of its own.
        name = _REFUSED + secrets.token_hex(16).encode()
        self._refused[name] = error.write("ERROR")
        if kind in (QUERY, FUNCTION):
            self._flow.sent(QUERY)
            self._parts.sent(QUERY)
            return write_query(b'EXECUTE "%b"' % name)
        self._is_skipping = kind != SYNC  # as the engine does, up to the next one
        self._flow.sent(EXECUTE)
        return write_execute(name)

    # -- to the client --------------------------------------------------------------------------------------------

    async def _pass_down(self) -> None:
        while data := await self._link.read():
            passed = self._engine.feed(data)
            self._tell_state()
            if passed:
                self._counts.bytes_out += len(passed)
                self._usage.bytes += len(passed)
                await self._websocket.send(passed)
            if self._ending is not None and not self._flow.is_running:
                raise self._ending
        if not self._has_last_word and not self._is_leaving:
            raise self._explain_loss()

    def _explain_loss(self) -> WireError:
        ended = self._link.explain("57P01")
        if ended is not None:
            return WireError("57P01", ended.message, ended.hint)
        return WireError("08006", "the connection to the engine was lost; what was not committed is rolled back")

    def _tell_state(self) -> None:
        if self._flow.is_running:
            self._link.note(port.WireState.RUNNING)
        else:
            self._tell_ready()

    def _tell_ready(self) -> None:
        """Note that a unit has ended. The next one begins now, and has its own time."""
        self._link.note(port.WireState.IDLE if self._flow.status == IDLE else port.WireState.OPEN)

    def _look(self, kind: int, message: bytes) -> bytes | None:
        """See `flow.Look`."""
        if kind in (PARSED, BOUND, CLOSED):
            answered = self._parts.take(kind, hides=self._flow.hides)
            if answered is OWN:
                self._hides = 1 if kind == BOUND else self._hides
                return b""
            if isinstance(answered, ClosedName):
                self._names.forget(answered)
            return None
        if self._flow.hides:
            return self._look_at_own(kind, message)
        if kind == READY:
            is_added, self._has_added_sync = self._has_added_sync, False
            self._is_skipping = self._is_skipping or (is_added and self._has_failed)
            self._note_ready(message[5])
            return b"" if is_added else None
        if kind == COPY_IN:
            self._flow.note_rows_wanted()
            self._wake()
        elif kind == ERROR:
            self._flow.note_error()
            return self._look_at_error(message)
        elif self._hides:
            self._hides -= 1
            return b""
        elif message[5:] == _NOT_LISTENING and self._hidden:
            self._hidden -= 1
            self._hides = len(self._closing) - 1
            return b""
        elif message[5:] in _ENDED:
            self._has_ended = True
        return None

    def _note_ready(self, status: int) -> None:
        self._flow.note_ready(status)
        self._engine.shows_rows = self._flow.hides
        self._tell_ready()
        self._parts.end()
        self._check_unlistened(status)
        self._wake()
        if not self._flow.is_running:
            self._refused.clear()
            self._hidden = 0

    def _check_unlistened(self, status: int) -> None:
        """End the connection if a COPY has wanted no rows, and so nothing was sent after it."""
        is_missing = self._awaits_rows and (self._may_have_ended or not self._has_failed)
        if self._listening.awaits_rows:
            self._listening.ended()
            is_missing = is_missing or not self._has_failed
        if is_missing and status == IDLE:
            self.end(WireError("57P01", _NOT_SET_BACK), at_once=True)
        self._awaits_rows = self._has_failed = self._has_ended = False
        self._hides = 0

    def _wake(self) -> None:
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    def _look_at_own(self, kind: int, message: bytes) -> bytes | None:
        """Take a part of the answer to a statement of the service's own. The last words of the engine are passed on."""
        if kind == READY:
            own = self._own.popleft()
            failure = own.end()
            self._note_ready(message[5])
            if failure is not None and own.must_succeed and message[5] != FAILED:
                self.end(WireError("57P01", f"{_NOT_SET_BACK}: {failure.message}"), at_once=True)
        elif kind == ERROR and read_fields(message).get("V") in (b"FATAL", b"PANIC"):
            return self._look_at_error(message)
        else:
            self._own[0].take(kind, message)
        return b""

    def _look_at_error(self, message: bytes) -> bytes | None:
        self._usage.errors += 1
        self._has_failed = True
        self._hides = 0
        if (self._has_ended or self._listening.is_on) and self._flow.is_open and not self._flow.has_asked:
            # The engine waits for a Sync outside of a transaction, where it would read notifications. Code may have
            # listened as it committed.
            self.end(WireError("57P01", _NOT_SET_BACK), at_once=True)
        fields = read_fields(message)
        text, severity = fields.get("M", b""), fields.get("V", b"ERROR").decode()
        self._has_last_word = severity in ("FATAL", "PANIC")
        if self._refused and _REFUSED in text:
            told = self._refused.pop(_REFUSED + text.partition(_REFUSED)[2][:_REFUSED_DIGITS], None)
            if told is not None:
                return told
        why = self._link.explain(fields.get("C", b"").decode())
        if why is None:
            return None
        sqlstate = "57P01" if self._has_last_word else why.sqlstate or "57014"
        return WireError(sqlstate, why.message, why.hint).write(severity)


@lru_cache(maxsize=100)
def _write_text(statements: tuple[bytes, ...]) -> bytes:
    return write_query(b";".join(statements))


def write_last_word(error: WireError) -> bytes:
    return error.write("FATAL")


def write_greeting(greeting: bytes, key_data: bytes) -> bytes:
    """Return the messages for a client whose key was accepted."""
    return write_message(ord("R"), struct.pack(">i", 0)) + greeting + key_data + write_message(READY, b"I")
