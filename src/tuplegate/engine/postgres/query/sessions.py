"""Borrows connections of a pool for sessions of the service's own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tuplegate.engine import port
from tuplegate.engine.postgres.pool import Pool
from tuplegate.engine.run.run import Running
from tuplegate.engine.run.session import SessionRun


@asynccontextmanager
async def borrow_session(
    running: Running, pool: Pool, target: port.Target, bounds: port.Bounds
) -> AsyncIterator[SessionRun[Pool]]:
    """Open a session on a connection of the pool, which gets it back and cleans it."""
    deadline = asyncio.get_running_loop().time() + bounds.timeout_ms / 1000
    member = pool.take() or await pool.wait(deadline)
    session = SessionRun(pool, target, member, bounds, deadline, writes=False)
    running.enter(session)
    try:
        member.hide_kept()
        await pool.freshen(member)
        yield session
    finally:
        running.runs.remove(session)
        if session.under_way or session.ended is not None:
            pool.abandon(member)
        else:
            pool.give_back_unclean(member)
