"""Records of the service as frozen dataclasses. Unknown fields are ignored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, TypeVar

from tuplegate.client.rows import Rows

_R = TypeVar("_R")


@dataclass(frozen=True)
class Transaction:
    """A committed transaction: the rows of each statement, and how it went."""

    id: str
    results: list[Rows]
    affected_rows: int
    attempts: int
    commit: str
    replayed: bool = False


@dataclass(frozen=True)
class Session:
    """A session. `token` is set only in the answer to a login, `key` and `current` only in a list: the id of its key,
    and whether it is the session that asks."""

    id: str
    organization: str | None = None
    database: str | None = None
    scopes: tuple[str, ...] = ()
    created_at: datetime | None = None
    expires_at: datetime | None = None
    token: str | None = field(default=None, repr=False)
    key: str | None = None
    current: bool | None = None


@dataclass(frozen=True)
class ConsoleCode:
    """A code that opens one session, in the console, until `expires_at`. `url` is where."""

    code: str = field(repr=False)
    expires_at: datetime | None = None
    url: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Database:
    id: str
    name: str
    state: str
    activity: str = "awake"
    default: bool = False
    delete_protection: bool = False
    size_bytes: int | None = None
    created_at: datetime | None = None
    engine: str | None = None


@dataclass(frozen=True)
class MovedDatabase(Database):
    """A database that was moved to another engine: how, and for how long requests for it were held at the end."""

    way: str | None = None
    held_ms: int | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Engine:
    """An engine that holds databases. If it has a `problem`, it cannot be used now."""

    name: str
    state: str
    weight: int = 1
    problem: str | None = None
    databases: int = 0
    size_bytes: int | None = None
    connections: int | None = None
    running: int | None = None
    connections_max: int | None = None


@dataclass(frozen=True)
class Key:
    """An API key. `key` is the key itself, set only when it was just created."""

    id: str
    name: str
    state: str
    hint: str | None = None
    scopes: tuple[str, ...] = ()
    database: str | None = None
    created_at: datetime | None = None
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    consistency: str = "serializable"
    key: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Organization:
    """An organization. `key` is its first admin key, set only when it was just created."""

    id: str
    name: str
    tier: str | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    created_at: datetime | None = None
    key: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Column:
    name: str
    type: str
    nullable: bool = True
    default: str | None = None
    primary_key: bool = False


@dataclass(frozen=True)
class Table:
    schema: str
    name: str
    kind: str
    columns: tuple[Column, ...] = ()
    row_estimate: int | None = None
    size_bytes: int | None = None


def make_record(kind: type[_R], answer: Mapping[str, Any]) -> _R:
    """Make a record from the JSON object of an answer."""
    known: dict[str, Any] = {}
    for item in fields(kind):  # type: ignore[arg-type]  # every record is a dataclass
        if answer.get(item.name) is not None:
            known[item.name] = _value(item.name, answer[item.name])
    return kind(**known)


def make_records(kind: type[_R], answers: Sequence[Mapping[str, Any]]) -> list[_R]:
    return [make_record(kind, answer) for answer in answers]


def _value(name: str, value: Any) -> Any:
    if name.endswith("_at") and isinstance(value, str):
        return datetime.fromisoformat(value)
    if name == "columns":
        return tuple(make_record(Column, column) for column in value)
    return tuple(value) if isinstance(value, list) else value
