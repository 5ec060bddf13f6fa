"""Guesses from its first words whether a statement only reads, and quotes names and texts for SQL. Pure.

A wrong guess does no harm. A statement that seems to read is sent without an Idempotency-Key, which would slow it down,
and is repeated in a read-only transaction, where the engine refuses writes. One that seems to write gets a key.
"""

import re

_BEFORE = re.compile(r"(?:[\s;(]|--[^\n\r]*|/\*(?:[^*/]|\*(?!/)|/(?!\*))*\*/)*+")
_WORD = re.compile(r"[A-Za-z]+")
_READ_KEYWORDS = frozenset({"select", "values", "table", "show", "explain"})
# A statement that begins with WITH may write if it has one of these anywhere.
_WRITE_KEYWORDS = re.compile(r"\b(?:insert|update|delete|merge|into)\b", re.IGNORECASE)


def seems_to_read(sql: str) -> bool:
    keyword = find_keyword(sql)
    return keyword in _READ_KEYWORDS or (keyword == "with" and _WRITE_KEYWORDS.search(sql) is None)


def find_keyword(sql: str) -> str:
    """Return the first word of the statement in lower case; empty if it begins with none."""
    before = _BEFORE.match(sql)
    word = _WORD.match(sql, before.end() if before else 0)
    return word.group().lower() if word is not None else ""


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
