"""Runs sessions and streams on an engine, each among the runs that are watched."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from tuplegate.engine import port
from tuplegate.engine.libpq.measures import Measures
from tuplegate.engine.libpq.pool import ConnectionPool, Member
from tuplegate.engine.run.attempts import Attempts
from tuplegate.engine.run.run import Running
from tuplegate.engine.run.session import SessionRun
from tuplegate.engine.run.stream_run import StreamRun
from tuplegate.metrics.cells import observe

_P = TypeVar("_P", bound=ConnectionPool)
_S = TypeVar("_S", bound=SessionRun[Any])


@asynccontextmanager
async def open_session(
    kind: Callable[[_P, port.Target, Member, port.Bounds, float], _S],
    running: Running,
    pool: _P,
    target: port.Target,
    bounds: port.Bounds,
) -> AsyncIterator[_S]:
    """Open a session on a connection apart from the pool's own: two that wait for each other need two, however small
    the pool is."""
    deadline = asyncio.get_running_loop().time() + bounds.timeout_ms / 1000
    session = kind(pool, target, await pool.open_apart(), bounds, deadline)
    running.enter(session)
    try:
        yield session
    finally:
        running.runs.remove(session)
        if session.under_way and not session.member.closed:
            pool.abandon(session.member)
        else:
            session.member.close()


@asynccontextmanager
async def begin_stream(attempts: Attempts, run: StreamRun[Any], measures: Measures) -> AsyncIterator[None]:
    """Begin a stream's run on a connection, and watch and count it until the block is left."""
    run.check_start()
    deadline = asyncio.get_running_loop().time() + run.bounds.timeout_ms / 1000
    run.begin(await attempts.take(run.pool, deadline))
    attempts.running.enter(run)
    measures.attempts += 1
    try:
        yield
    finally:
        attempts.running.runs.remove(run)
        observe(measures.seconds, run.elapsed_us * 1000)
