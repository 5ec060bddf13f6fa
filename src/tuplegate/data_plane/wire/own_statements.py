"""Statements that the service itself sends over a client's connection, without their answers reaching the client.

VACUUM, ANALYZE, REINDEX and CLUSTER begin a transaction for every table. Serializable ones would fill the engine's
memory of serializable transactions, uncounted; at REPEATABLE READ they take no place in it. So the session's level is
changed before such a statement, and set back after it. They are sent in the extended protocol: a simple query would
drop the client's unnamed statement.
"""

import asyncio
from typing import Final

from tuplegate.data_plane.wire.messages import ERROR, ROW, WireError, read_fields, read_first_value

LEAVE_SERIALIZABLE: Final = (
    b"SHOW default_transaction_isolation",
    b"SET default_transaction_isolation = 'repeatable read'",
)
"""The row that it returns is the previous level."""
_RETURN: Final = {
    level: (b"SET default_transaction_isolation = '%b'" % level,)
    for level in (b"serializable", b"repeatable read", b"read committed", b"read uncommitted")
}


def return_to(level: bytes) -> tuple[bytes, ...]:
    """Return the statements that set back the level."""
    return _RETURN[level]


class OwnStatements:
    """Several such statements in one transaction, until they are answered. `must_succeed`: if they fail, the session is
    useless."""

    def __init__(self, *, must_succeed: bool) -> None:
        self.must_succeed = must_succeed
        self._value = b""
        self._failure: WireError | None = None
        self._is_answered = False
        self._answered: asyncio.Future[None] | None = None
        """Made when somebody waits."""

    def take(self, kind: int, message: bytes) -> None:
        """Take a message of the answer."""
        if kind == ROW:
            self._value = read_first_value(message)
        elif kind == ERROR:
            fields = {name: value.decode("utf-8", "replace") for name, value in read_fields(message).items()}
            self._failure = WireError(fields.get("C", "XX000"), fields.get("M", ""))

    def end(self) -> WireError | None:
        """Note that the answer is complete. Return the reason if they have failed."""
        self._is_answered = True
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(None)
        return self._failure

    async def _see_answered(self) -> None:
        if not self._is_answered:
            if self._answered is None:
                self._answered = asyncio.get_running_loop().create_future()
            await self._answered

    async def wait_for_any(self) -> bytes:
        """Return the first value of the last row, even if something failed after it."""
        await self._see_answered()
        return self._value

    async def wait(self) -> bytes:
        """Return the first value of the last row. Raises WireError if they have failed."""
        await self._see_answered()
        if self._failure is not None:
            raise self._failure
        return self._value
