"""Keeps one database from filling the engine's tables of locks, which all databases share.

When such a table is full, everybody's statements fail with 53200. A transaction that uses thousands of tables fills the
one of plain locks. The one of predicate locks, by which SERIALIZABLE is checked, also keeps those of transactions that
have ended, for as long as one that overlapped with them is open: so it can be filled by many short ones as well.

While a table is less than half full nobody is held back. Beyond that, the databases that hold most are: what holds most
there is ended until there is room, and nothing new begins there before. Where that is not enough, because
somebody's long transaction keeps the locks of all others, the longest running one is ended too, as a conflict.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

CAPACITY_SQL = """
SELECT least(current_setting('max_locks_per_transaction')::bigint,
             current_setting('max_pred_locks_per_transaction')::bigint)
       * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint)
"""
"""How many locks the smaller of the two tables holds for certain."""

# It reads no catalog: those that all databases share may be what somebody has locked. To notify is to lock the shared
# object number 0.
HELD_SQL = """
SELECT l.database, l.pid, l.mode = 'SIReadLock', count(*),
       bool_or(l.database = 0 AND l.mode NOT IN ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')
               AND (l.locktype = 'relation' OR l.locktype = 'object' AND l.objid <> 0))
  FROM pg_catalog.pg_lock_status() l WHERE l.database IS NOT NULL GROUP BY 1, 2, 3
"""
"""Locks by the number of their database, and whether one of them is on what all databases share, and such that others
must wait for it. A tenant gets such a lock before the engine finds that it has no right to what it wants."""

NAMES_SQL = "SELECT oid, datname FROM pg_catalog.pg_database"

_GREAT_PART = 0.1


@dataclass(frozen=True, slots=True)
class Held:
    """Locks of one kind that one server process holds, or has left behind."""

    database: str
    process: int
    predicate: bool
    count: int


@dataclass(slots=True)
class Judgement:
    """`ended` are server processes; `outlived` one that is ended as a conflict."""

    crowded: set[str] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    outlived: int | None = None


def judge(held: list[Held], running: Mapping[int, float], capacity: int) -> Judgement:
    """Return what to do. `running` says since when each of this worker's server processes is at its statement."""
    verdict = Judgement()
    for predicate in (False, True):
        of_kind = [entry for entry in held if entry.predicate is predicate]
        total = sum(entry.count for entry in of_kind)
        _hold_back(verdict, of_kind, total, running, capacity // 2)
        if predicate and total > capacity * 3 // 4 and running:
            verdict.outlived = min(running, key=lambda process: running[process])
    return verdict


def _hold_back(verdict: Judgement, held: list[Held], total: int, running: Mapping[int, float], bound: int) -> None:
    by_database: dict[str, int] = {}
    for entry in held:
        by_database[entry.database] = by_database.get(entry.database, 0) + entry.count
    for database in sorted(by_database, key=lambda name: by_database[name], reverse=True):
        if total <= bound:
            return
        excess = total - bound
        total -= by_database[database]
        verdict.crowded.add(database)
        own = [entry for entry in held if entry.database == database and entry.process in running]
        for entry in sorted(own, key=lambda entry: entry.count, reverse=True):
            # Predicate locks stay behind: to end what holds few of them frees nothing.
            if excess <= 0 or (entry.predicate and entry.count <= bound * _GREAT_PART):
                break
            verdict.ended.add(entry.process)
            excess -= entry.count
