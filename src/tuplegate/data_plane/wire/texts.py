"""Reads the text of a statement before the engine does. Pure.

It finds four facts. The number of transactions that the text can begin, since the engine remembers a limited number
(`engine/postgres/safety/guard.py`): several statements run in one, unless some of them end it; a statement with
CONCURRENTLY begins a few; a single CALL or DO any number, unless it runs inside of a transaction block, and VACUUM and
the like one for every table. Whether the session will listen, and whether another statement can be put behind the text
(`own_statements.py`). Whether it is about prepared transactions, which are the service's own. And whether its comments
would keep the engine's scanner busy. Texts are read as Latin-1, whatever their encoding: every keyword and sign that
matters is ASCII in all encodings.
"""

import re
from dataclasses import dataclass
from typing import Final

from tuplegate.data_plane.wire.messages import WireError
from tuplegate.protocol.errors import ServiceError
from tuplegate.protocol.statements import check_comments, first_keyword, skip_blank
from tuplegate.protocol.time_limits import WorkKind, find_kind

_CODE: Final = frozenset({"do", "call"})
"""First words of statements that can begin any number of transactions, if they are alone and their code wants to."""
_IN_STEPS: Final = frozenset({"vacuum", "analyze", "analyse", "reindex", "cluster", "repack"})
"""First words of statements that begin a transaction for every table, if they are alone."""
_MORE: Final = 8
"""Transactions that CONCURRENTLY can begin beside its own: CREATE INDEX begins three."""
_COMMENTS_MAX: Final = 100
_SECOND: Final = {"prepare": "transaction", "commit": "prepared", "rollback": "prepared"}
_ENDS: Final = frozenset({"commit", "rollback", "abort", "end"})
"""First words of statements that end a transaction. The next statement of the text then begins another."""
_END: Final = re.compile(rb"\bend\s*(?:;|--|/\*|\Z|work\b|transaction\b|and\b)")
"""An END that may be a transaction's; most ENDs of CASE do not match."""
_SHORT: Final = 1 << 16
"""The length up to which each END in a text is looked at."""
_AS_WORDS: Final = bytes(
    byte if chr(byte).isalnum() or byte >= 0x80 or byte in b"_$" else 32 for byte in bytes(range(256)).lower()
)
"""Turns letters to lower case, and everything that is no part of a name into a blank."""
_PLAIN: Final = frozenset(
    {"select", "insert", "update", "delete", "merge", "with", "values", "table", "copy", "execute", "explain"}
)
"""First words of statements that do the same, and fail with the same errors, alone and in front of another
statement."""
_INERT: Final = frozenset({"begin", "start", "savepoint", "show", "reset", "deallocate"})
"""First words of statements that run no code and change no setting to another value than at the start, if they are
alone."""
_QUOTED_NAME: Final = rb'"(?:[^"]|"")*+"'
_ONE_COPY: Final = re.compile(rb'\s*copy\b(?:[^"\'$;/-]|%b)*+;?\s*' % _QUOTED_NAME)
"""A COPY that consists of names and words only, so that no sign in one of its names can mean anything else."""
_NAME: Final = re.compile(_QUOTED_NAME)
_LISTENS: Final = re.compile(rb"\blisten\b")
_CHOOSES: Final = frozenset({"set", "begin", "start"})
"""First words of statements that can make the present transaction one that writes: no other can before the engine has
taken a snapshot, and none at all afterwards."""
_CHOICE: Final = re.compile(rb"\b(?:set|begin|start)\b")
_WRITES: Final = re.compile(rb"\bwrite\b|\btransaction_read_only\b|\bu&")
_DEFAULT: Final = re.compile(rb"\s*+set\s++session\s++characteristics\s[\w\s,]*+;?\s*+")
"""A SET about later transactions, which the service handles itself."""
_NOTHING: Final = b"; \t\n\r\f\v"
_BEGUN_MAX: Final = 1000
_WORD: Final = re.compile(r"[A-Za-z_]+")
_LOOKED_AT_MAX: Final = 1000
"""The places in one text that are checked for the start of a statement about prepared transactions."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The judgement of a text. `begins` is the number of transactions that it can begin at most.

    `is_code` and `has_steps`: it can begin any number, unless it runs inside of a block. `more` are those that it can
    begin after its own. `is_alone`: the text is one statement and nothing else. `only_ends`: that statement ends a
    transaction. `ends`: the first one does. `may_end`: some statement can. `is_inert`: it leaves nothing behind.
    `takes_more`: another statement can be put behind it. `listens`: it can have LISTEN. `copies`: the number of COPY …
    FROM STDIN that it can have. `is_lazy`: it can make commits not wait. `kind` is that of its first statement.
    """

    begins: int
    is_code: bool
    has_steps: bool
    more: int
    is_alone: bool
    only_ends: bool
    ends: bool
    may_end: bool
    is_inert: bool
    takes_more: bool
    listens: bool
    copies: int
    is_lazy: bool
    kind: WorkKind

    @property
    def has_no_bound(self) -> bool:
        return self.is_code or self.has_steps


def judge_text(text: bytes) -> Judged:
    """Judge a text. Raises WireError if it may not run."""
    sql, lowered = text.decode("latin-1"), text.lower()
    try:
        check_comments(sql)
        keyword, end = first_keyword(sql)
        if ";" in sql:
            _check_two_phase(sql, lowered)
        elif keyword in _SECOND:
            _check_second(sql, keyword, end)
    except ServiceError as error:
        raise WireError("54000", error.body.message, error.body.hint) from None
    is_one_copy = keyword == "copy" and _ONE_COPY.fullmatch(lowered) is not None
    is_alone = is_one_copy or b";" not in text.rstrip(_NOTHING)
    begins = 1 if is_alone else _count_begun(text, lowered)
    is_concurrent = b"concurrently" in lowered
    ends = keyword in _ENDS
    may_end = ends or begins > 1
    return Judged(
        begins,
        is_code=keyword in _CODE,
        has_steps=keyword in _IN_STEPS,
        more=_MORE * begins if is_concurrent else 0,
        is_alone=is_alone,
        only_ends=is_alone and ends,
        ends=ends,
        may_end=may_end,
        is_inert=is_alone and (keyword in _INERT or not text.strip(_NOTHING)),
        takes_more=not may_end
        and not is_concurrent
        and b"unlisten" not in lowered  # one's answer could be taken for the other's
        and (keyword in _PLAIN or (not is_alone and keyword != "discard")),
        listens=b"listen" in lowered and _LISTENS.search(lowered) is not None,
        copies=_count_copies(lowered, is_one=is_one_copy),
        is_lazy=b"synchronous_commit" in lowered,
        kind=find_kind(keyword),
    )


def _count_copies(lowered: bytes, *, is_one: bool) -> int:
    """Return the number of times that the text can copy from the client."""
    if b"copy" not in lowered:
        return 0
    return int(b"stdin" in _NAME.sub(b"", lowered)) if is_one else lowered.count(b"stdin")


def check_reads(text: bytes, judged: Judged) -> None:
    """Refuse a text of a client who may only read, if it could make a transaction write. Raises WireError."""
    if judged.begins > 1:
        raise WireError(
            "0A000",
            "with a key that may only read, nothing can follow the end of a transaction in the same text",
            hint="Send COMMIT and ROLLBACK, and END, in texts of their own.",
        )
    lowered = text.lower()
    if judged.is_alone and (first_keyword(text.decode("latin-1"))[0] not in _CHOOSES or _DEFAULT.fullmatch(lowered)):
        return
    if _WRITES.search(lowered) is not None and _CHOICE.search(lowered) is not None:
        raise WireError("25006", "a key that may only read cannot make its transactions read-write")


def _count_begun(text: bytes, lowered: bytes) -> int:
    """Return the most transactions that several statements can begin: one, and another behind each word that could end
    one."""
    # Every blank twice: words that follow one another share none.
    words = b"  %b  " % text.translate(_AS_WORDS).replace(b" ", b"  ")
    begins = 1 + sum(words.count(b" %b " % word) for word in (b"commit", b"rollback", b"abort"))
    begins += len(_END.findall(lowered)) if len(text) <= _SHORT else words.count(b" end ")
    if begins > _BEGUN_MAX:
        raise WireError(
            "54000",
            f"the text can end {begins - 1:,} transactions, at most {_BEGUN_MAX - 1} are taken",
            hint="Send it in parts, and long values as parameters or by COPY.",
        )
    return begins


def _check_two_phase(sql: str, lowered: bytes) -> None:
    """Look at each place in a text of several statements, whether one begins there or not."""
    places = skipped = 0
    for first in _SECOND:
        end = 0
        while (start := lowered.find(first.encode(), end)) >= 0:
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
