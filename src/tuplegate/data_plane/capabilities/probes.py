"""The forms of a probe. The modules beside this one have the tables of probes, by group.

A probe claims nothing by itself: it is a few statements and what they must return, and the engine's answers decide.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tuplegate.engine import port

Value = str | int | bool | None
Rows = tuple[tuple[str | None, ...], ...]


@dataclass(frozen=True, slots=True)
class Step:
    """A statement that must return `rows` (None: any), or fail with `sqlstate`."""

    sql: str
    rows: Rows | None = None
    sqlstate: str | None = None


does = Step
"""A statement that must succeed."""


def gives(sql: str, *rows: tuple[Value, ...]) -> Step:
    return Step(sql, rows=tuple(tuple(_text(value) for value in row) for row in rows))


def fails(sql: str, sqlstate: str) -> Step:
    return Step(sql, sqlstate=sqlstate)


def _text(value: Value) -> str | None:
    """Write the value as the engine does."""
    if isinstance(value, bool):
        return "t" if value else "f"
    return None if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Probe:
    """Steps in a scratch schema. They run in one transaction that is rolled back, unless they cannot.

    `extension` is created if the database lacks it. {ext} in a statement stands for its schema, so that the statement
    cannot use anything else.
    """

    name: str
    group: str
    title: str
    steps: tuple[Step, ...]
    extension: str | None = None
    rolled_back: bool = True

    @property
    def statements(self) -> list[str]:
        return [step.sql for step in self.steps]


@dataclass(frozen=True, slots=True)
class Move:
    """A step of one of the transactions of a race."""

    actor: str
    step: Step


@dataclass(frozen=True, slots=True)
class Race:
    """A history of concurrent transactions that the isolation level forbids.

    Every transaction begins at `isolation`. If all moves succeed and return the rows written here, the forbidden
    history has happened, and the level does not keep its promise.
    """

    name: str
    group: str
    title: str
    isolation: str
    setup: tuple[str, ...]
    history: tuple[Move, ...]

    @property
    def statements(self) -> list[str]:
        return [*self.setup, *(f"{move.actor}: {move.step.sql}" for move in self.history)]


@dataclass(frozen=True, slots=True)
class Observation:
    """The effect of one statement. `actor` names its transaction in a race."""

    sql: str
    rows: Rows | None
    error: str | None
    sqlstate: str | None
    expected: bool
    microseconds: int
    actor: str | None = None


@dataclass(frozen=True, slots=True)
class Probed:
    """The part of an engine that probes use."""

    queries: port.Queries
    transactions: port.Transactions
    sessions: port.Sessions


@dataclass(frozen=True, slots=True)
class Exercise:
    """A feature of the service beyond SQL, used through the port as any request would."""

    name: str
    group: str
    title: str
    statements: list[str]
    run: Callable[[Probed, str], Awaitable[list[Observation]]]


AnyProbe = Probe | Race | Exercise


def probe(name: str, group: str, title: str, *steps: Step, extension: str | None = None) -> Probe:
    return Probe(name, group, title, steps, extension)
