"""Transactions: how one was committed, what is recorded with it, and how to ask later what became of it."""

from collections.abc import Callable
from enum import Enum, StrEnum

import msgspec

from tuplegate.engine.port.work import Result
from tuplegate.protocol.answers import Notice


class Commit(StrEnum):
    """How a transaction was committed."""

    TWO_PHASE = "two_phase"
    ONE_PHASE = "one_phase"
    ENGINE = "engine"
    """By the engine alone, whose own commit is one of several machines that agree."""
    READ_ONLY = "read_only"


class TransactionResult(msgspec.Struct):
    """The results of a committed transaction.

    `number` is the engine's own number of a transaction that wrote, None for one that had nothing to commit. Where
    there are several engines, `mark` tells which one gave the number. Where another server can take an engine's place,
    `history` tells which of them gave it, in the engine's own way (34 bits); it is 0 elsewhere. `id` is that of a
    record which tells the outcome where the number would not; it is to be told instead.
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
    id: str | None = None


class Keep(msgspec.Struct, frozen=True):
    """An answer to record together with the data. `request` stands for the request's body, `body` makes the answer."""

    route: str
    key: str
    request: str
    body: Callable[[TransactionResult], bytes]


class KeptAnswer(msgspec.Struct, frozen=True):
    """An answer that was recorded."""

    request: str
    body: bytes


class KeptAnswers(msgspec.Struct, frozen=True):
    """The answer recorded under one key, and how many bytes the answers of the whole database take.

    `undecided`: a transaction that would record an answer under this key may still commit.
    """

    found: KeptAnswer | None
    bytes: int
    undecided: bool = False


class Promise(msgspec.Struct, frozen=True):
    """A record to be made if, and only if, the transaction commits: its id, its answer."""

    id: str | None = None
    keep: Keep | None = None


class Ticket(msgspec.Struct, frozen=True):
    """Lets the engine find out later what became of a transaction whose connection was lost.

    `word` has ten letters and digits, `number` 64 bits. One without a word is the engine's number of a transaction that
    is prepared. `history` is as that of a result.
    """

    number: int
    word: str = ""
    history: int = 0


class Outcome(Enum):
    """The outcome of a transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    IN_PROGRESS = "in_progress"
