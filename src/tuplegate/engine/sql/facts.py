"""Reads a text for PostgreSQL once, and finds all facts that the engine side needs before it runs. Pure.

It judges by the first word and by names in the text, and looks for all names in one pass over a folded copy: a text may
have ten megabytes. If they do not tell, it assumes the worse. The engine decides what the text really means.
"""

from enum import Enum, auto
from typing import Final

from tuplegate.engine.port import CopyRefused, Statement

CHANGES: Final = frozenset({"insert", "update", "delete", "merge"})
"""First words of statements that change rows and can define nothing."""
QUERIES: Final = frozenset({"select", "with", "values", "table", ""})
"""First words of statements that can be a cursor; "" is an opening parenthesis. The engine has the last word."""
READERS: Final = QUERIES | {"explain", "show"}
"""First words of statements that can usually run read-only."""
SAVEPOINTS: Final = frozenset({"savepoint", "release", "rollback"})
_DEFINES_NOTHING: Final = READERS | CHANGES
_STEPS: Final = frozenset({"vacuum", "analyze", "analyse", "reindex", "cluster", "repack"})

# A text must name one of these to change a setting while it runs, or to run text that is not in it. A name in Unicode
# escapes (U&) could be any of them.
_SETS_OR_RUNS: Final = ("set_config", "pg_settings", "_to_xml", "ts_stat", "ts_rewrite", "u&")
# The random seed is no setting. Prepared statements on a connection must not be visible: a text that asks for them
# counts as well.
_OF_SESSION: Final = ("setseed", "prepared_st", "memory_context")
_PLAIN: Final = QUERIES | CHANGES
_PLAIN_TAGS: Final = frozenset((b"SELECT", b"INSERT", b"UPDATE", b"DELETE", b"MERGE "))


class Leftovers(Enum):
    """The traces that a plain text can leave on its connection, in a database without code of the tenant's own."""

    NOTHING = auto()
    SEQUENCES = auto()
    """The numbers that it drew: the answers of `lastval()` and `currval()`, and numbers that were drawn in advance."""
    ANYTHING = auto()


class Facts:
    """The facts about a statement that its text tells.

    - `plain`: it can leave nothing behind that `DISCARD ALL` does not remove; `leftovers` are those of a plain one.
    - `may_write`: it can write, even if there is no code that a query could call.
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
    """Return the leftovers of a plain text.

    To leave something, a query must name a function or word that makes a table, moves a sequence, or sets an
    extension's own state. A change can move sequences without naming them, and cannot make a table.
    """
    if "set_limit" in folded or "advisory" in folded:
        return Leftovers.ANYTHING
    if keyword in CHANGES:
        return Leftovers.SEQUENCES
    if keyword not in QUERIES or keyword == "with" or "into" in folded:
        return Leftovers.ANYTHING
    return Leftovers.SEQUENCES if "nextval" in folded or "setval" in folded else Leftovers.NOTHING


def _find_whether_writes(folded: str, keyword: str) -> bool:
    """Return whether a text can write. A query writes by INTO, through functions for large objects, or by a change of
    rows behind WITH."""
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
    """Return whether the engine has run a kind of statement that a plain text can be. If not, the text was misread."""
    return tag[:6] in _PLAIN_TAGS


def refuse_copy(statement: Statement) -> None:
    """Refuse to copy from or to the client: nobody could pass the rows on. The engine itself refuses files."""
    if statement.keyword == "copy":
        text = fold(statement.sql)
        if "stdin" in text or "stdout" in text:
            raise CopyRefused
