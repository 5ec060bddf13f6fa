"""What the planes need of an engine, in words that any SQL engine can fill.

A plane gives a `Target` (which database, with which rights) and a `Statement`, and gets rows that are JSON already:
encoding a value needs the engine's knowledge of its types, so it is the engine's side that does it. Failures are the
exceptions below and nothing else; none of them names a driver.

The records made for every request are in `work`; the others are msgspec structs, which cost a tenth of a frozen
dataclass.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import msgspec

from tuplegate.engine.work import Access as Access
from tuplegate.engine.work import Bounds as Bounds
from tuplegate.engine.work import Result as Result
from tuplegate.engine.work import Statement as Statement
from tuplegate.engine.work import Target as Target
from tuplegate.protocol.answers import Notice as Notice
from tuplegate.protocol.messages import BigNumbers, RowMode


class Shape(msgspec.Struct, frozen=True, gc=False):
    """How rows are wanted."""

    row_mode: RowMode = "objects"
    big_numbers: BigNumbers = "number"


class Commit(Enum):
    """How a transaction was committed."""

    TWO_PHASE = "two_phase"
    ONE_PHASE = "one_phase"
    READ_ONLY = "read_only"


class TransactionResult(msgspec.Struct):
    """`number` is the engine's own for a transaction that wrote; None for one that had nothing to commit. `mark` tells
    which engine's, where there are several."""

    results: list[Result]
    commit: Commit
    number: int | None
    attempts: int
    exec_us: int
    notices: list[Notice]
    reached: bytes | None = None
    on_replica: bool = False
    mark: str = ""


class Keep(msgspec.Struct, frozen=True):
    """An answer to be recorded together with the data. `request` stands for what was asked, `body` makes the answer."""

    route: str
    key: str
    request: str
    body: Callable[[TransactionResult], bytes]


class Kept(msgspec.Struct, frozen=True):
    """An answer that was recorded."""

    request: str
    body: bytes


class KeptAnswers(msgspec.Struct, frozen=True):
    """What is recorded under one key, and how many bytes the answers of the whole database take."""

    found: Kept | None
    bytes: int


class Promise(msgspec.Struct, frozen=True):
    """What must be recorded if, and only if, the transaction commits: its id, its answer."""

    id: str | None = None
    keep: Keep | None = None


class Ticket(msgspec.Struct, frozen=True):
    """With what the engine finds out later what became of a transaction that it was lost with. `word` is of ten letters
    and digits, `number` of 64 bits."""

    number: int
    word: str


class Outcome(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    IN_PROGRESS = "in_progress"


class RowStream(Protocol):
    """An open stream: the columns are known, rows are still to come."""

    columns: bytes
    types: bytes
    reached: bytes | None
    """A position behind all that its rows show, where one is told; what it writes itself comes later."""
    on_replica: bool

    @property
    def row_count(self) -> int: ...

    @property
    def affected_rows(self) -> int: ...

    @property
    def notices(self) -> list[Notice]: ...

    @property
    def truncated(self) -> bool: ...

    @property
    def exec_us(self) -> int: ...

    def lines(self) -> AsyncGenerator[bytes, None]:
        """Blocks of rows, one row of JSON a line. It ends after the commit."""
        ...


class Weakness(msgspec.Struct, frozen=True):
    """Something that the engine leaves open to tenants, since nobody with enough rights has prepared it.

    `meaning` is what that means for tenants, `remedy` what an operator can do. `reaches_others`: beyond the
    organization's own databases.
    """

    name: str
    reaches_others: bool
    meaning: str
    remedy: str


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """What the engine is and whether it answers. With `warnings` it works, but not in full."""

    kind: str
    version: str
    checks: dict[str, str]
    warnings: dict[str, str] = field(default_factory=dict)
    replicated: bool = False
    """A commit waits until a standby has it, too."""

    @property
    def ok(self) -> bool:
        return all(state == "ok" for state in self.checks.values())


class Reply(msgspec.Struct, frozen=True):
    """What a statement of a session gave: values as the engine writes them."""

    rows: list[tuple[str | None, ...]]


class EngineSession(Protocol):
    """One connection, for the service's own use. Transactions are begun and ended by whoever has it."""

    async def run(self, sql: str, *params: str | None) -> Reply:
        """One statement, as it stands. After the session's time is over every one raises TimedOut."""
        ...


class Tables(msgspec.Struct, frozen=True):
    """The relations of a database as a JSON array in bytes; `truncated` where it was cut at its bound."""

    items: bytes
    truncated: bool


class Durability(msgspec.Struct, frozen=True):
    """Whether what is committed outlives a crash of the machine, whether a standby has it then, too, and the settings
    that say so."""

    durable: bool
    replicated: bool
    settings: dict[str, str]


class Headroom(msgspec.Struct, frozen=True):
    """How long a transaction may safely live at SERIALIZABLE, at the present rate; None: as long as it likes.

    `slots` is how many transactions the engine can check one against; `guarded` says that what outlives that is ended.
    """

    slots: int
    safe_seconds: float | None
    guarded: bool


class Measured(msgspec.Struct, frozen=True):
    """What the engine's side has done and is doing. `seconds` are cells by kind of work; `events` only grow, `gauges`
    are of this moment; both are named as in the table of metrics."""

    seconds: dict[str, list[int]]
    events: dict[str, int]
    gauges: dict[str, float]


class Snapshots(Protocol):
    """Reads that need not be serializable: each shows one moment, at or behind the position `after`.

    They are answered by a replica that has come so far, or else by the primary, as if there were no replica. What is no
    position of the engine's raises BadPosition.
    """

    def check(self, position: bytes) -> None:
        """Raises BadPosition."""
        ...

    async def query(
        self, target: Target, statement: Statement, shape: Shape, bounds: Bounds, after: bytes | None
    ) -> Result: ...

    async def transaction(
        self, target: Target, statements: list[Statement], shape: Shape, bounds: Bounds, after: bytes | None
    ) -> TransactionResult:
        """It is read-only."""
        ...

    def stream(
        self, target: Target, statement: Statement, shape: Shape, bounds: Bounds, after: bytes | None
    ) -> AbstractAsyncContextManager[RowStream]: ...


class Engine(Protocol):
    """The port."""

    @property
    def weaknesses(self) -> tuple[Weakness, ...]:
        """What was found open when the service started."""
        ...

    @property
    def snapshots(self) -> Snapshots: ...

    @property
    def tells_positions(self) -> bool:
        """Whether there are replicas, and so answers need positions."""
        ...

    async def position(self) -> bytes:
        """A position behind all that was answered so far; one that no replica reaches, where the engine tells none."""
        ...

    async def query(self, target: Target, statement: Statement, shape: Shape, bounds: Bounds) -> Result: ...

    async def transaction(
        self,
        target: Target,
        statements: list[Statement],
        shape: Shape,
        bounds: Bounds,
        *,
        read_only: bool,
        promise: Promise | None,
    ) -> TransactionResult:
        """All statements or none. A failure carries the index of the statement that failed."""
        ...

    async def begin_id(self, database: str, id: str) -> bool:
        """Takes an id that a client chose; false where it was used before."""
        ...

    async def abort_id(self, database: str, id: str) -> Outcome:
        """Makes the id aborted for good, unless it is committed; the final state."""
        ...

    async def find_id(self, database: str, id: str) -> Outcome | None:
        """The state of an id that a client chose; None where it was never seen."""
        ...

    async def find_kept(self, database: str, route: str, key: str) -> KeptAnswers: ...

    def pause(self, databases: frozenset[str]) -> None:
        """Lets go of these databases, and of no others: what is asked of them waits, or is refused as busy."""
        ...

    def bound_size(self, database: str, bytes_max: int | None) -> None:
        """How large the database may be; beyond it what takes more room is refused. None for any size."""
        ...

    def hold(self, name: str, database: str | None = None) -> AbstractAsyncContextManager[bool]:
        """Whether the name was free; it is held, by this installation alone, until the block is left.

        It is held on the engine of the database, where one is named.
        """
        ...

    async def outcome(self, target: Target, number: int, mark: str = "") -> Outcome | None:
        """What became of the transaction; None where the engine does not know it any more.

        `mark` is what its result came with. A number is told only of what is committed: so one that another engine has
        given is of a committed transaction.
        """
        ...

    async def outcome_of_lost(self, target: Target, ticket: Ticket, mark: str = "") -> Outcome:
        """The same by the ticket that an OutcomeUnknown came with."""
        ...

    def stream(
        self, target: Target, statement: Statement, shape: Shape, bounds: Bounds
    ) -> AbstractAsyncContextManager[RowStream]: ...

    async def health(self) -> EngineHealth: ...

    async def tables(self, target: Target, bounds: Bounds) -> Tables:
        """The relations that the target's role may see."""
        ...

    def session(self, target: Target, timeout_ms: int) -> AbstractAsyncContextManager[EngineSession]:
        """A new connection of the target's role, closed when the block is left; what it had not committed is gone."""
        ...

    def scratch(self, database: str) -> AbstractAsyncContextManager[str]:
        """The name of a new, empty schema that the database's writing role owns.

        It is dropped with all that is in it when the block is left; where the worker dies first, by the next one.
        """
        ...

    def dump(
        self, database: str, timeout_s: float, organization: str | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """All that the tenant has in the database, of one moment, as a file in the engine's own format.

        Whoever asks for an `organization` gets no more than its share of the places; None is the service itself.

        The block is entered when the first bytes are there, so most failures come before any. One that ends early
        raises: what was read so far is no file. Raises NotSupported, AlreadyRunning, EngineBusy, DumpFailed.
        """
        ...

    async def durability(self, target: Target) -> Durability: ...

    def serializable_headroom(self) -> Headroom: ...

    def measured(self) -> Measured: ...


class Databases(Protocol):
    """The databases that the engine holds, by the names it knows them under. Every step may be repeated."""

    def furnishing_of(self, name: str) -> str:
        """Stands for what of the service's own is in the database, if this version has made it."""
        ...

    async def create(self, name: str, *, for_copy: bool = False) -> None:
        """`for_copy` leaves out what a copy brings with it."""
        ...

    async def copy(self, source: str, name: str) -> None:
        """Raises EngineBusy where the source is not let go of in time."""
        ...

    async def silence(self, name: str) -> None:
        """Ends every statement of the tenant's in it and lets none begin: from now on nothing is committed there."""
        ...

    async def open(self, name: str) -> None:
        """Lets the tenant in again."""
        ...

    async def keep_outcomes(self, source: str, name: str) -> None:
        """What is known of the transactions of one database is known of the other's, too."""
        ...

    async def drop(self, name: str) -> None: ...

    async def drop_left_roles(self) -> None:
        """Removes what of dropped databases could not be removed with them."""
        ...

    async def sizes(self, names: Sequence[str]) -> dict[str, int]:
        """Bytes on disk, of those that can be measured."""
        ...

    async def take_over(self, other: "Databases", source: str, name: str) -> None:
        """Brings all that is in `source`, a silent database of `other`, into `name`, which is new and empty.

        With what is on record of its transactions. Raises NotSupported where this engine cannot hold the same, and
        MoveFailed where it was not all brought over.
        """
        ...

    def follow(self, other: "Databases", source: str, name: str) -> AbstractAsyncContextManager["Following"]:
        """The same of a source that is in use. The block is entered when all of one moment is here.

        Raises NotSupported where that cannot be done with the source, and MoveFailed.
        """
        ...

    async def stop_following(self, name: str, *, dumped: bool) -> None:
        """Removes what `follow` and `take_over` have made for a database that is in place, as a source or as a copy.

        It may be `dumped` just now. May be repeated.
        """
        ...

    async def forget_source(self, source: str) -> None:
        """Removes what `take_over` has made here for the time that it takes."""
        ...

    async def let_end(self, name: str, seconds: float) -> None:
        """Waits until nobody uses the database, at most for so long. Whoever does was asked to let go."""
        ...

    async def check_silent(self, name: str) -> None:
        """Raises EngineBusy where the tenant could still commit something in a database that was silenced."""
        ...

    async def analyze(self, name: str) -> None:
        """Lets the engine learn what is in a database that was filled at once."""
        ...

    async def load(self) -> "Load": ...


class AllDatabases(Databases, Protocol):
    """Those of all engines. Each step is done by the engine that the name is on."""

    def on(self, engine: str) -> Databases:
        """Those of one engine. Raises EngineUnavailable where the service knows none of that name."""
        ...

    def keep_up(self, source: str, name: str) -> AbstractAsyncContextManager["Following"]:
        """The same of a source that is in use: see `follow`."""
        ...

    async def bring(self, source: str, name: str) -> None:
        """All that is in `source`, which is silent, into `name`, which is on another engine: see `take_over`."""
        ...


class Following(Protocol):
    """A copy that is kept up to date."""

    async def catch_up(self) -> int:
        """Brings what was committed since the last time; how many changes."""
        ...

    async def finish(self) -> None:
        """Brings the rest; the source is silent. Raises MoveFailed where the copy has become another."""
        ...


class Load(msgspec.Struct, frozen=True):
    """What an engine is doing: connections that are open, those that run a statement, and how many there can be."""

    connections: int
    running: int
    connections_max: int


FIRST_ENGINE = "first"
"""The name of the engine that holds the catalog: the bundled one, or that of the setting `engine`."""


class EngineFailure(Exception):
    """Base of everything an engine raises."""


class StatementFailed(EngineFailure):
    """The engine refused the statement; nothing of it was applied. `never_ran`: it was found wrong before it ran."""

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


class ParseFailed(StatementFailed):
    """The text is not a statement of the engine's language."""


class MultipleStatements(StatementFailed):
    """The text holds more than one statement."""


class EmptyStatement(StatementFailed):
    """The text holds none."""


class ParameterMismatch(StatementFailed):
    """More or fewer parameters than placeholders, or one that cannot be written as the placeholder's type."""


class Conflict(StatementFailed):
    """A serialization conflict or deadlock that outlasted the retries."""


class TimedOut(StatementFailed):
    """The deadline passed; the statement was cancelled and is not applied."""


class Stopped(StatementFailed):
    """The service stops; the statement was cancelled and is not applied."""


class NotInTime(StatementFailed):
    """A statement of the service's own waited too long, as a rule for a lock; nothing of it was applied."""


class CopyRefused(EngineFailure):
    """The statement wants to copy from or to the client."""


class EngineUnavailable(EngineFailure):
    """No connection could be had, or it was lost before anything could have been applied."""


class EngineLost(EngineUnavailable):
    """The connection was lost after something was sent over it: a question can be asked again, a change may be done."""


class EngineBusy(EngineFailure):
    """The bounded queue for connections is full."""


class BadPosition(EngineFailure):
    """What was sent as a position is none."""


class OutcomeUnknown(EngineFailure):
    """The connection was lost after the statement was sent: it may have been applied.

    What became of it can be asked for later: by its `id`, where it has one, or by its `ticket`.
    """

    def __init__(self, message: str, id: str | None = None, ticket: "Ticket | None" = None) -> None:
        super().__init__(message)
        self.id = id
        self.ticket = ticket
        self.mark = ""


class NotSupported(EngineFailure):
    """This engine, or this installation of it, cannot do it; the message says what is missing."""


class AlreadyRunning(EngineFailure):
    """There is one at a time in a database, and somebody has it."""


class DumpFailed(EngineFailure):
    """The engine could not dump the database, or not to the end."""

    def __init__(self, message: str, detail: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.detail = detail
        self.hint = hint


class MoveFailed(EngineFailure):
    """A database could not be brought to another engine; it is where it was."""


class DumpStopped(DumpFailed):
    """The service stops."""


class Superseded(EngineFailure):
    """The promise of the transaction was settled by somebody else first; nothing of it was applied."""
