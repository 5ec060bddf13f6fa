"""Decides how a statement runs, by its first word and by names in its text.

A statement that writes runs inside of a block: only there a cancel or a time limit is definite. A statement on its own
may have been applied although this engine says that it was cancelled. What changes definitions cannot always be in a
block, so it runs as it is, and what becomes of it when it is cancelled is unknown.
"""

import re
from enum import Enum, auto
from typing import Final

from tuplegate.engine import port
from tuplegate.engine.cockroach.pool import DatabaseState
from tuplegate.engine.libpq.commands import Command
from tuplegate.engine.libpq.connection import CHUNK_ROWS
from tuplegate.engine.libpq.leftovers import fold

_READERS: Final = frozenset({"select", "values", "table", "show", "explain", ""})
_WRITERS: Final = frozenset({"insert", "update", "delete", "upsert", "with"})
_WRITES: Final = re.compile(r"\b(?:insert|update|delete|upsert|into|nextval|setval|analyze|analyse)\b")
_REMOVERS: Final = frozenset({"delete", "drop", "truncate", "select", "show", "explain", "values", "table", ""})
"""First words of what a database that is full still takes."""
_DEFINERS: Final = frozenset({"create", "alter", "prepare", "explain"})
"""First words of what defines something, at once or when it is executed."""
_DEFINES: Final = re.compile(r"\b(?:create|alter)\b")
_COMMENT: Final = re.compile(r"/\*.*?\*/|--[^\n]*", re.S)
_RUNS_IN_READS: Final = re.compile(r"\bcreate\s+(?:(?:or|replace|temp|temporary|recursive)\s+)*(?:view|function)\b")
_KEEP_TYPES: Final = _READERS | _WRITERS

BEGIN_WRITING: Final = Command(b"BEGIN ISOLATION LEVEL SERIALIZABLE, READ WRITE", begins=False)
BEGIN_READING: Final = Command(b"BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY", begins=False)


class Kind(Enum):
    READS = auto()
    WRITES = auto()
    DEFINES = auto()
    """It changes definitions or settings, or is not known."""


def find_kind(statement: port.Statement) -> Kind:
    keyword = statement.keyword
    if keyword in _READERS or keyword == "with":
        return Kind.WRITES if _WRITES.search(fold(statement.sql)) else Kind.READS
    return Kind.WRITES if keyword in _WRITERS else Kind.DEFINES


def may_write(statement: port.Statement, state: DatabaseState) -> bool:
    """Return whether the statement, which changes no definitions, may change rows."""
    kind = find_kind(statement)
    return kind is Kind.WRITES or (kind is Kind.READS and state.functions_write)


def chunk_rows(statement: port.Statement, bounds: port.Bounds) -> int:
    """Return how many rows are handed over together, at most as many as are wanted and one more."""
    if find_kind(statement) is Kind.WRITES:
        return 1
    return CHUNK_ROWS if bounds.rows_max is None else min(CHUNK_ROWS, bounds.rows_max + 1)


def changes_types(statement: port.Statement) -> bool:
    return statement.keyword not in _KEEP_TYPES


def check_statement(full_at: int | None, target: port.Target, statement: port.Statement) -> None:
    """Raise where the statement may not run. `full_at` is the bound that the database has met."""
    _check_stored(statement)
    _check_room(full_at, target, statement)


def _check_stored(statement: port.Statement) -> None:
    """Raise where a definition stores what changes its session. It would run in texts that do not show it, and what it
    leaves there would meet the next request. The engine has no text that is made while it runs, so the name shows."""
    if statement.keyword not in _DEFINERS:
        return
    text = fold(statement.sql)
    if not _DEFINES.search(text):
        return
    draws = ("nextval" in text or "setval" in text) and _RUNS_IN_READS.search(_COMMENT.sub(" ", text))
    if draws or "set_config" in text:
        what = "draw numbers where it is read" if draws else "change settings (set_config)"
        raise port.StatementFailed(
            f"what is stored in a database of this engine cannot {what}; nothing was applied",
            sqlstate="0A000",
            hint="Do it in the statement itself.",
        )


def _check_room(full_at: int | None, target: port.Target, statement: port.Statement) -> None:
    """Raise where the database is full and the statement may need room."""
    if full_at is not None and target.may_write and statement.keyword not in _REMOVERS:
        raise port.StatementFailed(
            f"the database is larger than its limit of {full_at} bytes; nothing was applied",
            sqlstate="53100",
            hint="DELETE rows or DROP tables that are not needed.",
        )
