"""Scopes and what each includes. Pure."""

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
    """The scopes that these give, those they include among them."""
    return frozenset().union(*(_INCLUDED[scope] for scope in scopes))


def covers(own: frozenset[Scope], wanted: frozenset[Scope]) -> bool:
    """Whether these scopes may be handed on by who has `own`."""
    return expand_scopes(wanted) <= expand_scopes(own)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a token stands for. `database` is the id of the one database it is bound to, or None for all of them.

    `session` is the id of the session where the token is one's, and `key` then the key that opened it.
    """

    key: str
    organization: str
    scopes: frozenset[Scope]
    database: str | None
    session: str | None = None
