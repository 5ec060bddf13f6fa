"""One client: its bytes to the engine and back.

A statement that may not run is replaced by one that the engine itself refuses, and the engine's error by ours. So the
error comes in its place among the answers, a transaction that is open fails with it, and what follows up to the next
Sync is skipped, all as PostgreSQL does it.
"""

import asyncio
import secrets
import struct
from collections import deque
from typing import Final

from tuplegate.admission.identity import Identity
from tuplegate.data_plane.wire.admission import WireAdmission, WireCounts
from tuplegate.data_plane.wire.dumps import replace_question
from tuplegate.data_plane.wire.flow import FAILED, HIDDEN, IDLE, IN_BLOCK, ClientMessages, EngineMessages, Flow, Parts
from tuplegate.data_plane.wire.messages import (
    BIND,
    BOUND,
    CLOSE,
    CLOSED,
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
from tuplegate.data_plane.wire.prepared_names import PreparedNames
from tuplegate.data_plane.wire.texts import Judged, judge_text
from tuplegate.engine import port
from tuplegate.http.exchange import Counts
from tuplegate.http.websocket import WebSocketConnection

_REFUSED: Final = b"tuplegate_refused_"
_REFUSED_DIGITS: Final = 32
_AT_ONCE: Final = 128
"""Messages that are judged before others get a turn."""
_LISTENING: Final = b"LISTEN\0"
_NOT_LISTENING: Final = b"UNLISTEN\0"
_IN_BLOCK_HINT: Final = "Send it as a simple query, without parameters, or run BEGIN and another statement first."
_BEGINS: Final = (QUERY, PARSE, BIND, FUNCTION)
_NOT_BEHIND: Final = "behind VACUUM, ANALYZE, CLUSTER and REINDEX nothing else runs up to the next Sync"
_NOT_SET_BACK: Final = "after a statement that works in steps, the session could not be set back to its isolation level"


# size: both directions share what is known of the connection.
class WireConnection:
    """A client whose key was accepted, joined to a connection of the engine. `token` is what it came with."""

    def __init__(
        self,
        websocket: WebSocketConnection,
        link: port.WireSession,
        identity: Identity,
        target: port.Target,
        usage: Counts,
        token: bytes,
        counts: WireCounts,
        bytes_max: int,
    ) -> None:
        self._websocket = websocket
        self._link = link
        self._admission = WireAdmission(link, identity, usage, counts)
        self.target = target
        self.token = token
        self._usage = usage
        self._counts = counts
        self._flow = Flow()
        self._client = ClientMessages(bytes_max)
        self._engine = EngineMessages(self._look)
        self._own_name = b"tuplegate_" + secrets.token_hex(8).encode()
        self._nothing = b"UNLISTEN tuplegate_" + secrets.token_hex(8).encode()
        """A statement that does nothing: nobody listens to that. Code can read it, so the name serves nothing else."""
        self._refused: dict[bytes, bytes] = {}
        """What the client is told, by the name that the engine refuses."""
        self._is_skipping = False
        """A message of the extended protocol was refused, and what follows it is not passed on."""
        self._hidden = 0
        """Answers to statements of the service's own that the client does not get."""
        self._parts = Parts()
        self._names = PreparedNames()
        self._judged: list[bytes] = []
        """What the engine gets next."""
        self._own: deque[OwnStatements] = deque()
        """Statements of the service's own that are not answered."""
        self._behind: tuple[bytes, ...] = ()
        """What is to be sent behind the client's statement: some of them."""
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
                for number, message in enumerate(self._client.feed(data), start=1):
                    if message[0] == TERMINATE:
                        await self._leave(message)
                    judged = await self._judge(message)
                    self._judged.append(judged)
                    if number % _AT_ONCE == 0:
                        await self._write_judged()
                        await asyncio.sleep(0)
                self._websocket.hold(self._client.held)
                await self._write_judged()
            data = await self._websocket.receive()
            if not data:
                return

    async def _leave(self, message: bytes) -> None:
        """Pass the client's last message on, and wait until the engine has answered what came before it."""
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
        """Return what the engine gets for a message."""
        kind = message[0]
        if self._is_skipping and kind != SYNC:
            return b""
        if self._names.has_any:
            self._count_parts()
        self._names.see(kind)
        try:
            if self._behind and kind in _BEGINS:
                raise WireError("0A000", _NOT_BEHIND)
            if kind == QUERY:
                message = await self._judge_query(message)
            elif kind == PARSE:
                await self._judge_parse(message)
            elif kind == BIND:
                message = await self._judge_bind(message)
            elif kind in (CLOSE, DESCRIBE, EXECUTE):
                await self._admission.admit_part(kind)
            elif kind == FUNCTION:
                await self._admission.admit(1)
            elif kind == SYNC:
                self._is_skipping = False
                await self._admission.admit_sync()
        except WireError as refusal:
            return self._refuse(kind, refusal) + (self._pass_sync(message) if kind == SYNC else b"")
        self._flow.sent(kind)
        self._parts.sent(kind)
        return message + self._set_back() if self._behind and kind in (QUERY, SYNC) else message

    def _set_back(self) -> bytes:
        """Return what sets back what was changed for a statement."""
        behind, self._behind = self._behind, ()
        return self._add_own(behind, must_succeed=True)

    async def _judge_query(self, message: bytes) -> bytes:
        text = message[5:-1]
        judged = judge_text(text)
        if self._is_way_out(judged):
            self._admission.count(1)
        else:
            await self._admission.admit(judged.begins)
            if judged.more:
                await self._admission.begin(judged.more)
        if not judged.has_no_bound:
            asked = replace_question(text)
            return message if asked is text else write_query(asked)
        if judged.has_steps and judged.is_alone and await self._is_idle():
            await self._leave_serializable()
            return message
        # Beside another statement it runs in one transaction, or not at all.
        self._hidden += 1
        return write_query(b"%b\n;%b" % (text, self._nothing))

    def _is_way_out(self, judged: Judged) -> bool:
        """Return whether the text ends a transaction that has failed: whoever has no quota left must get out of it."""
        return judged.only_ends and self._flow.status == FAILED and not self._flow.is_running

    async def _judge_parse(self, message: bytes) -> None:
        name, _, rest = message[5:].partition(b"\0")
        judged = judge_text(rest.partition(b"\0")[0])
        if self._is_way_out(judged):
            self._admission.waive()
        await self._admission.admit_part(PARSE)
        self._names.note_parse(name, judged)
        if self._names.has_any:
            self._count_parts()

    def _count_parts(self) -> None:
        """Count the parts of what begins now, so that something can be put between them."""
        if not self._flow.is_running:
            self._parts.begin()
            self._engine.shows_parts = True

    async def _judge_bind(self, message: bytes) -> bytes:
        """Return the message, and before it what keeps code from committing. A cursor that is made in a block does not
        outlive it, so it matters where the cursor is made."""
        await self._admission.admit_part(BIND)
        judged = self._names.find(message[5:].partition(b"\0")[2].partition(b"\0")[0])
        if judged is None:
            return message
        if not judged.has_no_bound:
            await self._admission.begin(judged.more)
            return message
        # What is under way could end the block.
        if self._flow.status == IN_BLOCK and not self._flow.has_statements:
            return message
        if self._parts.is_exact and judged.has_steps and self._flow.status == IDLE and not self._flow.has_statements:
            if not self._parts.has_bound:
                await self._write_judged()
                await self._leave_serializable()
                return message
        elif self._parts.is_exact and judged.is_code and self._link.blocks_pipelines:
            return self._begin_block() + message
        raise WireError(
            "0A000",
            "with the extended protocol, VACUUM, ANALYZE, CLUSTER and REINDEX must come first behind a Sync that is"
            " answered, CALL and DO behind one; before PostgreSQL 18 these need a transaction block",
            hint=_IN_BLOCK_HINT,
        )

    def _begin_block(self) -> bytes:
        """Return a statement that does nothing: up to the next Sync what follows it runs in a transaction block."""
        self._hidden += 1
        self._parts.sent_own()
        self._flow.sent(EXECUTE)
        return write_run(self._own_name, self._nothing)

    async def _is_idle(self) -> bool:
        """Return whether nothing of the client's is under way; what is the service's own is waited for."""
        if self._own:
            await self._write_judged()
            await self._own[-1].wait()
        return self._flow.status == IDLE and not self._flow.is_running

    async def _leave_serializable(self) -> None:
        """Change the session's isolation level for the statement that follows. Raises WireError where that fails."""
        statement = self._add_own(LEAVE_SERIALIZABLE, must_succeed=False)
        own = self._own[-1]
        self._tell_state()
        await self._link.write(statement)
        self._behind = return_to(await own.wait())

    def _add_own(self, statements: tuple[bytes, ...], *, must_succeed: bool) -> bytes:
        """Return messages with statements of the service's own, which are sent next."""
        self._own.append(OwnStatements(must_succeed=must_succeed))
        self._flow.sent(HIDDEN)
        self._engine.shows_parts = True
        self._engine.shows_rows = self._flow.hides
        return b"".join(write_run(self._own_name, statement) for statement in statements) + SYNC_MESSAGE

    def _refuse(self, kind: int, error: WireError) -> bytes:
        """Return what the engine refuses by itself, in place of a message, and note what the client is told then."""
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

    def _pass_sync(self, message: bytes) -> bytes:
        self._flow.sent(SYNC)
        self._parts.sent(SYNC)
        return message + self._set_back() if self._behind else message

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
        """Something has ended. What was sent behind it begins now, and has its own time."""
        self._link.note(port.WireState.IDLE if self._flow.status == IDLE else port.WireState.OPEN)

    def _look(self, kind: int, message: bytes) -> bytes | None:
        """See `flow.Look`."""
        if kind in (PARSED, BOUND, CLOSED):
            return b"" if self._parts.take(kind, hides=self._flow.hides) else None
        if self._flow.hides:
            return self._look_at_own(kind, message)
        if kind == READY:
            self._note_ready(message[5])
        elif kind == COPY_IN:
            self._flow.note_rows_wanted()
        elif kind == ERROR:
            self._flow.note_error()
            return self._look_at_error(message)
        elif self._hidden and message[5:] == _NOT_LISTENING:
            self._hidden -= 1
            return b""
        elif message[5:] == _LISTENING:
            self._link.note_listening()
        return None

    def _note_ready(self, status: int) -> None:
        self._flow.note_ready(status)
        self._engine.shows_rows = self._flow.hides
        self._tell_ready()
        self._parts.end()
        if not self._flow.is_running:
            self._refused.clear()
            self._hidden = 0

    def _look_at_own(self, kind: int, message: bytes) -> bytes | None:
        """Take a part of the answer to a statement of the service's own. The last words of the engine are passed on."""
        if kind == READY:
            own = self._own.popleft()
            failure = own.end()
            self._note_ready(message[5])
            if failure is not None and own.must_succeed:
                self.end(WireError("57P01", f"{_NOT_SET_BACK}: {failure.message}"), at_once=True)
        elif kind == ERROR and read_fields(message).get("V") in (b"FATAL", b"PANIC"):
            return self._look_at_error(message)
        else:
            self._own[0].take(kind, message)
        return b""

    def _look_at_error(self, message: bytes) -> bytes | None:
        self._usage.errors += 1
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


def write_last_word(error: WireError) -> bytes:
    return error.write("FATAL")


def write_greeting(greeting: bytes, key_data: bytes) -> bytes:
    """Return what a client is told once its key is accepted."""
    return write_message(ord("R"), struct.pack(">i", 0)) + greeting + key_data + write_message(READY, b"I")
