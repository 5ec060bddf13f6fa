"""Opens sessions of the service's own, and closes their connections."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tuplegate.engine import port
from tuplegate.engine.cockroach.pools.pool import Pool
from tuplegate.engine.cockroach.query.session import SessionRun


@asynccontextmanager
async def open_session(
    pool: Pool, target: port.Target, bounds: port.Bounds, deadline: float
) -> AsyncIterator[SessionRun]:
    """Open a session on a connection apart from the pool's own."""
    session = SessionRun(pool, target, bounds, deadline)
    session.begin(await pool.open_apart())
    try:
        yield session
    finally:
        if session.under_way and not session.member.closed:
            pool.abandon(session.member)
        else:
            session.member.close()
