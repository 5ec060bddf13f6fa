"""What the service itself reads of a statement: its first keyword and the streaming hint. Pure.

The engine judges SQL. These few looks exist only because some things must be known before the engine sees the text:
whether the answer is a stream, whether the statement would end the transaction that the service has opened for it, and
whether it could leave something on the connection that the cheap reset does not remove.
"""

import re

from querygate.protocol.errors import ServiceError

STREAM_HINT = "/*+ STREAM */"

# What the engine's own scanner calls white space, vertical tab included.
_SPACE = " \t\n\r\f\v"
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9$]*")
_NEXT_COMMENT_MARK = re.compile(r"/\*|\*/")

_CONTROL = frozenset(
    {"begin", "start", "commit", "end", "rollback", "abort", "savepoint", "release"},
)
# Settings that hold for the whole transaction or for the wire; a statement must not change them.
_GUARDED_SETTING = re.compile(
    r"""(?:session\s+|local\s+)?(?:
        transaction\b | session\s+characteristics\b | names\b |
        (?P<q>"?)(?:transaction_[a-z_]+|client_encoding)(?P=q)(?![a-z_0-9$])
    )""",
    re.IGNORECASE | re.VERBOSE,
)

_HINT = (
    "A statement runs in a transaction of its own. "
    "To run several statements atomically send them to POST /v1/transaction, without BEGIN and COMMIT."
)


def skip_blank(sql: str, start: int = 0, also: str = "") -> int:
    """The index of the first character that is neither white space, comment nor one of `also`."""
    i, n = start, len(sql)
    skipped = _SPACE + also
    while i < n:
        c = sql[i]
        if c in skipped:
            i += 1
        elif c == "-" and sql.startswith("--", i):
            ends = [e for e in (sql.find("\n", i), sql.find("\r", i)) if e >= 0]
            i = min(ends) + 1 if ends else n
        elif c == "/" and sql.startswith("/*", i):
            i = _comment_end(sql, i)
        else:
            break
    return i


def _comment_end(sql: str, start: int) -> int:
    """The index behind the comment that opens at `start`; comments nest. An open one ends with the text."""
    depth = 0
    for mark in _NEXT_COMMENT_MARK.finditer(sql, start):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(sql)


def first_keyword(sql: str) -> tuple[str, int]:
    """The first word in lower case and the index behind it; ("", index) where the text does not begin with a word."""
    start = skip_blank(sql, also=";")
    word = _WORD.match(sql, start)
    if word is None:
        return "", start
    return word.group().lower(), word.end()


def is_streamed(sql: str) -> bool:
    """Whether the text starts with the streaming hint, white space before it allowed."""
    return sql.lstrip(_SPACE).startswith(STREAM_HINT)


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
    rest = skip_blank(sql, end)
    if keyword == "prepare":
        word, _ = first_keyword(sql[rest:])
        return word == "transaction"
    flat = _flatten(sql, rest)
    return _GUARDED_SETTING.match(flat) is not None


def _flatten(sql: str, start: int) -> str:
    """The next few words with comments between them replaced by one blank: what SET looks at."""
    words: list[str] = []
    i = start
    while i < len(sql) and len(words) < 4:
        i = skip_blank(sql, i)
        j = i
        while j < len(sql) and sql[j] not in _SPACE and not sql.startswith(("--", "/*"), j):
            j += 1
        if j > i:
            words.append(sql[i:j])
        elif i < len(sql):
            break
        i = j
    return " ".join(words)


# What a text must name to change a setting or the random seed while its own rows are being written, or to run text that
# is not in the statement. `u&` can spell any of these names in escapes.
_TOUCHES_SESSION = ("set_config", "setseed", "_to_xml", "ts_stat", "ts_rewrite", "u&")
_PLAIN = frozenset({"select", "insert", "update", "delete", "merge", "with", "values", "table"})


def is_plain(sql: str, keyword: str) -> bool:
    """Whether the text itself can leave nothing behind that `DISCARD ALL` does not remove."""
    if keyword not in _PLAIN:
        return False
    folded = sql.lower()
    return not any(name in folded for name in _TOUCHES_SESSION)
