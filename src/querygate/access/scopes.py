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


def effective(scopes: frozenset[Scope]) -> frozenset[Scope]:
    """The scopes that these give, those they include among them."""
    return frozenset().union(*(_INCLUDED[scope] for scope in scopes))


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a token stands for. `database` is the id of the one database it is bound to, or None for all of them."""

    key_id: str
    organization: str
    scopes: frozenset[Scope]
    database: str | None
