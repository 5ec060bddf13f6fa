"""Recognizes the statements that begin and end a transaction, and those whose effect ends with them. Pure."""

import re
from enum import Enum, auto

from tuplegate.protocol.statements import first_keyword

_READ_ONLY = re.compile(r"\bread\s+only\b", re.IGNORECASE)
_READ_WRITE = re.compile(r"\bread\s+write\b", re.IGNORECASE)
_CHAIN = re.compile(r"\band\s+chain\b", re.IGNORECASE)
_POINT = re.compile(r"\bto\b", re.IGNORECASE)
_TEMPORARY = re.compile(r"\s+(?:(?:local|global)\s+)?temp(?:orary)?\b", re.IGNORECASE)
_PASSING = frozenset({"set", "reset", "prepare", "listen", "load"})
_PREPARED = re.compile(r"\s*prepared\b", re.IGNORECASE)


class Act(Enum):
    """The effect of a statement on the transaction. One that only uses savepoints is a statement like any other."""

    BEGIN = auto()
    COMMIT = auto()
    ROLLBACK = auto()
    STATEMENT = auto()


def classify(sql: str) -> Act:
    keyword, end = first_keyword(sql)
    rest = sql[end:]
    if keyword == "begin" or (keyword == "start" and first_keyword(rest)[0] == "transaction"):
        return Act.BEGIN
    if keyword in ("commit", "end"):
        # COMMIT PREPARED does not concern this transaction, and the service refuses it.
        return Act.STATEMENT if _PREPARED.match(rest) else Act.COMMIT
    if keyword in ("rollback", "abort"):
        return Act.STATEMENT if _PREPARED.match(rest) or _POINT.search(rest) else Act.ROLLBACK
    return Act.STATEMENT


def is_read_only(begin: str) -> bool:
    return _READ_ONLY.search(begin) is not None and _READ_WRITE.search(begin) is None


def is_chained(end: str) -> bool:
    """Return whether the statement begins the next transaction at once, as COMMIT AND CHAIN does."""
    return _CHAIN.search(end) is not None


def remark_on_effect(sql: str) -> str | None:
    """Return a remark if the effect of a single statement ends with it: the next one gets a clean connection."""
    keyword, end = first_keyword(sql)
    name = keyword.upper()
    if keyword == "create" and _TEMPORARY.match(sql, end):
        name = "CREATE TEMPORARY"
    elif keyword not in _PASSING:
        return None
    return f"{name} has no effect beyond its statement; between BEGIN and COMMIT it has, until COMMIT"
