"""Looks at the text of a statement before the engine does. Pure.

Three things must be known. How many transactions it can begin, since the engine remembers only so many
(`engine/postgres/safety/guard.py`): a text with several statements at most as many as it has semicolons, and a single
CALL, DO, VACUUM and the like any number, unless it runs inside of a transaction block. Whether it is about prepared
transactions, which are the service's own. And whether its comments would keep the engine's scanner busy.

Texts are read as Latin-1, whatever they are in: every keyword and sign that matters is ASCII in all encodings.
"""

import re
from dataclasses import dataclass
from typing import Final

from tuplegate.data_plane.wire.messages import WireError
from tuplegate.protocol.errors import ServiceError
from tuplegate.protocol.statements import check_comments, first_keyword, skip_blank

_MANY: Final = frozenset({"do", "call", "vacuum", "analyze", "analyse", "reindex", "cluster", "repack"})
"""First words of what can begin any number of transactions where it is alone."""
_COMMENTS_MAX: Final = 100
_SECOND: Final = {"prepare": "transaction", "commit": "prepared", "rollback": "prepared"}
_WORD: Final = re.compile(r"[A-Za-z_]+")
_LOOKED_AT_MAX: Final = 1000
"""Places in one text that are looked at, where a statement about prepared transactions could begin."""


@dataclass(frozen=True, slots=True)
class Judged:
    """`begins` is how many transactions it can begin at most. `must_be_atomic`: it could begin any number, unless it
    runs inside of a block."""

    begins: int
    must_be_atomic: bool


def judge_text(text: bytes) -> Judged:
    """Raises WireError for a text that may not run."""
    sql = text.decode("latin-1")
    try:
        check_comments(sql)
        keyword, end = first_keyword(sql)
        if ";" in sql:
            _check_two_phase(sql)
        elif keyword in _SECOND:
            _check_second(sql, keyword, end)
    except ServiceError as error:
        raise WireError("54000", error.body.message, error.body.hint) from None
    return Judged(1 + sql.count(";"), keyword in _MANY)


def _check_two_phase(sql: str) -> None:
    """Look at each place in a text of several statements, whether one begins there or not."""
    lowered = sql.lower()
    places = skipped = 0
    for first in _SECOND:
        end = 0
        while (start := lowered.find(first, end)) >= 0:
            end = start + len(first)
            places += 1
            if places > _LOOKED_AT_MAX:
                raise WireError("54000", f"the text has more than {_LOOKED_AT_MAX} words PREPARE, COMMIT and ROLLBACK")
            skipped += _check_second(sql, first, end)
            if skipped > len(sql):
                # Comments lie behind one another, so these words are inside of comments.
                raise WireError("54000", "the comments of the text hold too many words PREPARE, COMMIT and ROLLBACK")


def _check_second(sql: str, first: str, end: int) -> int:
    """Refuse a statement about prepared transactions; return the characters between its first word and the next."""
    start = skip_blank(sql, end, comments_max=_COMMENTS_MAX)
    word = _WORD.match(sql, start)
    if start > end and word is not None and word.group().lower() == _SECOND[first]:
        raise WireError(
            "0A000",
            f"{first.upper()} {word.group().upper()} is not possible: prepared transactions are the service's own",
            hint="COMMIT is enough: what it has answered is on disk.",
        )
    return start - end
