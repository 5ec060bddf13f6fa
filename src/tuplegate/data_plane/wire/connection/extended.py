"""The extended protocol: statements that are parsed, bound and executed one by one, up to a Sync."""

from typing import Final

from tuplegate.data_plane.wire.admission import WireAdmission
from tuplegate.data_plane.wire.connection.outgoing import Outgoing
from tuplegate.data_plane.wire.connection.text_rules import TextRules
from tuplegate.data_plane.wire.connection.unit import Unit
from tuplegate.data_plane.wire.flow import FAILED, IDLE, IN_BLOCK
from tuplegate.data_plane.wire.listening import Place
from tuplegate.data_plane.wire.messages import BIND, CLOSE, DESCRIBE, EXECUTE, PARSE, WireError

_AFTER_SYNC: Final = "a statement that ends a transaction was prepared behind a Sync whose answer is still to come"
_IN_BLOCK_HINT: Final = "Send it as a simple query, without parameters, or run BEGIN and another statement first."


class ExtendedQueries:
    """`blocks_pipelines` is the port's."""

    def __init__(
        self, out: Outgoing, unit: Unit, rules: TextRules, admission: WireAdmission, blocks_pipelines: bool
    ) -> None:
        self._out = out
        self._unit = unit
        self._rules = rules
        self._admission = admission
        self._blocks_pipelines = blocks_pipelines

    async def judge(self, kind: int, message: bytes) -> bytes:
        """Return the bytes for the engine in place of a Parse, Bind, Describe, Execute or Close. Raises WireError
        if it is refused."""
        if kind == PARSE:
            await self._judge_parse(message)
        elif kind == BIND:
            message = await self._judge_bind(message)
        elif self._admission.must_pay(kind):
            await self._admission.admit(1)
        if kind == EXECUTE:
            return self._unlisten_behind_execute(message)
        if kind != CLOSE:
            self._unit.listening.sent(kind)
        return message

    async def judge_sync(self, message: bytes) -> bytes:
        """Return the bytes for the engine in place of a Sync: first UNLISTEN, if a statement ran that can listen."""
        await self._admission.admit_sync()
        unit = self._unit
        listening, began_in = unit.listening, unit.began_in
        place = listening.place_in_unit(in_block=began_in == IN_BLOCK, has_failed=began_in == FAILED)
        if place is not Place.NOWHERE:
            if unit.is_lazy and self._out.parts.is_exact and not unit.behind:
                message = unit.make_inside() + message
            unit.unlisten_behind(in_block=False)
        if place is not Place.NOWHERE or not listening.awaits_rows:
            listening.ended()
        return message

    async def _judge_parse(self, message: bytes) -> None:
        name, _, rest = message[5:].partition(b"\0")
        judged = self._rules.judge(rest.partition(b"\0")[0])
        if judged.copies and self._out.flow.has_asked:
            await self._out.settle()
        if self._rules.is_way_out(judged):
            self._admission.waive()
        await self._admission.admit_part(PARSE)
        self._unit.names.note_parse(name, judged)
        self._unit.listening.note_parse(name, judged)

    async def _judge_bind(self, message: bytes) -> bytes:
        """Return the message, and before it what keeps code from committing. A cursor that is made in a block does not
        outlive it, so it matters where the cursor is made."""
        if self._admission.must_pay(BIND):
            await self._admission.admit(1)
        out, unit = self._out, self._unit
        portal, _, rest = message[5:].partition(b"\0")
        name = rest.partition(b"\0")[0]
        unit.listening.note_bind(portal, name)
        judged = unit.names.find(name)
        if judged is None:
            return message
        if not judged.has_no_bound:
            await self._admission.begin(judged.more)
            return message
        # What is under way could end the block.
        if unit.is_in_block:
            return message
        flow, parts = out.flow, out.parts
        if parts.is_exact and judged.has_steps and flow.status == IDLE and not flow.has_statements:
            if not parts.has_bound:
                await out.write()
                await unit.leave_serializable()
                return message
        elif parts.is_exact and judged.is_code and self._blocks_pipelines:
            # Up to the next Sync what follows another statement runs in a transaction block.
            flow.sent(EXECUTE)
            return unit.make_inside() + message
        raise WireError(
            "0A000",
            "with the extended protocol, VACUUM, ANALYZE, CLUSTER and REINDEX must come first behind a Sync that is"
            " answered, CALL and DO behind one; before PostgreSQL 18 these need a transaction block",
            hint=_IN_BLOCK_HINT,
        )

    def _unlisten_behind_execute(self, message: bytes) -> bytes:
        """Return an Execute, with UNLISTEN behind it where it may have ended the transaction: the engine would read
        notifications while it waits for the next message."""
        unit, listening = self._unit, self._unit.listening
        listening.sent(EXECUTE)
        if not listening.can_end or unit.behind or listening.is_copy(message[5:].partition(b"\0")[0]):
            return message
        if not self._out.parts.is_exact:
            raise WireError("0A000", _AFTER_SYNC, hint="Wait for that answer, or send it as a simple query.")
        self._out.flow.sent(EXECUTE)
        listening.put_inside()
        if unit.began_in == FAILED:
            return message + unit.make_inside()
        # Also before it: what came earlier must not have listened when this commits, and something behind it fails.
        return unit.make_inside() + message + unit.make_inside()


PARTS: Final = (PARSE, BIND, DESCRIBE, EXECUTE, CLOSE)
"""The messages of this protocol, but for Sync and Flush."""
