"""Decides what a statement may do, whether it is checked for size, and how its rows are handed over.

It judges by the first word and by names in the text. If they do not tell, it assumes the worse.
"""

from typing import Final

from tuplegate.engine import port
from tuplegate.engine.libpq.connections.commands import Command
from tuplegate.engine.libpq.connections.connection import CHUNK_ROWS
from tuplegate.engine.libpq.connections.server_errors import check
from tuplegate.engine.libpq.pools.pool import Member
from tuplegate.engine.postgres.pools.pool import Pool
from tuplegate.engine.postgres.safety.sizes import (
    CODE_IN_VACUUM,
    DISK_LOW,
    SizeCheck,
    check_keyword,
    vacuum_runs_code,
)
from tuplegate.engine.run.ends import explain_full
from tuplegate.engine.sql.facts import Facts

_STEPS_MAX: Final = 8
"""The bound on the transactions that any other statement can begin: CREATE INDEX CONCURRENTLY begins four."""
_LEAVE_SERIALIZABLE: Final = Command(b"SET default_transaction_isolation = 'repeatable read'", begins=False)


async def allow_steps(member: Member, facts: Facts) -> None:
    """Make sure that the steps of a statement that runs outside of a block do not outrun the guard's count.

    The level of the session holds until its reset. Text that only looks like steps is counted too high, which does no
    harm.
    """
    if facts.works_in_steps:
        check(await member.run(_LEAVE_SERIALIZABLE))
    elif facts.is_concurrent:
        member.meter.count(_STEPS_MAX)


async def find_size_check(pool: Pool, member: Member, target: port.Target, facts: Facts) -> SizeCheck | None:
    """Return the size check for a statement; None if its database is not full, or the statement can only free room."""
    bound = pool.state.full_at
    if bound is None or not target.may_write:
        return None
    if facts.keyword == "vacuum":
        if pool.state.has_code and await vacuum_runs_code(member):
            raise explain_full(bound, CODE_IN_VACUUM)
        return None
    check_keyword(bound, facts.keyword, reads=facts.is_reader)
    return await SizeCheck.before(member, pool.state, bound)


def must_only_read(facts: Facts, size_check: SizeCheck | None) -> bool:
    """Return whether a query may not write because hardly any room is left on the disk."""
    return size_check is not None and size_check.bound == DISK_LOW and facts.is_reader


def lacks_disk(failure: port.StatementFailed, size_check: SizeCheck | None) -> bool:
    """Return whether it failed because it could only read, for lack of room on the disk."""
    return size_check is not None and size_check.bound == DISK_LOW and failure.sqlstate == "25006"


def chunk_rows(facts: Facts, bounds: port.Bounds) -> int:
    """Return the number of rows that libpq gathers before the service sees their size.

    If rows together are too large, the connection is closed, and that must not make an outcome unknown: so a statement
    that writes hands over each row alone.
    """
    if facts.is_change:
        return 1
    return CHUNK_ROWS if bounds.rows_max is None else min(CHUNK_ROWS, bounds.rows_max + 1)


def may_write(target: port.Target, facts: Facts, pool: Pool) -> bool:
    """Return whether the statement can have written anything: by its text, or through code of the tenant's own."""
    return target.may_write and (pool.state.has_code or facts.may_write)


def may_commit_lazily(target: port.Target, facts: Facts, pool: Pool) -> bool:
    """Return whether the statement could make its commit not wait for the disk, by its text or through code."""
    return target.may_write and (pool.state.has_lasting_code or facts.names_settings)
