"""Reads the facts about a statement that the service needs before an engine sees it: its first keyword and the
streaming hint. Pure.

The engine judges SQL. This module finds out whether the answer is a stream, whether the statement would end the
transaction that the service has opened for it, and whether its comments would take too long to read.
"""

import re
from typing import Final

from tuplegate.protocol.errors import ServiceError

STREAM_HINT: Final = "/*+ STREAM */"
_HINT_STARTS: Final = frozenset("/ \t\n\r\f\v")

# White space for the engine's own scanner, vertical tab included.
_SPACE: Final = " \t\n\r\f\v"
_BLANK: Final = re.compile(r"[ \t\n\r\f\v]*+")
_BLANK_OR_SEMICOLON: Final = re.compile(r"[ \t\n\r\f\v;]*+")
_LINE: Final = re.compile(r"[^\n\r]*+")
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z_0-9$]*")
_COMMON: Final = {
    f"{written} ": word for word in ("select", "insert", "update", "delete") for written in (word, word.upper())
}

COMMENTS_MAX: Final = 10_000
"""Comments in one text, and comments before its first word."""
_COMMENTS_IN_SET_MAX: Final = 100
"""Comments between two words of a SET or PREPARE."""
_UNCOUNTED_LENGTH: Final = 10_000
"""In a text of this length the engine skips any comments within 50 ms."""
_SCANNED_MAX: Final = 10_000_000
"""Characters that the engine's scanner reads again because of comments: about 30 ms."""
_OPERATOR_SIGNS: Final = b"~!@#^&|`?+-*/%<>="
_AS_SIGNS: Final = bytes(43 if byte in _OPERATOR_SIGNS else 32 for byte in range(256))
"""Turns every character of an operator into a plus sign, and every other byte into a blank."""

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

_SAVEPOINTS: Final = frozenset({"savepoint", "release", "rollback"})
_GOES_BACK: Final = re.compile(r"(?:(?:work|transaction)\s+)?to\b", re.IGNORECASE)
_HINT_INSIDE: Final = (
    "A transaction ends by POST /v1/transaction/{id}/commit or /rollback."
    " SAVEPOINT, RELEASE and ROLLBACK TO are statements."
)
_HINT: Final = (
    "A statement runs in a transaction of its own. "
    "To run several statements atomically send them to POST /v1/transaction, without BEGIN and COMMIT."
)


def check_comments(sql: str) -> None:
    """Refuse a text whose comments would keep the engine's scanner busy, where it ignores a cancel.

    At each sign that opens a comment the scanner reads on to the end of the operator characters that follow, and goes
    back. So `/**/`, repeated, takes it the square of the text's length, and so do a thousand signs before one long run.
    """
    if len(sql) <= _UNCOUNTED_LENGTH:
        return
    opened = sql.count("/*")
    if opened > COMMENTS_MAX:
        raise _too_many_comments(f"the text has {opened:,} comments, at most {COMMENTS_MAX:,} are taken")
    if opened * len(sql) > _SCANNED_MAX:
        run_max = _SCANNED_MAX // opened
        if b"+" * run_max in sql.encode().translate(_AS_SIGNS):
            raise _too_many_comments(
                f"the text has {opened:,} comments and {run_max:,} operator characters in a row, which the engine would"
                " read again for each of them"
            )


def _too_many_comments(message: str) -> ServiceError:
    return ServiceError("too_many_comments", message, hint="Leave comments out, and send long values as parameters.")


def skip_blank(sql: str, start: int = 0, *, semicolons: bool = False, comments_max: int = COMMENTS_MAX) -> int:
    """Return the index of the first character that is neither white space nor comment, nor, with `semicolons`, a
    semicolon.

    The event loop waits meanwhile, so there is a bound on the comments.
    """
    blank = _BLANK_OR_SEMICOLON if semicolons else _BLANK
    i = start
    for _ in range(comments_max + 1):
        i = _end_of(blank, sql, i)
        if sql.startswith("--", i):
            i = _end_of(_LINE, sql, i)
        elif sql.startswith("/*", i):
            i = find_comment_end(sql, i)
        else:
            return i
    raise _too_many_comments(f"more than {comments_max:,} comments follow one another")


def _end_of(pattern: "re.Pattern[str]", sql: str, start: int) -> int:
    match = pattern.match(sql, start)
    assert match is not None, "it matches the empty text"
    return match.end()


def find_comment_end(sql: str, start: int) -> int:
    """Return the index behind the comment that opens at `start`; comments nest. An unclosed one ends with the text."""
    i = start + 2
    closes = sql.find("*/", i)
    # In `/*/` the sign that opens a comment comes first, and takes the asterisk.
    opens = sql.find("/*", i, closes + 1) if closes >= 0 else -1
    if opens < 0:
        return closes + 2 if closes >= 0 else len(sql)
    depth = 1
    while closes >= 0:
        if 0 <= opens < closes:
            depth += 1
            i = opens + 2
            opens = sql.find("/*", i)
            if closes < i:
                closes = sql.find("*/", i)
        else:
            depth -= 1
            i = closes + 2
            if not depth:
                return i
            closes = sql.find("*/", i)
            if 0 <= opens < i:
                opens = sql.find("/*", i)
    return len(sql)


def first_keyword(sql: str) -> tuple[str, int]:
    """Return the first word in lower case and the index behind it; ("", index) if the text begins with no word."""
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
    """Return whether the text starts with the streaming hint; white space may come before it."""
    return sql.startswith(STREAM_HINT, len(sql) - len(sql.lstrip(_SPACE))) if sql[:1] in _HINT_STARTS else False


def keyword_of_one(sql: str, *, savepoints: bool = False) -> str:
    """Return the first keyword of a statement that may run. Raises for an empty text, NUL and transaction control.

    With `savepoints`, the commands of savepoints are allowed.
    """
    if "\0" in sql:
        raise ServiceError(
            "malformed_request",
            f"the SQL contains a NUL character at position {sql.index(chr(0)) + 1}; no text in SQL can hold one",
        )
    if len(sql) > _UNCOUNTED_LENGTH:
        check_comments(sql)
    keyword, end = first_keyword(sql)
    # A word behind an open comment is part of it: such a text is no empty one, and the engine's parse error answers it.
    if not keyword and end >= len(sql) and first_keyword(f"{sql}\nx")[0]:
        raise ServiceError("empty_statement", "there is no SQL statement in the text")
    if (
        savepoints
        and keyword in _SAVEPOINTS
        and (keyword != "rollback" or _GOES_BACK.match(_without_comments(sql, end)))
    ):
        return keyword
    if keyword in _CONTROL or (keyword in ("set", "reset", "prepare") and _is_control(keyword, sql, end)):
        raise ServiceError(
            "transaction_control",
            f"{keyword.upper()} cannot be sent as a statement: the service controls the transaction",
            hint=_HINT_INSIDE if savepoints else _HINT,
        )
    return keyword


def _is_control(keyword: str, sql: str, end: int) -> bool:
    if keyword == "prepare":
        word = _WORD.match(sql, skip_blank(sql, end, comments_max=_COMMENTS_IN_SET_MAX))
        return word is not None and word.group().lower() == "transaction"
    return _GUARDED_SETTING.match(_without_comments(sql, end)) is not None


def _without_comments(sql: str, start: int) -> str:
    """Return the beginning of the rest, with every stretch of blanks and comments replaced by one blank."""
    parts: list[str] = []
    i = skip_blank(sql, start, comments_max=_COMMENTS_IN_SET_MAX)
    length = 0
    while i < len(sql) and length < _SET_LENGTH:
        ends = [e for e in (sql.find(mark, i, i + _SET_LENGTH) for mark in (*_SPACE, "--", "/*")) if e >= 0]
        j = min(ends, default=min(i + _SET_LENGTH, len(sql)))
        parts.append(sql[i:j])
        length += j - i + 1
        i = skip_blank(sql, j, comments_max=_COMMENTS_IN_SET_MAX)
    return " ".join(parts)
