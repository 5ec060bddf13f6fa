"""Refuses statements before they are sent: texts that this engine would misread, definitions that it must not store,
statements that reach outside the database, and statements that need room in a full one."""

import re
from typing import Final

from tuplegate.engine import port
from tuplegate.engine.cockroach.dialect.texts import (
    check_text,
    find_action,
    find_called,
    find_cutting_type,
    find_names,
    fold,
    list_heads,
    list_options,
    list_words,
)
from tuplegate.engine.cockroach.pools.pool import DatabaseState
from tuplegate.engine.cockroach.query.rules import READERS, WRITERS

_REMOVERS: Final = frozenset({"drop", "truncate"})
"""First words of statements that free room, whatever else is in the text."""
_HARMLESS_WHEN_FULL: Final = READERS | {"delete", "with", ""}
_GROWS: Final = frozenset({"insert", "update", "upsert", "into"})

_HOLD_NO_DEFINITION: Final = (READERS - {"explain"}) | (WRITERS - {"with"}) | {""}
"""First words of statements that hold no definition."""
_DEFINES: Final = re.compile(r"\b(?:create|alter)\b")
_VIEW_MODIFIERS: Final = frozenset({"or", "replace", "temp", "temporary", "recursive"})
_RUN_IN_READS: Final = frozenset({"view", "function"})
_SCHEMAS: Final = frozenset({"crdb_internal"})
_IN_PIECES: Final = re.compile(r"'[ \t\r\f]*\n[ \t\r\n\f]*'")

_REACHING: Final = re.compile(
    r"\b(?:export|import|backups?|restore|cancel|changefeed|schedules?|external|configure|(?:un)?split|scatter"
    r"|(?:experimental_|testing_)?relocate|debug)\b"
)
_EXTERNAL: Final = frozenset({"export", "import", "backup", "restore"})
_EXTERNAL_OBJECTS: Final = frozenset({"changefeed", "schedule", "external", "backup", "backups"})
_SESSIONS: Final = frozenset({"query", "queries", "session", "sessions"})
_PLACING: Final = frozenset(
    {"configure", "split", "unsplit", "scatter", "relocate", "experimental_relocate", "testing_relocate"}
)
"""The actions of an ALTER that decide how often, where and in how many pieces the nodes keep rows."""


def check_statement(state: DatabaseState, target: port.Target, statement: port.Statement, *, full: bool = True) -> None:
    """Raise if the statement may not run. With `full`, also raise if the database has no room for it."""
    check_text(statement.sql)
    _check_reach(statement)
    _check_stored(statement, state.changing)
    if full and state.full_at is not None and target.may_write:
        _check_room(state.full_at, statement)


def _check_reach(statement: port.Statement) -> None:
    """Raise if the statement would reach files or hosts outside the database, sessions of others, or storage that all
    share."""
    if not _REACHING.search(fold(statement.sql)):
        return
    if "debug" in list_options(statement.sql):
        raise port.StatementFailed(
            "EXPLAIN ANALYZE (DEBUG) is refused: it stores a file in the engine's own tables; nothing was applied",
            sqlstate="42501",
            hint="EXPLAIN ANALYZE shows the plan and its times.",
        )
    for head in list_heads(statement.sql):
        word, behind = head[0], "".join(head[1:2])
        if word == "alter" and _places_rows(behind, find_action(head)):
            raise port.StatementFailed(
                "where and how often rows are kept is not the database's own to decide; nothing was applied",
                sqlstate="42501",
                hint="The cluster's owner can change it (CONFIGURE ZONE, SPLIT AT).",
            )
        if word in _EXTERNAL and behind.isidentifier():
            raise _refuse_reach(word, "takes rows out of the database, or brings them in, by way of the engine's nodes")
        if word == "cancel" and behind in _SESSIONS:
            raise port.StatementFailed(
                "CANCEL cannot end statements or sessions here; nothing was applied",
                sqlstate="42501",
                hint="A statement ends with its time limit (timeout_ms), or when its client closes the request.",
            )
        if word in ("create", "alter", "show", "experimental") and behind in _EXTERNAL_OBJECTS:
            raise _refuse_reach(f"{word} {behind}", "makes the engine's nodes reach other hosts, or files")


def _places_rows(kind: str, action: str) -> bool:
    """Return whether an ALTER decides where rows are kept, given the kind of its object and the action behind its
    name."""
    return action in _PLACING or kind in ("range", "partition") or (kind == "database" and action == "alter")


def _refuse_reach(what: str, meaning: str) -> port.StatementFailed:
    return port.StatementFailed(
        f"{what.upper()} is refused: it {meaning}; nothing was applied",
        sqlstate="42501",
        hint="`tuplegate export` and `tuplegate import` copy rows, `tuplegate database send` a whole database.",
    )


def _check_stored(statement: port.Statement, changing: frozenset[str]) -> None:
    """Raise if a definition stores an expression that changes its session. It would run in texts that do not show it,
    and what it leaves there would affect the next request. The engine has no dynamic SQL, so the name always shows."""
    if statement.keyword in _HOLD_NO_DEFINITION:
        return
    if not _DEFINES.search(fold(statement.sql)):
        return
    names, words = find_names(statement.sql), list_words(statement.sql)
    has_body = "function" in words
    if has_body and _hides_names(statement.sql):
        raise port.StatementFailed(
            "the body of a function cannot be written with escapes, or in several strings; nothing was applied",
            sqlstate="0A000",
            hint="Write it in dollar quotes: AS $$ … $$.",
        )
    if cuts := find_cutting_type(statement.sql):
        raise port.StatementFailed(
            f"this engine cuts values of {cuts} to their length, without an error; nothing was applied",
            sqlstate="0A000",
            hint="Use an array without a length, as text[].",
        )
    draws = _runs_in_reads(words) and not names.isdisjoint({"nextval", "setval"})
    named = names if has_body else find_called(statement.sql) | (names & _SCHEMAS)
    found = sorted(changing & named)
    if draws or found:
        what = "draw numbers where it is read" if draws else f"change settings or the engine ({', '.join(found)})"
        raise port.StatementFailed(
            f"what is stored in a database of this engine cannot {what}; nothing was applied",
            sqlstate="0A000",
            hint="Do it in the statement itself.",
        )


def _runs_in_reads(words: list[str]) -> bool:
    """Return whether the words define a view or a function."""
    for index, word in enumerate(words):
        if word == "create":
            rest = [other for other in words[index + 1 : index + 6] if other not in _VIEW_MODIFIERS]
            if rest and rest[0] in _RUN_IN_READS:
                return True
    return False


def _hides_names(sql: str) -> bool:
    return "\\" in sql or _IN_PIECES.search(sql) is not None


def _check_room(full_at: int, statement: port.Statement) -> None:
    """Raise if the statement may need room, which a full database has not."""
    if statement.keyword in _REMOVERS:
        return
    if statement.keyword in _HARMLESS_WHEN_FULL:
        words = list_words(statement.sql)
        before = ["", *words]
        if not any(word in _GROWS and before[index] != "for" for index, word in enumerate(words)):
            return
    raise port.StatementFailed(
        f"the database is larger than its limit of {full_at} bytes; nothing was applied",
        sqlstate="53100",
        hint="DELETE rows or DROP tables that are not needed.",
    )
