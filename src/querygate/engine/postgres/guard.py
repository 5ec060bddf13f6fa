"""Closes the hole in the engine's SERIALIZABLE.

PostgreSQL keeps what it must know of committed serializable transactions in a pool of fixed size. When more of them
begin than the pool holds, it forgets the oldest, and a transaction that overlapped with those can commit a write skew.
So what writes may not live longer than a safe share of the pool: the service counts every command that it sends over a
tenant's connection, each of which can begin one transaction at most, and what has seen too many of them is ended with a
conflict and run again.

The count is this worker's own. Other clients of the same engine are not seen.
"""

from querygate.engine.postgres.connection import Meter

SLOTS_SQL = """
SELECT 10 * (sum(setting::int) + 2) FROM pg_catalog.pg_settings
 WHERE name IN ('max_connections', 'max_prepared_transactions', 'max_worker_processes', 'max_wal_senders',
                CASE WHEN current_setting('server_version_num')::int >= 180000
                     THEN 'autovacuum_worker_slots' ELSE 'autovacuum_max_workers' END)
"""
"""The size of the engine's pool, by its own formula; before version 18 a little less, which is on the safe side."""

_SAFE_SHARE = 0.75
"""Between the look at the count and the commit itself more transactions begin; the rest of the pool is for them."""


class SerializableGuard(Meter):
    """`begun` is counted up by the connections themselves."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.begun = 0
        self.safe = int(slots * _SAFE_SHARE)

    def outlived(self, begun: int) -> bool:
        """Whether so many have begun since that the engine may have forgotten one that matters."""
        return self.begun - begun > self.safe
