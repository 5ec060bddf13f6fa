"""Transactions: the ways to commit one, the records that commit with it, and the means to ask for its outcome later."""

from collections.abc import Callable
from enum import Enum, StrEnum

import msgspec

from tuplegate.engine.port.work import Result
from tuplegate.protocol.answers import Notice


class Commit(StrEnum):
    """The way in which a transaction was committed."""

    TWO_PHASE = "two_phase"
    ONE_PHASE = "one_phase"
    ENGINE = "engine"
    """By the engine alone, whose own commit is agreed by several machines."""
    READ_ONLY = "read_only"


class TransactionResult(msgspec.Struct):
    """The results of a committed transaction.

    `number` is the engine's own number of a transaction that wrote, None for one that had nothing to commit. With
    several engines, `mark` identifies the one that gave the number. If another server can take an engine's place,
    `history` identifies the server that gave it, in the engine's own way (34 bits); otherwise it is 0.
    """

    results: list[Result]
    commit: Commit
    number: int | None
    attempts: int
    exec_us: int
    notices: list[Notice]
    reached: bytes | None = None
    on_replica: bool = False
    mark: str = ""
    history: int = 0


class Keep(msgspec.Struct, frozen=True):
    """An answer to record together with the data. `request` identifies the request's body; `body` makes the answer."""

    route: str
    key: str
    request: str
    body: Callable[[TransactionResult], bytes]


class KeptAnswer(msgspec.Struct, frozen=True):
    """An answer that was recorded."""

    request: str
    body: bytes


class KeptAnswers(msgspec.Struct, frozen=True):
    """The answer recorded under one key, and the bytes of all answers of the database.

    `undecided`: a transaction that would record an answer under this key may still commit.
    """

    found: KeptAnswer | None
    bytes: int
    undecided: bool = False


class Promise(msgspec.Struct, frozen=True):
    """The records to make if, and only if, the transaction commits: its id, its answer."""

    id: str | None = None
    keep: Keep | None = None


class Ticket(msgspec.Struct, frozen=True):
    """Lets the engine find the outcome of a transaction whose connection was lost.

    `word` has ten letters and digits, `number` 64 bits. Without a word, the number is the engine's own for a prepared
    transaction. `history` is as in a result.
    """

    number: int
    word: str = ""
    history: int = 0


class Outcome(Enum):
    """The outcome of a transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    IN_PROGRESS = "in_progress"
