"""Scopes, and which scopes each one includes. Pure."""

from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    READ = "read"
    WRITE = "write"
    ADMIN = "admin"
    OPERATOR = "operator"


_INCLUDED: dict[Scope, frozenset[Scope]] = {
    Scope.READ: frozenset({Scope.READ}),
    Scope.WRITE: frozenset({Scope.READ, Scope.WRITE}),
    Scope.ADMIN: frozenset({Scope.READ, Scope.WRITE, Scope.ADMIN}),
    Scope.OPERATOR: frozenset({Scope.OPERATOR}),
}


def expand_scopes(scopes: frozenset[Scope]) -> frozenset[Scope]:
    """Return these scopes and all that they include."""
    return frozenset().union(*(_INCLUDED[scope] for scope in scopes))


def covers(own: frozenset[Scope], wanted: frozenset[Scope]) -> bool:
    """Return whether the holder of `own` may grant the scopes `wanted`."""
    return expand_scopes(wanted) <= expand_scopes(own)


@dataclass(frozen=True, slots=True)
class Principal:
    """The key, organization, scopes and database that a token stands for. `database` is the id of the database that it
    is bound to, or None for all.

    For the token of a session, `session` is the id of the session and `key` the key that opened it.
    """

    key: str
    organization: str
    scopes: frozenset[Scope]
    database: str | None
    session: str | None = None
