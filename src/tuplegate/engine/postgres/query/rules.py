"""Decides what a statement may do, in which block it runs, and how its rows come.

It goes by the first word and by names in the text. What that cannot tell is taken for the worse.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from tuplegate.engine import port
from tuplegate.engine.libpq.commands import Command
from tuplegate.engine.libpq.connection import CHUNK_ROWS
from tuplegate.engine.libpq.failures import check
from tuplegate.engine.libpq.leftovers import WRITES, Reading, fold
from tuplegate.engine.libpq.pool import Member
from tuplegate.engine.postgres.pool import Pool
from tuplegate.engine.postgres.safety.sizes import (
    CODE_IN_VACUUM,
    DISK_LOW,
    SizeCheck,
    check_keyword,
    explain_full,
    vacuum_runs_code,
)

_Texts = list[bytes | None] | None

# In a block the snapshot is taken at once, so that neither isolation nor read-only can be changed after it.
_BEGIN: Final = {
    port.Access.WRITE: Command(b"BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE"),
    port.Access.READ: Command(b"BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY"),
}
_BEGIN_ON_REPLICA: Final = Command(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", begins=False)
SNAPSHOT: Final = Command(b"SELECT 1", begins=False)
NUMBER: Final = Command(b"SELECT pg_catalog.pg_current_xact_id_if_assigned()", begins=False)
"""Asks for the engine's number of the transaction, which it has once it has written."""
CURSORS: Final = frozenset({"select", "with", "values", "table", ""})
"""First words of what can be a cursor; "" is an opening parenthesis. The engine has the last word."""

_IN_STEPS: Final = frozenset({"vacuum", "analyze", "analyse", "reindex", "cluster", "repack"})
"""First words of statements that begin a transaction for every table they work on."""
_STEPS_MAX: Final = 8
"""Transactions that any other statement can begin, at most: CREATE INDEX CONCURRENTLY begins four."""
_LEAVE_SERIALIZABLE: Final = Command(b"SET default_transaction_isolation = 'repeatable read'", begins=False)
READERS: Final = CURSORS | {"explain", "show"}
"""First words of what can run read-only, as a rule."""
_KEEP_TYPES: Final = CURSORS | WRITES | {"show", "explain"}


def begin(access: port.Access, *, on_replica: bool) -> list[Command]:
    """Open a block whose isolation and rights no statement in it can change. A replica cannot be serializable."""
    return [_BEGIN_ON_REPLICA if on_replica else _BEGIN[access], SNAPSHOT]


async def write_in_block(
    member: Member, access: port.Access, on_replica: bool, write: Callable[[], Awaitable[_Texts]]
) -> _Texts:
    """Open a block and write parameters in it, whose types are asked for: it holds the tables as they were described.
    The first question goes together with BEGIN."""
    begun = member.send(begin(access, on_replica=on_replica))
    texts = await write()
    check(await begun)
    return texts


def works_in_steps(statement: port.Statement) -> bool:
    """Return whether the statement may begin any number of transactions, one after the other."""
    return statement.keyword in _IN_STEPS


async def allow_steps(member: Member, statement: port.Statement) -> None:
    """Make sure that the steps of a statement that runs outside of a block do not outrun the guard's count.

    The level of the session holds until its reset. Text that only looks like steps is counted too high, which does no
    harm.
    """
    if works_in_steps(statement):
        check(await member.run(_LEAVE_SERIALIZABLE))
    elif "concurrently" in statement.sql.lower():
        member.meter.count(_STEPS_MAX)


async def find_size_check(
    pool: Pool, member: Member, target: port.Target, statement: port.Statement
) -> SizeCheck | None:
    """Return what a statement must be held to; None where its database is not full, or where it can only free room."""
    bound = pool.state.full_at
    if bound is None or not target.may_write:
        return None
    if statement.keyword == "vacuum":
        if pool.state.has_code and await vacuum_runs_code(member):
            raise explain_full(bound, CODE_IN_VACUUM)
        return None
    check_keyword(bound, statement.keyword, reads=statement.keyword in READERS)
    return await SizeCheck.before(member, pool.state, bound)


def must_only_read(statement: port.Statement, size_check: SizeCheck | None) -> bool:
    """Return whether a query may not write because hardly any room is left on the disk."""
    return size_check is not None and size_check.bound == DISK_LOW and statement.keyword in READERS


def lacks_disk(failure: port.StatementFailed, size_check: SizeCheck | None) -> bool:
    """Return whether it failed because it could only read, for lack of room on the disk."""
    return size_check is not None and size_check.bound == DISK_LOW and failure.sqlstate == "25006"


def chunk_rows(statement: port.Statement, bounds: port.Bounds) -> int:
    """Return how many of its rows libpq gathers before anybody sees how large they are.

    A connection whose rows are too large together is closed, and the outcome must not be unknown for that: what writes
    hands over each row alone.
    """
    if statement.keyword in WRITES:
        return 1
    return CHUNK_ROWS if bounds.rows_max is None else min(CHUNK_ROWS, bounds.rows_max + 1)


def may_write(target: port.Target, statement: port.Statement, pool: Pool) -> bool:
    """Return whether the statement can have written anything.

    A query can only by INTO, through functions for large objects, or through code of the tenant's own.
    """
    return target.may_write and (pool.state.has_code or text_may_write(statement))


def text_may_write(statement: port.Statement) -> bool:
    """Return the same by its text alone: where there is code of the tenant's, any query may call it."""
    if statement.may_write is None:
        statement.may_write = _read_whether_writes(statement)
    return statement.may_write


def _read_whether_writes(statement: port.Statement) -> bool:
    keyword = statement.keyword
    if keyword == "show":
        return False
    if keyword not in CURSORS and keyword != "explain":
        return True
    folded = fold(statement.sql)
    if keyword == "explain":
        return "analy" in folded
    if keyword == "with" and any(word in folded for word in WRITES):
        return True
    return "into" in folded or "lo_" in folded or "lowrite" in folded


def may_commit_lazily(target: port.Target, reading: Reading, pool: Pool) -> bool:
    """Return whether it could make its commit not wait for the disk, by its text or through code."""
    return target.may_write and (pool.state.has_lasting_code or reading.names_settings)


def changes_types(keyword: str) -> bool:
    """Return whether a statement with this first word may have changed a type that the service remembers."""
    return keyword not in _KEEP_TYPES
