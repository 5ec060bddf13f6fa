"""Opens sessions of the service's own, and gives their connections back."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tuplegate.engine import port
from tuplegate.engine.postgres.pool import Pool
from tuplegate.engine.postgres.query.session import SessionRun


@asynccontextmanager
async def open_session(
    pool: Pool, target: port.Target, bounds: port.Bounds, deadline: float
) -> AsyncIterator[SessionRun]:
    """Open a session on a connection apart from the pool's own: two sessions that wait for each other need two
    connections, however small the pool is."""
    member = await pool.open_apart()
    session = SessionRun(pool, target, member, bounds, deadline, writes=True)
    try:
        yield session
    finally:
        if session.under_way and not member.closed:
            pool.abandon(member)
        else:
            member.close()


@asynccontextmanager
async def borrow_session(
    pool: Pool, target: port.Target, bounds: port.Bounds, deadline: float
) -> AsyncIterator[SessionRun]:
    """Open a session on a connection of the pool, which gets it back and cleans it."""
    member = pool.take() or await pool.wait(deadline)
    session = SessionRun(pool, target, member, bounds, deadline, writes=False)
    try:
        member.hide_kept()
        await pool.freshen(member)
        yield session
    finally:
        if session.under_way or session.ended is not None:
            pool.abandon(member)
        else:
            pool.give_back_unclean(member)
