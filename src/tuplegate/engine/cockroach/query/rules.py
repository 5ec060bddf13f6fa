"""Decides how a statement runs, by its first word and by names in its text.

A statement that writes runs in a block: only there is a cancel or a time limit definite. Outside a block it may have
been applied although this engine says that it was cancelled. A change of definitions cannot always be in a block, so it
runs without one. Its commit follows its answer: so if the answer is a cancel, the definition is undone
(`undoes_cancelled`). The outcome of other cancelled statements is unknown.
"""

import re
from enum import Enum, auto
from typing import Final

from tuplegate.engine import port
from tuplegate.engine.cockroach.dialect.texts import find_names, fold, list_words
from tuplegate.engine.cockroach.pools.pool import DatabaseState
from tuplegate.engine.libpq.connections.commands import Command
from tuplegate.engine.libpq.connections.connection import CHUNK_ROWS
from tuplegate.engine.sql.facts import Leftovers
from tuplegate.protocol.statements import skip_blank

READERS: Final = frozenset({"select", "values", "table", "show", "explain"})
WRITERS: Final = frozenset({"insert", "update", "delete", "upsert", "with"})
_WRITES: Final = re.compile(r"\b(?:insert|update|delete|upsert|into|nextval|setval|analyze|analyse)\b")
_KEEP_TYPES: Final = READERS | WRITERS | {""}

_DEFINERS: Final = frozenset({"create", "alter", "drop"})
_DEFINED: Final = frozenset({"table", "index", "view", "sequence", "schema", "type"})
_MODIFIERS: Final = frozenset(
    {"temp", "temporary", "local", "global", "unlogged", "unique", "inverted", "materialized"}
)

_MOVES_SEQUENCES: Final = frozenset({"nextval", "setval", "insert", "update", "upsert", "delete", "into"})
_PLAIN: Final = frozenset({"select", "insert", "update", "delete", "upsert", "values", "table"})
_LONG: Final = 10_000
"""A text of this length or more is not searched for names: a reset takes less time."""

BEGIN_WRITING: Final = Command(b"BEGIN ISOLATION LEVEL SERIALIZABLE, READ WRITE", begins=False)
BEGIN_READING: Final = Command(b"BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY", begins=False)


class Kind(Enum):
    READS = auto()
    WRITES = auto()
    DEFINES = auto()
    """Changes definitions or settings, or has an unknown first word."""


def find_kind(statement: port.Statement) -> Kind:
    keyword = statement.keyword
    if keyword in READERS or keyword == "with" or (not keyword and _is_bracketed(statement.sql)):
        return Kind.WRITES if _WRITES.search(fold(statement.sql)) else Kind.READS
    return Kind.WRITES if keyword in WRITERS else Kind.DEFINES


def _is_bracketed(sql: str) -> bool:
    return sql.startswith("(", skip_blank(sql, semicolons=True))


def may_write(statement: port.Statement, state: DatabaseState) -> bool:
    """Return whether the statement may change rows; it is known not to change definitions."""
    kind = find_kind(statement)
    return kind is Kind.WRITES or (kind is Kind.READS and state.functions_write)


def chunk_rows(statement: port.Statement, bounds: port.Bounds) -> int:
    """Return the number of rows to hand over together: one for a statement that writes, and never more than one beyond
    `rows_max`."""
    if find_kind(statement) is Kind.WRITES:
        return 1
    return CHUNK_ROWS if bounds.rows_max is None else min(CHUNK_ROWS, bounds.rows_max + 1)


def undoes_cancelled(statement: port.Statement) -> bool:
    """Return whether nothing of the statement is applied if the engine answers it with a cancel.

    The engine commits a statement without a block after its answer (at the Sync), and no cancel reaches that. This does
    not hold for statements that commit while they run, as EXECUTE and CALL may, or that work outside of their
    transaction, as CREATE STATISTICS does.
    """
    if statement.keyword not in _DEFINERS:
        return False
    words = [word for word in list_words(statement.sql)[1:] if word not in _MODIFIERS]
    return bool(words) and words[0] in _DEFINED


def changes_types(statement: port.Statement) -> bool:
    return statement.keyword not in _KEEP_TYPES


def find_leftovers(statement: port.Statement, changing: frozenset[str]) -> Leftovers:
    """Return the leftovers of the statement on its connection: anything, unless its first word and all names in its
    text are known to leave nothing. `changing` has the names that may leave something."""
    sql, keyword = statement.sql, statement.keyword
    if len(sql) > _LONG or (keyword not in _PLAIN and (keyword or not _is_bracketed(sql))):
        return Leftovers.ANYTHING
    names = find_names(sql)
    if not names.isdisjoint(changing):
        return Leftovers.ANYTHING
    if keyword not in WRITERS and names.isdisjoint(_MOVES_SEQUENCES):
        return Leftovers.NOTHING
    return Leftovers.SEQUENCES
