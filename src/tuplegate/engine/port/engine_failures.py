"""Everything that an engine raises. No exception names a driver."""

from tuplegate.engine.port.transactions import Ticket
from tuplegate.engine.port.work import Bounds
from tuplegate.protocol.answers import Notice
from tuplegate.protocol.errors import EngineFields


class EngineFailure(Exception):
    """Base of everything an engine raises. `on_replica`: it is a replica's. Its text is for the log."""

    on_replica = False

    @property
    def told(self) -> str:
        """Return what a client may read of it: no address, no role, no words of a library."""
        return str(self)


class StatementFailed(EngineFailure):
    """The engine refused the statement; nothing of it was applied.

    `never_ran` means that the engine found it wrong before it ran. `fields` are the rest of what the engine said, where
    the failure is the engine's own.
    """

    def __init__(
        self,
        message: str,
        *,
        sqlstate: str | None,
        position: int | None = None,
        detail: str | None = None,
        hint: str | None = None,
        context: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.sqlstate = sqlstate
        self.position = position
        self.detail = detail
        self.hint = hint
        self.context = context
        self.never_ran = False
        self.statement: int | None = None
        self.exec_us = 0
        self.attempts = 1
        self.notices: list[Notice] = []
        self.fields: EngineFields | None = None


class ParseFailed(StatementFailed):
    """The text is not a statement of the engine's language."""


class MultipleStatements(StatementFailed):
    """The text holds more than one statement."""


class EmptyStatement(StatementFailed):
    """The text holds no statement."""


class ParameterMismatch(StatementFailed):
    """More or fewer parameters than placeholders, or one that cannot be written as the placeholder's type."""


class Conflict(StatementFailed):
    """A serialization conflict or deadlock that outlasted the retries."""


class TimedOut(StatementFailed):
    """The deadline passed; the statement was cancelled and is not applied."""

    def __init__(self, bounds: Bounds) -> None:
        """Say which of the limits it was, and how to change that."""
        timeout_ms, limit = bounds.timeout_ms, bounds.limit
        named = "its time limit" if limit is None else limit.describe(timeout_ms)
        super().__init__(
            f"the statement was cancelled after {timeout_ms} ms, {named}",
            sqlstate="57014",
            hint=None if limit is None else limit.suggest(timeout_ms),
        )


class Stopped(StatementFailed):
    """The service stops; the statement was cancelled and is not applied."""


class NotInTime(StatementFailed):
    """A statement of the service's own waited too long, as a rule for a lock; nothing of it was applied."""


class NoProgress(EngineFailure):
    """Work of the service's own, which may run code of a tenant's, came no further for too long, and was ended."""


class CopyRefused(EngineFailure):
    """The statement wants to copy from or to the client."""


class EngineUnavailable(EngineFailure):
    """No connection could be had, or it was lost before anything could have been applied.

    `message` is what a client is told; `cause`, in the words of a library or of another engine, is only for the log.
    """

    def __init__(self, message: str, cause: object = "") -> None:
        super().__init__(f"{message}: {cause}" if str(cause) else message)
        self.message = message

    @property
    def told(self) -> str:
        return self.message


class EngineLost(EngineUnavailable):
    """The connection was lost after something was sent over it: a question can be asked again, a change may be done."""


class CommitsRefused(EngineUnavailable):
    """Nothing can be committed just now, so it was not begun; the message says why."""


class EngineBusy(EngineFailure):
    """The bounded queue for connections is full."""


class BadPosition(EngineFailure):
    """The text sent as a position is not one."""


class OutcomeUnknown(EngineFailure):
    """The connection was lost after the statement was sent: it may have been applied.

    Its outcome can be asked for later by its `id`, where it has one, or by its `ticket`.
    """

    def __init__(self, message: str, id: str | None = None, ticket: Ticket | None = None) -> None:
        super().__init__(message)
        self.id = id
        self.ticket = ticket
        self.mark = ""


class NotSupported(EngineFailure):
    """This engine, or this installation of it, cannot do it; the message says what is missing."""


class AlreadyRunning(EngineFailure):
    """A database has one of these at a time, and one is running."""


class DumpFailed(EngineFailure):
    """The engine could not dump the database, or not to the end."""

    def __init__(self, message: str, detail: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.detail = detail
        self.hint = hint


class MoveFailed(EngineFailure):
    """A database could not be brought to another engine; it is where it was. `detail` has the engine's own words."""

    def __init__(self, message: str, detail: str | None = None) -> None:
        super().__init__(message)
        self.detail = detail


class DumpStopped(DumpFailed):
    """The service stops."""


class TransactionOver(EngineFailure):
    """The open transaction is over; nothing was run in it."""


class Superseded(EngineFailure):
    """The promise of the transaction was settled by somebody else first; nothing of it was applied."""


class BadUrl(Exception):
    """The URL of an engine cannot be used; the message, which repeats nothing of it, says why."""


class EngineRefused(Exception):
    """The engine cannot be used; the message names everything that is missing."""
