"""Keeps a session from listening unseen. Pure.

Reading notifications is a transaction of the engine's own, which begins whenever another session notifies, and takes a
place among the serializable ones if that is the session's default. So a session that listens waits at REPEATABLE READ,
and gets its own level back for each message of its client (`connection/unit.py`). All others must not listen. Code can
do so without any text that shows it, also while a transaction commits. So UNLISTEN follows the statements of such a
session, in a transaction of its own, and one more is counted: the engine can read notifications once before it.
"""

from enum import Enum
from typing import Final

from tuplegate.data_plane.wire.messages import COPY_DONE, COPY_FAIL, EXECUTE, WireError
from tuplegate.data_plane.wire.texts import Judged

UNLISTEN: Final = b"UNLISTEN *"
READ_ONLY: Final = b"SET default_transaction_read_only = on"
"""Sent along if the client may only read: the next transaction begins read-only again, whatever this one has set."""
SYNCHRONOUS: Final = b"SET synchronous_commit = on"
"""Sent along in a session whose texts name that setting: the commit waits for the disk."""
_ONLY_COPY: Final = "beside COPY … FROM STDIN no other statement is run up to the Sync behind its rows"
_COPY_ALONE: Final = "a text can have COPY … FROM STDIN only once"
_NO_COPY: Final = "a session that listens cannot copy rows from its client"
_NO_COPY_HINT: Final = "Use another connection for COPY … FROM STDIN."


class Place(Enum):
    """The place for UNLISTEN."""

    NOWHERE = "nothing was run that could listen"
    BEHIND = "behind it"
    BEHIND_ROWS = "behind the rows that it takes"


class Listening:
    """The facts about a session that this needs. `is_on`: it may listen, since its client has said so. `can_end`: a
    statement was prepared that ends a transaction; any executed statement can be that one, whatever its name."""

    def __init__(self) -> None:
        self.is_on = False
        self.can_end = False
        self._is_due = False
        """A message came since the last Sync, or UNLISTEN, that can run code."""
        self._has_executed = False
        self._copy: bytes | None = None
        """The name of a statement for COPY … FROM STDIN that was prepared since the last Sync."""
        self.awaits_rows = self._rows_have_ended = False
        """A COPY was run, and nothing is put behind it yet: its rows must come first; and whether they have ended."""
        self._portal = b""
        """Of that statement, if it is bound."""

    def judge(self, judged: Judged) -> None:
        """Note a text before it is sent. Raises WireError if it may not run in this session."""
        self.is_on = self.is_on or judged.listens
        if self.is_on and judged.copies:
            raise WireError("0A000", _NO_COPY, hint=_NO_COPY_HINT)
        if judged.copies > 1 and not judged.is_alone:
            raise WireError("0A000", _COPY_ALONE)

    # -- the extended protocol ------------------------------------------------------------------------------------

    def note_parse(self, name: bytes, judged: Judged) -> None:
        self.can_end = self.can_end or judged.ends
        if judged.copies and not judged.ends:
            self._copy = name

    def note_bind(self, portal: bytes, name: bytes) -> None:
        """Note a Bind. While rows are copied nothing can be sent behind it, so a COPY must be alone."""
        if self._copy is not None:
            if name != self._copy:
                raise WireError("0A000", _ONLY_COPY)
            self.awaits_rows = True
            self._portal = portal

    def is_copy(self, portal: bytes) -> bool:
        """Return whether an Execute runs a COPY. Raises WireError if another one runs beside a COPY."""
        if self._copy is None:
            return False
        if not self.awaits_rows or portal != self._portal:
            raise WireError("0A000", _ONLY_COPY)
        return True

    def sent(self, kind: int) -> None:
        """Note a message between two Syncs, except for Close."""
        if kind in (COPY_DONE, COPY_FAIL):
            self._rows_have_ended = True
        else:
            self._is_due = True
            self._has_executed = self._has_executed or kind == EXECUTE

    def place_in_unit(self, *, in_block: bool, has_failed: bool) -> Place:
        """Return the place of UNLISTEN before or behind a Sync. `in_block`: all of the unit is in an open transaction
        block; `has_failed`: and that has failed."""
        is_due = self._is_due or (self.can_end and self._has_executed)
        if self.is_on or not is_due or (in_block and not self.can_end) or (has_failed and not self._has_executed):
            return Place.NOWHERE
        return Place.BEHIND if self._copy is None or self._rows_have_ended else Place.NOWHERE

    def ended(self) -> None:
        """Note that UNLISTEN was sent, or that nothing is left that could listen."""
        self._is_due = self._has_executed = self._rows_have_ended = self.awaits_rows = False
        self._copy = None

    def put_inside(self) -> None:
        """Note that UNLISTEN was sent behind an Execute, and that others may follow."""
        self._is_due = False

    # -- a text ---------------------------------------------------------------------------------------------------

    def place_behind_text(self, judged: Judged, *, in_block: bool) -> Place:
        if self.is_on or judged.is_inert or (in_block and not judged.may_end):
            return Place.NOWHERE
        return Place.BEHIND_ROWS if judged.copies else Place.BEHIND
