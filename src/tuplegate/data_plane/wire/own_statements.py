"""Statements that the service itself sends over a client's connection, and whose answers the client does not get.

VACUUM, ANALYZE, REINDEX and CLUSTER begin a transaction for every table. Serializable ones would take the places in
which the engine remembers those of everybody, uncounted; at REPEATABLE READ they take none. So the session's level is
changed before such a statement, and set back behind it.
"""

import asyncio
from typing import Final

from tuplegate.data_plane.wire.messages import ERROR, ROW, WireError, read_fields, read_first_value

LEAVE_SERIALIZABLE: Final = b"SHOW default_transaction_isolation; SET default_transaction_isolation = 'repeatable read'"
"""Its row is the level that there was."""
_RETURN: Final = {
    level: b"SET default_transaction_isolation = '%b'" % level
    for level in (b"serializable", b"repeatable read", b"read committed", b"read uncommitted")
}


def return_to(level: bytes) -> bytes:
    """Return the statement that sets back the level."""
    return _RETURN[level]


class OwnStatement:
    """One such statement, until it is answered. `must_succeed`: where it fails, the session is of no use any more."""

    def __init__(self, *, must_succeed: bool) -> None:
        self.must_succeed = must_succeed
        self._value = b""
        self._failure: WireError | None = None
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self, kind: int, message: bytes) -> None:
        """Take a message of its answer."""
        if kind == ROW:
            self._value = read_first_value(message)
        elif kind == ERROR:
            fields = {name: value.decode("utf-8", "replace") for name, value in read_fields(message).items()}
            self._failure = WireError(fields.get("C", "XX000"), fields.get("M", ""))

    def end(self) -> WireError | None:
        """Note that the answer is whole. Return why the statement has failed, if it has."""
        if not self._answered.done():
            self._answered.set_result(None)
        return self._failure

    async def wait(self) -> bytes:
        """Return the first value of its last row. Raises WireError where it has failed."""
        await self._answered
        if self._failure is not None:
            raise self._failure
        return self._value
