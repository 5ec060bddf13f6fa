"""Judges a text of one client before it is sent, whichever protocol it comes in."""

from collections.abc import Mapping

from tuplegate.data_plane.wire.connection.unit import Unit
from tuplegate.data_plane.wire.flow import FAILED, Flow
from tuplegate.data_plane.wire.texts import Judged, check_reads, judge_text
from tuplegate.engine import port
from tuplegate.protocol.time_limits import WorkKind


class TextRules:
    """`bounds` are those of the client's statements."""

    def __init__(
        self,
        link: port.WireSession,
        flow: Flow,
        unit: Unit,
        bounds: Mapping[WorkKind, port.Bounds],
        may_write: bool,
    ) -> None:
        self._link = link
        self._flow = flow
        self._unit = unit
        self._bounds = bounds
        self._may_write = may_write

    def judge(self, text: bytes) -> Judged:
        """Raises WireError for a text that may not run."""
        judged = judge_text(text)
        if not self._may_write:
            check_reads(text, judged)
        self._unit.listening.judge(judged)
        self._link.bound(self._bounds[judged.kind])
        if judged.is_lazy and self._may_write:
            self._unit.make_lazy()
        return judged

    def is_way_out(self, judged: Judged) -> bool:
        """Return whether the text ends a transaction that has failed: whoever has no quota left must get out of it."""
        return judged.only_ends and self._flow.status == FAILED and not self._flow.is_running
