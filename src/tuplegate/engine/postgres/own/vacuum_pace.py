"""Sets how often the bundled engine visits its databases, so that a thousand unused ones cost next to nothing.

Autovacuum starts a process in every database once in `autovacuum_naptime`, whether anything was changed there or not: a
minute by default, and with hundreds of databases a process every tenth of a second for as long as the service is there.
Here the time grows with the number of databases, in steps. A time that is none of the steps, or not written by ALTER
SYSTEM, was chosen by whoever runs the service, and stays.
"""

import asyncio

import structlog

from tuplegate.engine.port import EngineFailure
from tuplegate.engine.postgres.own.admin import AdminSession

_log = structlog.get_logger()

_LEAST_S, _MOST_S = 60, 960
_VISITS_A_SECOND = 4.0
_EVERY_S = 60.0

_ASK = """
SELECT (SELECT pg_catalog.count(*) FROM pg_catalog.pg_database), setting,
       source = 'default' OR sourcefile LIKE '%/postgresql.auto.conf'
  FROM pg_catalog.pg_settings WHERE name = 'autovacuum_naptime'
"""


def choose_nap_s(databases: int, present: int, visits_a_second: float = _VISITS_A_SECOND) -> int:
    """Return the time to set where it is `present` now. It goes down only where twice the databases would let it."""
    if present != _step(present):
        return present
    wanted = _step(databases / visits_a_second)
    return wanted if wanted > present else min(present, _step(2 * databases / visits_a_second))


def _step(seconds: float) -> int:
    step = _LEAST_S
    while step < seconds and step < _MOST_S:
        step *= 2
    return step


async def set_pace(session: AdminSession, visits_a_second: float = _VISITS_A_SECOND) -> None:
    [(databases, setting, is_ours)] = await session.fetch(_ASK)
    present = int(str(setting))
    wanted = choose_nap_s(int(str(databases)), present, visits_a_second)
    if wanted != present and is_ours == "t":
        await session.fetch(f"ALTER SYSTEM SET autovacuum_naptime = {wanted}")
        await session.fetch("SELECT pg_catalog.pg_reload_conf()")


async def keep_pace(session: AdminSession) -> None:
    """Set the pace for ever."""
    while True:
        try:
            await set_pace(session)
        except EngineFailure as failure:
            _log.warning("the pace of autovacuum was not set", reason=str(failure))
        await asyncio.sleep(_EVERY_S)
