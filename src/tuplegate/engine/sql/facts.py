"""Reads a text for PostgreSQL once, and finds everything that the engine side must know of it before it runs. Pure.

It goes by the first word and by names in the text, and looks for all names in one pass over a folded copy: a text may
have ten megabytes. What that cannot tell is taken for the worse. Whether the text means what it seems to is for the
engine to say.
"""

from enum import Enum, auto
from typing import Final

from tuplegate.engine.port import CopyRefused, Statement

CHANGES: Final = frozenset({"insert", "update", "delete", "merge"})
"""First words of what changes rows and can define nothing."""
QUERIES: Final = frozenset({"select", "with", "values", "table", ""})
"""First words of what can be a cursor; "" is an opening parenthesis. The engine has the last word."""
READERS: Final = QUERIES | {"explain", "show"}
"""First words of what can run read-only, as a rule."""
SAVEPOINTS: Final = frozenset({"savepoint", "release", "rollback"})
_DEFINES_NOTHING: Final = READERS | CHANGES
_STEPS: Final = frozenset({"vacuum", "analyze", "analyse", "reindex", "cluster", "repack"})

# What a text must name to change a setting while it runs, or to run text that is not in it. A name in Unicode
# escapes (U&) could be any of these.
_SETS_OR_RUNS: Final = ("set_config", "pg_settings", "_to_xml", "ts_stat", "ts_rewrite", "u&")
# The random seed is no setting. What is prepared on a connection is not for everybody to see: a text that asks for it
# counts as well.
_OF_SESSION: Final = ("setseed", "prepared_st", "memory_context")
_PLAIN: Final = QUERIES | CHANGES
_PLAIN_TAGS: Final = frozenset((b"SELECT", b"INSERT", b"UPDATE", b"DELETE", b"MERGE "))


class Leftovers(Enum):
    """The traces that a plain text can leave on its connection, in a database without code of the tenant's own."""

    NOTHING = auto()
    SEQUENCES = auto()
    """Which numbers it drew: what `lastval()` and `currval()` answer, and numbers that were drawn in advance."""
    ANYTHING = auto()


class Facts:
    """All that is known of a statement by its text.

    - `plain`: it can leave nothing behind that `DISCARD ALL` does not remove; `leftovers` says what a plain one leaves.
    - `may_write`: it can write, even where nobody has made code that a query could call.
    - `names_settings`: it could change, while it runs, the setting by which a commit waits for the disk.
    - `works_in_steps`: it begins any number of transactions, one after the other; `is_concurrent`: a few.
    - `gives_no_rows`: it changes rows and returns none.
    - `changes_types`: it may change a type that the service remembers.
    """

    def __init__(
        self,
        keyword: str,
        *,
        plain: bool,
        leftovers: Leftovers,
        may_write: bool,
        names_settings: bool = False,
        is_concurrent: bool = False,
        notifies: bool = False,
        gives_no_rows: bool = False,
    ) -> None:
        self.keyword = keyword
        self.plain = plain
        self.leftovers = leftovers
        self.may_write = may_write
        self.names_settings = names_settings
        self.is_concurrent = is_concurrent
        self.notifies = notifies
        self.gives_no_rows = gives_no_rows
        self.is_query = keyword in QUERIES
        self.is_reader = keyword in READERS
        self.is_change = keyword in CHANGES
        self.is_savepoint = keyword in SAVEPOINTS
        self.works_in_steps = keyword in _STEPS
        self.changes_types = keyword not in _DEFINES_NOTHING


def read_facts(sql: str, keyword: str) -> Facts:
    folded = fold(sql)
    runs = _has_one(folded, _SETS_OR_RUNS)
    return Facts(
        keyword,
        plain=keyword in _PLAIN and not runs and not _has_one(folded, _OF_SESSION),
        leftovers=_find_leftovers(folded, keyword),
        may_write=_find_whether_writes(folded, keyword),
        names_settings=runs or "synchronous_commit" in folded,
        is_concurrent="concurrently" in folded,
        notifies="notify" in folded,
        gives_no_rows=keyword in CHANGES and "returning" not in folded,
    )


def fold(sql: str) -> str:
    """Return the text in lower case, for a search of names; characters beyond ASCII are replaced.

    The engine folds only ASCII letters. Python folds those far quicker than others.
    """
    return sql.lower() if sql.isascii() else sql.encode("ascii", "replace").decode("ascii").lower()


def _has_one(folded: str, names: tuple[str, ...]) -> bool:
    """Return whether one of the names is in the text. On a long text each search is quicker than any pattern."""
    for name in names:  # noqa: SIM110 - a generator takes three times as long on short texts
        if name in folded:
            return True
    return False


def _find_leftovers(folded: str, keyword: str) -> Leftovers:
    """Return what a plain text can leave behind.

    To leave something, a query must name what makes a table, moves a sequence, or sets what an extension keeps. A
    change can move sequences without naming them, and cannot make a table.
    """
    if "set_limit" in folded or "advisory" in folded:
        return Leftovers.ANYTHING
    if keyword in CHANGES:
        return Leftovers.SEQUENCES
    if keyword not in QUERIES or keyword == "with" or "into" in folded:
        return Leftovers.ANYTHING
    return Leftovers.SEQUENCES if "nextval" in folded or "setval" in folded else Leftovers.NOTHING


def _find_whether_writes(folded: str, keyword: str) -> bool:
    """A query writes by INTO, through functions for large objects, or, behind WITH, by what changes rows."""
    if keyword == "show":
        return False
    if keyword == "explain":
        return "analy" in folded
    if keyword not in QUERIES:
        return True
    if keyword == "with" and any(word in folded for word in CHANGES):
        return True
    return "into" in folded or "lo_" in folded or "lowrite" in folded


def is_plain_tag(tag: bytes) -> bool:
    """Return whether the engine has run what a text that was read as plain can be. Where it has not, the text was not
    read as the engine reads it."""
    return tag[:6] in _PLAIN_TAGS


def refuse_copy(statement: Statement) -> None:
    """Refuse to copy from or to the client, whom nobody could pass the rows on to. The engine itself refuses files."""
    if statement.keyword == "copy":
        text = fold(statement.sql)
        if "stdin" in text or "stdout" in text:
            raise CopyRefused
