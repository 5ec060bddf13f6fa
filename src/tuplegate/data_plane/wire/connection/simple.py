"""Simple queries: texts that the engine runs as they come, with any number of statements."""

from typing import Final

from tuplegate.data_plane.wire.admission import WireAdmission
from tuplegate.data_plane.wire.connection.outgoing import Outgoing
from tuplegate.data_plane.wire.connection.text_rules import TextRules
from tuplegate.data_plane.wire.connection.unit import Rows, Unit
from tuplegate.data_plane.wire.dumps import replace_question
from tuplegate.data_plane.wire.flow import IN_BLOCK
from tuplegate.data_plane.wire.listening import SYNCHRONOUS, Place
from tuplegate.data_plane.wire.messages import WireError, write_query
from tuplegate.data_plane.wire.texts import Judged

_NOT_LAZILY: Final = (
    "in a session that has named synchronous_commit, the end of a transaction comes in a text of its own"
)


class SimpleQueries:
    """`hidden`: so many texts have statements of the service's own at their end, whose answers the client does not
    get."""

    def __init__(self, out: Outgoing, unit: Unit, rules: TextRules, admission: WireAdmission) -> None:
        self._out = out
        self._unit = unit
        self._rules = rules
        self._admission = admission
        self.hidden = 0

    async def judge(self, message: bytes) -> bytes:
        """Return the bytes for the engine in place of a Query. Raises WireError if it is to be refused."""
        unit, text = self._unit, message[5:-1]
        judged = self._rules.judge(text)
        if self._rules.is_way_out(judged):
            self._admission.count(1)
            return message
        if judged.may_end and unit.is_lazy:
            await self._commit_synchronously(judged)
        await self._admission.admit(judged.begins)
        if judged.more:
            await self._admission.begin(judged.more)
        if judged.has_steps and judged.is_alone and await self._out.is_idle():
            await unit.leave_serializable()
            unit.unlisten_behind(in_block=False)
            return message
        in_block = unit.is_in_block
        place = unit.listening.place_behind_text(judged, in_block=in_block)
        if place is Place.BEHIND_ROWS:
            await self._out.settle()
            unit.rows = Rows.AWAITED_BEHIND_END if judged.may_end else Rows.AWAITED
        elif place is Place.BEHIND:
            unit.unlisten_behind(in_block=False)
        asked = replace_question(text)
        if judged.has_no_bound or (judged.takes_more and unit.is_lazy):
            # Beside another statement, code runs in one transaction, and what works in steps not at all.
            self.hidden += 1
            return write_query(b"\n;".join((asked, *unit.inside)))
        return message if asked is text else write_query(asked)

    async def _commit_synchronously(self, judged: Judged) -> None:
        """Have a commit wait for the disk that comes next. Raises WireError where it does not come alone."""
        if not judged.only_ends:
            raise WireError("0A000", _NOT_LAZILY, hint="Send COMMIT and END in texts of their own.")
        await self._out.settle()
        if self._out.flow.status == IN_BLOCK:
            await self._out.run_own((SYNCHRONOUS,))
