"""Kinds of work, and the time limit of each. Pure.

The first word of a statement and the requested form of its answer tell the kind. Each kind has two settings: the
default time, `KIND_timeout_ms`, and the longest that a request may ask for, `KIND_timeout_ms_max`.
"""

from enum import StrEnum
from typing import Final

_DEFINITIONS: Final = frozenset(
    {"alter", "analyse", "analyze", "cluster", "create", "drop", "refresh", "reindex", "repack", "vacuum"}
)
"""First words of statements that make, change or tidy up definitions: their time depends on the size of a table."""
_EXPORTED: Final = frozenset({"select", "table", "values", "with"})


class WorkKind(StrEnum):
    STATEMENT = "statement"
    STREAM = "stream"
    EXPORT = "export"
    DEFINITION = "definition"
    TRANSACTION = "transaction"


_NAMES: Final = {
    WorkKind.STATEMENT: "a statement",
    WorkKind.STREAM: "a stream",
    WorkKind.EXPORT: "an export",
    WorkKind.DEFINITION: "a definition",
    WorkKind.TRANSACTION: "a transaction",
}


class TimeLimit:
    """The time that work of a kind gets, and the most that a request may ask for."""

    def __init__(self, kind: WorkKind, default_ms: int, most_ms: int) -> None:
        self.kind = kind
        self.default_ms = default_ms
        self.most_ms = most_ms

    @property
    def setting(self) -> str:
        return f"{self.kind}_timeout_ms"

    def choose(self, asked_ms: int | None) -> int:
        """Return the time of a request that has asked for this."""
        return self.default_ms if asked_ms is None else min(asked_ms, self.most_ms)

    def describe(self, timeout_ms: int) -> str:
        """Name the origin of the limit, to follow a number of milliseconds."""
        if timeout_ms not in (self.default_ms, self.most_ms):
            return "its time limit: the timeout_ms of the request"
        return f"its time limit: that of {_NAMES[self.kind]} ({self.setting})"

    def suggest(self, timeout_ms: int) -> str:
        """Explain how work that was ended after this time can get more."""
        name, own = self.setting, ""
        if timeout_ms < self.most_ms:
            own = f"A request gets up to {self.most_ms} ms with timeout_ms. "
        else:
            name = f"{name}_max"
        return (
            f"{own}Who runs the service can raise {name}: of one organization with PATCH /v1/organizations/{{id}}, of a"
            " tier with the setting tiers, and of all with the setting of that name."
        )


def find_kind(keyword: str, *, is_streamed: bool = False) -> WorkKind:
    """Return the kind of a statement with this first word. COPY, which only the engine's own protocol has, carries rows
    as an export does."""
    if keyword in _DEFINITIONS:
        return WorkKind.DEFINITION
    if keyword == "copy":
        return WorkKind.EXPORT
    return WorkKind.STREAM if is_streamed else WorkKind.STATEMENT


def is_exported(keyword: str) -> bool:
    """Return whether a statement with this first word can be an export: it only reads."""
    return keyword in _EXPORTED
