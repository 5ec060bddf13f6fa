"""What the service itself reads of a statement: its first keyword and the streaming hint. Pure.

The engine judges SQL. These few looks exist only because some things must be known before the engine sees the text:
whether the answer is a stream, whether the statement would end the transaction that the service has opened for it, and
whether it could leave something on the connection that the cheap reset does not remove.
"""

import re
from enum import Enum, auto
from typing import Final

from tuplegate.protocol.errors import ServiceError

STREAM_HINT: Final = "/*+ STREAM */"
_HINT_STARTS: Final = frozenset("/ \t\n\r\f\v")

# What the engine's own scanner calls white space, vertical tab included.
_SPACE: Final = " \t\n\r\f\v"
_BLANK: Final = re.compile(r"(?:[ \t\n\r\f\v]+|--[^\n\r]*)*+")
_BLANK_OR_SEMICOLON: Final = re.compile(r"(?:[ \t\n\r\f\v;]+|--[^\n\r]*)*+")
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z_0-9$]*")
_COMMON: Final = {
    f"{written} ": word for word in ("select", "insert", "update", "delete") for written in (word, word.upper())
}
_COMMENT_MARK: Final = re.compile(r"/\*|\*/")

_CONTROL: Final = frozenset(
    {"begin", "start", "commit", "end", "rollback", "abort", "savepoint", "release"},
)
# Settings that hold for the whole transaction or for the wire; a statement must not change them. A name in Unicode
# escapes could be any of them.
_GUARDED_SETTING: Final = re.compile(
    r"""(?:(?:session|local)(?=[\s"]))?\s*(?:
        transaction\b | session\s+characteristics\b | characteristics\b | names\b | u&" |
        (?:transaction_[a-z_]+|client_encoding)(?![a-z_0-9$]) |
        "(?:transaction_[a-z_]+|client_encoding)"
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_SET_LENGTH: Final = 200
"""How much of a SET is looked at, comments aside: the longest spelling of a guarded one is shorter."""

_HINT: Final = (
    "A statement runs in a transaction of its own. "
    "To run several statements atomically send them to POST /v1/transaction, without BEGIN and COMMIT."
)


def skip_blank(sql: str, start: int = 0, *, semicolons: bool = False) -> int:
    """The index of the first character that is neither white space nor comment, nor a semicolon if told so."""
    blank = _BLANK_OR_SEMICOLON if semicolons else _BLANK
    i = start
    while True:
        match = blank.match(sql, i)
        assert match is not None, "it matches the empty text"
        i = match.end()
        if not sql.startswith("/*", i):
            return i
        i = _comment_end(sql, i)


def _comment_end(sql: str, start: int) -> int:
    """The index behind the comment that opens at `start`; comments nest. An open one ends with the text."""
    end = sql.find("*/", start + 2)
    if end < 0:
        return len(sql)
    if sql.find("/*", start + 2, end) < 0:
        return end + 2
    depth = 0
    for mark in _COMMENT_MARK.finditer(sql, start):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(sql)


def first_keyword(sql: str) -> tuple[str, int]:
    """The first word in lower case and the index behind it; ("", index) where the text does not begin with a word."""
    common = _COMMON.get(sql[:7])
    if common is not None:
        return common, 6
    word = _WORD.match(sql)
    if word is not None:
        return word.group().lower(), word.end()
    start = skip_blank(sql, semicolons=True)
    word = _WORD.match(sql, start)
    if word is None:
        return "", start
    return word.group().lower(), word.end()


def is_streamed(sql: str) -> bool:
    """Whether the text starts with the streaming hint, white space before it allowed."""
    return sql.startswith(STREAM_HINT, len(sql) - len(sql.lstrip(_SPACE))) if sql[:1] in _HINT_STARTS else False


def keyword_of_one(sql: str) -> str:
    """The first keyword of a statement that may be run; refuses empty text, NUL and transaction control."""
    if "\0" in sql:
        raise ServiceError(
            "malformed_request",
            f"the SQL contains a NUL character at position {sql.index(chr(0)) + 1}; PostgreSQL text cannot hold one",
        )
    keyword, end = first_keyword(sql)
    if not keyword and end >= len(sql):
        raise ServiceError("empty_statement", "there is no SQL statement in the text")
    if keyword in _CONTROL or (keyword in ("set", "reset", "prepare") and _is_control(keyword, sql, end)):
        raise ServiceError(
            "transaction_control",
            f"{keyword.upper()} cannot be sent as a statement: the service controls the transaction",
            hint=_HINT,
        )
    return keyword


def _is_control(keyword: str, sql: str, end: int) -> bool:
    if keyword == "prepare":
        word = _WORD.match(sql, skip_blank(sql, end))
        return word is not None and word.group().lower() == "transaction"
    return _GUARDED_SETTING.match(_without_comments(sql, end)) is not None


def _without_comments(sql: str, start: int) -> str:
    """The beginning of what follows, every stretch of blanks and comments in it replaced by one blank."""
    parts: list[str] = []
    i = skip_blank(sql, start)
    length = 0
    while i < len(sql) and length < _SET_LENGTH:
        ends = [e for e in (sql.find(mark, i, i + _SET_LENGTH) for mark in (*_SPACE, "--", "/*")) if e >= 0]
        j = min(ends, default=min(i + _SET_LENGTH, len(sql)))
        parts.append(sql[i:j])
        length += j - i + 1
        i = skip_blank(sql, j)
    return " ".join(parts)


# What a text must name to change a setting while it runs, or to run text that is not in it. A name in Unicode
# escapes (U&) could be any of these.
_SETS_OR_RUNS: Final = "set_config|pg_settings|_to_xml|ts_stat|ts_rewrite|u&"
# The random seed is no setting. What is prepared on a connection is not for everybody to see: a text that asks for it
# counts as well.
_TOUCHES_SESSION: Final = re.compile(f"{_SETS_OR_RUNS}|setseed|prepared_st|memory_context")
_NAMES_SETTINGS: Final = re.compile(f"{_SETS_OR_RUNS}|synchronous_commit")
_PLAIN: Final = frozenset({"select", "insert", "update", "delete", "merge", "with", "values", "table", ""})


def is_plain(sql: str, keyword: str) -> bool:
    """Whether the text itself can leave nothing behind that `DISCARD ALL` does not remove."""
    if keyword not in _PLAIN:
        return False
    # All but one of the names have an underscore or an ampersand: most texts need no closer look.
    folded = sql.lower()
    if "_" not in sql and "&" not in sql and "setseed" not in folded:
        return True
    return _TOUCHES_SESSION.search(folded) is None


def names_settings(sql: str) -> bool:
    """Whether the text could change, while it runs, the setting by which a commit waits for the disk."""
    return ("_" in sql or "&" in sql) and _NAMES_SETTINGS.search(sql.lower()) is not None


_QUERIES: Final = frozenset({"select", "values", "table", ""})
WRITES: Final = frozenset({"insert", "update", "delete", "merge"})


class Leftovers(Enum):
    """What a plain text can leave on its connection, in a database without code of the tenant's own."""

    NOTHING = auto()
    SEQUENCES = auto()
    """Which numbers it drew: what `lastval()` and `currval()` answer, and numbers that were drawn in advance."""
    ANYTHING = auto()


def leftovers(sql: str, keyword: str) -> Leftovers:
    """To leave something, a query must name what makes a table, moves a sequence, or sets what an extension keeps.

    A change can move sequences without naming them, and cannot make a table.
    """
    folded = sql.lower()
    if "set_limit" in folded or "advisory" in folded:
        return Leftovers.ANYTHING
    if keyword in WRITES:
        return Leftovers.SEQUENCES
    if keyword not in _QUERIES or "into" in folded:
        return Leftovers.ANYTHING
    return Leftovers.SEQUENCES if "nextval" in folded or "setval" in folded else Leftovers.NOTHING


class Reading:
    """What the functions above say of one text."""

    __slots__ = ("leftovers", "names_settings", "plain")

    def __init__(self, plain: bool, names_settings: bool, leftovers: Leftovers) -> None:
        self.plain = plain
        self.names_settings = names_settings
        self.leftovers = leftovers


def read_text(sql: str, keyword: str) -> Reading:
    return Reading(is_plain(sql, keyword), names_settings(sql), leftovers(sql, keyword))
