"""Closes the hole in the engine's SERIALIZABLE.

PostgreSQL keeps what it must know of committed serializable transactions in a pool of fixed size. When more of them
begin than the pool holds, it forgets the oldest, and a transaction that overlapped with those can commit a write skew.
So what writes may not live longer than a safe share of the pool: the service counts every transaction that it begins,
and one that has seen too many others begin is ended with a conflict and run again.

The count is this worker's own. Other clients of the same engine are not seen.
"""

SLOTS_SQL = """
SELECT 10 * (sum(setting::int) + 2) FROM pg_catalog.pg_settings
 WHERE name IN ('max_connections', 'max_prepared_transactions', 'max_worker_processes', 'max_wal_senders',
                CASE WHEN current_setting('server_version_num')::int >= 180000
                     THEN 'autovacuum_worker_slots' ELSE 'autovacuum_max_workers' END)
"""
"""The size of the engine's pool, by its own formula; before version 18 a little less, which is on the safe side."""

_SAFE_SHARE = 0.5
"""Between the look at the count and the commit itself more transactions begin; half of the pool is for them."""


class SerializableGuard:
    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.begun = 0
        self._safe = int(slots * _SAFE_SHARE)

    def begin(self) -> int:
        """Counts a transaction; what it gives is asked about later."""
        self.begun += 1
        return self.begun

    def outlived(self, begun: int) -> bool:
        """Whether so many have begun since that the engine may have forgotten one that matters."""
        return self.begun - begun > self._safe
