"""The parts of a connection's contract: commands and segments to send, and the failures that end them."""

from collections.abc import Callable, Sequence
from typing import Final

from psycopg import pq
from psycopg.pq.abc import PGresult

from tuplegate.direct_future import DirectFuture
from tuplegate.engine.port import Notice

_NOTICES_LENGTH_MAX: Final = 1 << 16
"""The bound on the characters of all notices of a segment; the notice that exceeds it is the last."""


class ConnectionLost(Exception):
    """The connection is gone; commands under way have no answer. `results` arrived before it went."""

    results: Sequence[PGresult] = ()


class RowsTooWide(ConnectionLost):
    """Rows that come together are larger than the service may hold of them; the connection was closed."""


class LoginRefused(ConnectionLost):
    """The server asked for a password and then refused: the password is wrong, or the login fails for another
    reason."""


class CopyStarted(Exception):
    """The server wants to copy from or to the client; the connection was closed."""


class Command:
    """One statement for the wire.

    With `chunk_rows`, its rows are handed over in chunks of that many instead of as one result. `name` is that of a
    prepared statement, or empty for the unnamed one: with a text, the command prepares it; without, it runs it, or
    describes it if `describe` is set. `portal` names a cursor to describe. `types` are those of its parameters; 0
    leaves one to the server. `begins` is false for commands that cannot begin a serializable transaction: they run
    inside of one, take no snapshot, or run at another level. `together` is the number of rows that libpq gathers before
    it hands any over, when the service cannot know how large they are.
    """

    def __init__(
        self,
        sql: bytes,
        params: Sequence[bytes | None] | None = None,
        chunk_rows: int = 0,
        *,
        describe: bool = False,
        portal: bytes = b"",
        begins: bool = True,
        name: bytes | None = None,
        types: Sequence[int] = (),
        together: int = 0,
    ) -> None:
        self.sql = sql
        self.params = params
        self.chunk_rows = chunk_rows
        self.describe = describe
        self.portal = portal
        self.begins = begins
        self.name = name
        self.types = types
        self.together = together or chunk_rows


BEGIN: Final = Command(b"BEGIN", begins=False)
COMMIT: Final = Command(b"COMMIT", begins=False)
ROLLBACK: Final = Command(b"ROLLBACK", begins=False)

# Where a connection stands. As plain numbers: comparing with a member of an enumeration takes three times as long.
IDLE: Final = int(pq.TransactionStatus.IDLE)
IN_BLOCK: Final = int(pq.TransactionStatus.INTRANS)
FAILED: Final = int(pq.TransactionStatus.INERROR)

DESCRIBE: Final = Command(b"", name=b"", describe=True, begins=False)
"""Asks for the placeholders and columns of the prepared statement that has no name."""


class Meter:
    """Counts the transactions that commands can begin, before they are sent; connections may share one."""

    @property
    def begun(self) -> int:
        """Return the number of transactions begun by all connections that are counted together."""
        return 0

    def count(self, begun: int) -> None:
        pass


OnRows = Callable[[PGresult, int], None]
"""Takes a chunk of rows, and the index of its command in the segment."""


def make_command(sql: str, params: Sequence[str | None], types: Sequence[int] = ()) -> Command:
    """Return the command for a statement of the service's own."""
    if any(param is not None and "\0" in param for param in params):
        raise ValueError("a parameter has a NUL, at which the engine would end it")
    return Command(sql.encode(), [None if p is None else p.encode() for p in params] or None, types=types)


class Segment:
    """The commands between two Syncs, and their results: one closing result each, not counting chunks of rows.

    Chunks are requested for one command at a time: libpq accepts that only for the command that it is reading.
    """

    def __init__(
        self, reply: DirectFuture[list[PGresult]], commands: Sequence[Command], on_rows: OnRows | None
    ) -> None:
        self.reply = reply
        self.commands = commands
        self.on_rows = on_rows
        self.ended = 0
        self.failure: Exception | None = None
        self.results: list[PGresult] = []
        self.notices: list[Notice] | None = None
        self.notices_left = _NOTICES_LENGTH_MAX

    @property
    def is_gathering(self) -> bool:
        """Return whether libpq is gathering several rows before it hands any over."""
        return self.ended < len(self.commands) and self.commands[self.ended].together > 1

    @property
    def is_single(self) -> bool:
        """Return whether libpq hands over each row by itself."""
        return self.ended < len(self.commands) and self.commands[self.ended].together == 1

    def take(self, chunk: PGresult) -> None:
        """Hand over a chunk of rows. A failure of the receiver is raised to the caller, and does not harm the
        connection."""
        if self.on_rows is None or self.failure is not None:
            return
        try:
            self.on_rows(chunk, len(self.results))
        except Exception as exc:  # noqa: BLE001 - it is raised where the segment is waited for
            self.failure = exc
