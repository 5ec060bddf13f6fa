"""Finds what a statement could leave on its connection, and whether it copies, by the names in its text. Pure.

PostgreSQL keeps settings, sequences, temporary tables and prepared statements in a session. A text that names nothing
of the kind needs only a cheap reset after it; every other one is followed by an inspection, or by a full reset.
"""

from enum import Enum, auto
from typing import Final

from tuplegate.engine.port import CopyRefused, Statement

# What a text must name to change a setting while it runs, or to run text that is not in it. A name in Unicode
# escapes (U&) could be any of these.
_SETS_OR_RUNS: Final = ("set_config", "pg_settings", "_to_xml", "ts_stat", "ts_rewrite", "u&")
# The random seed is no setting. What is prepared on a connection is not for everybody to see: a text that asks for it
# counts as well.
_OF_SESSION: Final = ("setseed", "prepared_st", "memory_context")
_PLAIN: Final = frozenset({"select", "insert", "update", "delete", "merge", "with", "values", "table", ""})
_PLAIN_TAGS: Final = frozenset((b"SELECT", b"INSERT", b"UPDATE", b"DELETE", b"MERGE "))


def is_plain_tag(tag: bytes) -> bool:
    """Return whether the engine has run what a text that was read as plain can be. Where it has not, the text was not
    read as the engine reads it."""
    return tag[:6] in _PLAIN_TAGS


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


def is_plain(sql: str, keyword: str) -> bool:
    """Return whether the text itself can leave nothing behind that `DISCARD ALL` does not remove."""
    return read_text(sql, keyword).plain


def refuse_copy(statement: Statement) -> None:
    """Refuse to copy from or to the client, whom nobody could pass the rows on to. The engine itself refuses files."""
    if statement.keyword == "copy":
        text = fold(statement.sql)
        if "stdin" in text or "stdout" in text:
            raise CopyRefused


_QUERIES: Final = frozenset({"select", "values", "table", ""})
WRITES: Final = frozenset({"insert", "update", "delete", "merge"})


class Leftovers(Enum):
    """The traces that a plain text can leave on its connection, in a database without code of the tenant's own."""

    NOTHING = auto()
    SEQUENCES = auto()
    """Which numbers it drew: what `lastval()` and `currval()` answer, and numbers that were drawn in advance."""
    ANYTHING = auto()


def _find_leftovers(folded: str, keyword: str) -> Leftovers:
    """Return what a plain text can leave behind.

    To leave something, a query must name what makes a table, moves a sequence, or sets what an extension keeps. A
    change can move sequences without naming them, and cannot make a table.
    """
    if "set_limit" in folded or "advisory" in folded:
        return Leftovers.ANYTHING
    if keyword in WRITES:
        return Leftovers.SEQUENCES
    if keyword not in _QUERIES or "into" in folded:
        return Leftovers.ANYTHING
    return Leftovers.SEQUENCES if "nextval" in folded or "setval" in folded else Leftovers.NOTHING


class Reading:
    """The results of the functions above for one text.

    `names_settings` means that it could change, while it runs, the setting by which a commit waits for the disk.
    """

    def __init__(self, plain: bool, names_settings: bool, leftovers: Leftovers) -> None:
        self.plain = plain
        self.names_settings = names_settings
        self.leftovers = leftovers


def read_text(sql: str, keyword: str) -> Reading:
    """Read a text for all names at once, so that a long text is searched for each of them only once."""
    folded = fold(sql)
    left = _find_leftovers(folded, keyword)
    runs = _has_one(folded, _SETS_OR_RUNS)
    plain = keyword in _PLAIN and not runs and not _has_one(folded, _OF_SESSION)
    return Reading(plain, runs or "synchronous_commit" in folded, left)
