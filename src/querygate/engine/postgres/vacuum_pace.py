"""How often the bundled engine looks after its databases: so that a thousand that nobody uses cost next to nothing.

Autovacuum starts a process in every database once in `autovacuum_naptime`, whether anything was changed there or not: a
minute by default, and with hundreds of databases a process every tenth of a second for as long as the service is there.
Here the time grows with the number of databases, in steps, so that it is changed rarely. A time that is none of the
steps was chosen by whoever runs the service, and stays.
"""

from querygate.engine.postgres.admin import AdminSession

_LEAST_S = 60
VISITS_A_SECOND = 4.0

_ASK = """
SELECT (SELECT pg_catalog.count(*) FROM pg_catalog.pg_database), setting
  FROM pg_catalog.pg_settings WHERE name = 'autovacuum_naptime'
"""


def nap_s(databases: int, visits_a_second: float = VISITS_A_SECOND) -> int:
    seconds = _LEAST_S
    while databases > seconds * visits_a_second:
        seconds *= 2
    return seconds


async def set_pace(session: AdminSession, visits_a_second: float = VISITS_A_SECOND) -> None:
    [(databases, setting)] = await session.fetch(_ASK)
    wanted, present = nap_s(int(str(databases)), visits_a_second), int(str(setting))
    if present == wanted or nap_s(present, 1) != present:
        return
    await session.fetch(f"ALTER SYSTEM SET autovacuum_naptime = {wanted}")
    await session.fetch("SELECT pg_catalog.pg_reload_conf()")
