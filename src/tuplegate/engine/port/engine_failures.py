"""Everything that an engine raises. No exception names a driver."""

from tuplegate.engine.port.transactions import Ticket
from tuplegate.engine.port.work import Bounds
from tuplegate.protocol.answers import Notice
from tuplegate.protocol.errors import EngineFields


class EngineFailure(Exception):
    """Base of everything an engine raises. `on_replica`: a replica raised it. Its text is for the log."""

    on_replica = False

    @property
    def told(self) -> str:
        """Return the text that a client may read: no address, no role, no words of a library."""
        return str(self)


class StatementFailed(EngineFailure):
    """The engine refused the statement; nothing of it was applied.

    `never_ran` means that the engine found it wrong before it ran. `fields` are the further fields of the engine's
    error, if the failure is the engine's own.
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
        """Name the limit that was met, and how to change it."""
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
    """A statement of the service's own waited too long, usually for a lock; nothing of it was applied."""


class NoProgress(EngineFailure):
    """Work of the service's own made no progress for too long, and was ended; it may run a tenant's code."""


class CopyRefused(EngineFailure):
    """The statement wants to copy from or to the client."""


class EngineUnavailable(EngineFailure):
    """No connection could be had, or it was lost before anything could have been applied.

    `message` is the text for the client; `cause`, in the words of a library or of another engine, is only for the log.
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
    """Nothing can be committed just now, so the work was not begun; the message says why."""


class EngineBusy(EngineFailure):
    """The request cannot be served just now: a bound is reached, or other work on the database is in the way."""


class BadPosition(EngineFailure):
    """The text sent as a position is not one."""


class OutcomeUnknown(EngineFailure):
    """The connection was lost after the statement was sent: it may have been applied.

    Its outcome can be asked for later by its `id`, if it has one, or by its `ticket`.
    """

    def __init__(self, message: str, id: str | None = None, ticket: Ticket | None = None) -> None:
        super().__init__(message)
        self.id = id
        self.ticket = ticket
        self.mark = ""


class NotSupported(EngineFailure):
    """This engine, or this installation of it, cannot do the work; the message says what is missing."""


class AlreadyRunning(EngineFailure):
    """A database can have only one of these at a time, and one is running."""


class DumpFailed(EngineFailure):
    """The engine could not dump the database, or not completely."""

    def __init__(self, message: str, detail: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.detail = detail
        self.hint = hint


class MoveFailed(EngineFailure):
    """A database could not be brought to another engine; it stays where it was. `detail` has the engine's own words."""

    def __init__(self, message: str, detail: str | None = None) -> None:
        super().__init__(message)
        self.detail = detail


class DumpStopped(DumpFailed):
    """The service stops."""


class TransactionOver(EngineFailure):
    """The open transaction is over; nothing was run in it."""


class Superseded(EngineFailure):
    """Somebody else settled the promise of the transaction first; nothing of the transaction was applied."""


class BadUrl(Exception):
    """The URL of an engine cannot be used; the message says why, without a part of the URL."""


class EngineRefused(Exception):
    """The engine cannot be used; the message names everything that is missing."""
