"""Ends autovacuum processes that a tenant's code holds up.

Autovacuum evaluates expressions of indexes and of extended statistics while it analyzes a table. A function in one of
them can run without end, and there are three such processes for all tables. An ended one starts again, so a tenant with
such a function only slows down its own database. This runs for cells only.
"""

import structlog

from tuplegate.engine.postgres.safety.stubborn import Stubborn
from tuplegate.engine.postgres.service.admin import AdminSession

_log = structlog.get_logger()

AUTOVACUUM_EVERY_S = 60.0
HELD_S = 600.0
"""The time for one table. Statistics are computed from a sample; a large one takes a minute."""

_HELD = """
SELECT a.datname, a.pid
  FROM pg_catalog.pg_stat_progress_analyze p JOIN pg_catalog.pg_stat_activity a USING (pid)
 WHERE a.backend_type = 'autovacuum worker' AND p.phase LIKE 'computing%statistics'
   AND a.xact_start < pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => $1::float8)
"""


async def end_held(session: AdminSession, stubborn: Stubborn, held_s: float = HELD_S) -> None:
    """End processes that have been at one table for this long. One that ignores that is killed, as a statement's
    process is."""
    for database, process in await session.fetch(_HELD, str(held_s)):
        _log.warning("autovacuum was ended: it evaluated a tenant's code for too long", database=database)
        await stubborn.end(str(database), int(str(process)))
