"""Looks at the text of a statement before the engine does. Pure.

Three things must be known. How many transactions it can begin, since the engine remembers only so many
(`engine/postgres/safety/guard.py`): a text with several statements at most as many as it has semicolons, a single CALL
or DO any number, unless it runs inside of a transaction block, and VACUUM and the like one for every table. Whether it
is about prepared transactions, which are the service's own. And whether its comments would keep the engine's scanner
busy.

Texts are read as Latin-1, whatever they are in: every keyword and sign that matters is ASCII in all encodings.
"""

import re
from dataclasses import dataclass
from typing import Final

from tuplegate.data_plane.wire.messages import WireError
from tuplegate.protocol.errors import ServiceError
from tuplegate.protocol.statements import check_comments, first_keyword, skip_blank

_CODE: Final = frozenset({"do", "call"})
"""First words of what can begin any number of transactions, if it is alone and its code wants to."""
_IN_STEPS: Final = frozenset({"vacuum", "analyze", "analyse", "reindex", "cluster", "repack"})
"""First words of what begins a transaction for every table, if it is alone."""
_CONCURRENT: Final = re.compile(r"\bconcurrently\b", re.IGNORECASE)
_CONCURRENT_MAX: Final = 8
"""Transactions that a statement with CONCURRENTLY can begin at most: CREATE INDEX begins four."""
_COMMENTS_MAX: Final = 100
_FIRST: Final = re.compile(r"\b(?:prepare|commit|rollback)\b", re.IGNORECASE)
_SECOND: Final = {"prepare": "transaction", "commit": "prepared", "rollback": "prepared"}
_WORD: Final = re.compile(r"[A-Za-z_]+")
_LOOKED_AT_MAX: Final = 1000
"""Places in one text that are looked at, where a statement about prepared transactions could begin."""


@dataclass(frozen=True, slots=True)
class Judged:
    """`begins` is how many transactions it can begin at most. `is_code` and `has_steps`: it can begin any number,
    unless it runs inside of a block. `is_concurrent`: it can begin a few. `is_alone`: the text is this one statement
    and nothing else."""

    begins: int
    is_code: bool
    has_steps: bool
    is_concurrent: bool
    is_alone: bool

    @property
    def has_no_bound(self) -> bool:
        return self.is_code or self.has_steps


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
    is_concurrent = _CONCURRENT.search(sql) is not None
    begins = 1 + sql.count(";") + (_CONCURRENT_MAX if is_concurrent else 0)
    is_alone = ";" not in sql.rstrip("; \t\r\n\f\v")
    return Judged(begins, keyword in _CODE, keyword in _IN_STEPS, is_concurrent, is_alone)


def _check_two_phase(sql: str) -> None:
    """Look at each place in a text of several statements, whether one begins there or not."""
    for number, found in enumerate(_FIRST.finditer(sql)):
        if number == _LOOKED_AT_MAX:
            raise WireError("54000", f"the text has more than {_LOOKED_AT_MAX} words PREPARE, COMMIT and ROLLBACK")
        _check_second(sql, found.group().lower(), found.end())


def _check_second(sql: str, first: str, end: int) -> None:
    word = _WORD.match(sql, skip_blank(sql, end, comments_max=_COMMENTS_MAX))
    if word is not None and word.group().lower() == _SECOND[first]:
        raise WireError(
            "0A000",
            f"{first.upper()} {word.group().upper()} is not possible: prepared transactions are the service's own",
            hint="COMMIT is enough: what it has answered is on disk.",
        )
