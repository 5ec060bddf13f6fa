"""Runs a probe on the engine and judges it by what happened.

Verdicts are about the engine, so every probe runs with the writing role, whoever asks. If possible, a probe is one
transaction that is rolled back: however it ends, nothing of it is ever visible. The others work in a scratch schema. So
does a probe that failed in a transaction: some engines change definitions only outside of one.
"""

import asyncio
import secrets
from contextlib import AsyncExitStack
from dataclasses import dataclass
from time import perf_counter_ns

from tuplegate.data_plane.capabilities.probes import AnyProbe, Exercise, Observation, Probe, Probed, Race, Step
from tuplegate.engine import port

_TIMEOUT_MS = 20_000
_ATTEMPTS_MAX = 3
_BLOCKED_S = 2.0
"""A move that takes longer waits for another transaction of its race; the others continue meanwhile."""

_UNKNOWN_WORDS = ("42601", "42704", "42883")
"""SQLSTATEs of a text that the engine does not understand, in a transaction or not."""

_EXTENSION_SCHEMA = """
SELECT pg_catalog.quote_ident(n.nspname) FROM pg_catalog.pg_extension e
  JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) e.extnamespace
 WHERE e.extname OPERATOR(pg_catalog.=) $1::pg_catalog.name
"""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a probe."""

    supported: bool
    observations: list[Observation]
    microseconds: int


async def run_probe(probed: Probed, database: str, probe: AnyProbe) -> Report:
    """Run the probe and return its report. Raises the port's failures if the engine could not be asked."""
    started = perf_counter_ns()
    attempt = 1
    while True:
        try:
            match probe:
                case Probe(rolled_back=True):
                    observations = await _run_rolled_back(probed.sessions, database, probe)
                    if _may_need_commits(probe, observations):
                        observations = await _run_committed(probed.sessions, database, probe)
                case Probe():
                    observations = await _run_committed(probed.sessions, database, probe)
                case Race():
                    return await _race(probed.sessions, database, probe, started)
                case Exercise():
                    observations = await probe.run(probed, database)
            return Report(all(one.expected for one in observations), observations, _since(started))
        except port.Conflict:
            # A conflict with other work says nothing about the probed feature.
            if attempt == _ATTEMPTS_MAX:
                raise
            attempt += 1


def _may_need_commits(probe: Probe, observations: list[Observation]) -> bool:
    """Return whether the probe failed only because the engine does less inside of a transaction, possibly."""
    refused = next((one for one in observations if not one.expected), None)
    # An extension would stay in the tenant's database.
    return refused is not None and probe.extension is None and refused.sqlstate not in _UNKNOWN_WORDS


async def _run_rolled_back(sessions: port.Sessions, database: str, probe: Probe) -> list[Observation]:
    schema = f"tuplegate_scratch_{secrets.token_hex(8)}"
    async with sessions.session(port.Target(database, port.Access.WRITE), _TIMEOUT_MS) as session:
        await session.run("BEGIN")
        await session.run(f"CREATE SCHEMA {schema}")
        observations = await _prepare(session, schema, probe)
        if all(one.expected for one in observations):
            observations += await _run_steps(session, await _steps(session, probe), in_transaction=True)
        await session.run("ROLLBACK")
    return observations


async def _run_committed(sessions: port.Sessions, database: str, probe: Probe) -> list[Observation]:
    async with (
        sessions.scratch(database) as schema,
        sessions.session(port.Target(database, port.Access.WRITE), _TIMEOUT_MS) as session,
    ):
        await session.run(f"SET search_path = {schema}")
        return await _run_steps(session, list(probe.steps), in_transaction=False)


async def _prepare(session: port.EngineSession, schema: str, probe: Probe) -> list[Observation]:
    """Create the probe's extension, and let names mean only the scratch schema and the engine's own."""
    await session.run(f"SET LOCAL search_path = {schema}")
    if probe.extension is None:
        return []
    return [await _observe(session, Step(f"create extension if not exists {probe.extension}"))]


async def _steps(session: port.EngineSession, probe: Probe) -> list[Step]:
    if probe.extension is None:
        return list(probe.steps)
    found = (await session.run(_EXTENSION_SCHEMA, probe.extension)).rows
    # An engine that lists no such extension, and yet takes the statement that creates it, has it built in.
    schema = str(found[0][0]) if found else "pg_catalog"
    return [Step(step.sql.replace("{ext}", schema), step.rows, step.sqlstate) for step in probe.steps]


async def _run_steps(session: port.EngineSession, steps: list[Step], *, in_transaction: bool) -> list[Observation]:
    """Run steps up to the first that fails its expectation."""
    observations: list[Observation] = []
    for step in steps:
        may_fail = in_transaction and step.sqlstate is not None
        if may_fail:
            await session.run("SAVEPOINT tuplegate_probe")
        observations.append(await _observe(session, step))
        if not observations[-1].expected:
            break
        if may_fail:
            undone = await _observe(session, Step("ROLLBACK TO tuplegate_probe"))
            if not undone.expected:
                return [*observations, undone]
    return observations


async def _observe(session: port.EngineSession, step: Step, actor: str | None = None) -> Observation:
    started = perf_counter_ns()
    try:
        reply = await session.run(step.sql)
    except (port.Conflict, port.TimedOut, port.Stopped):
        raise
    except port.StatementFailed as failure:
        expected = step.sqlstate is not None and failure.sqlstate == step.sqlstate
        return Observation(step.sql, None, failure.message, failure.sqlstate, expected, _since(started), actor)
    rows = tuple(reply.rows)
    expected = step.sqlstate is None and (step.rows is None or step.rows == rows)
    return Observation(step.sql, rows, None, None, expected, _since(started), actor)


def _since(started: int) -> int:
    return (perf_counter_ns() - started) // 1000


# -- races ----------------------------------------------------------------------------------------------------------


async def _race(sessions: port.Sessions, database: str, race: Race, started: int) -> Report:
    """Run the race. The level holds if the forbidden history did not happen, and for no other reason than the level."""
    target = port.Target(database, port.Access.WRITE)
    async with AsyncExitStack() as stack:
        schema = await stack.enter_async_context(sessions.scratch(database))
        actors: dict[str, _Actor] = {}
        for name in dict.fromkeys(move.actor for move in race.history):
            session = await stack.enter_async_context(sessions.session(target, _TIMEOUT_MS))
            await session.run(f"SET search_path = {schema}")
            actors[name] = _Actor(name, session)
        observations = await _run_steps(
            next(iter(actors.values())).session, [Step(sql) for sql in race.setup], in_transaction=False
        )
        if all(one.expected for one in observations):
            observations += await _play(race, actors)
    moves = observations[len(race.setup) :]
    refused = any(one.sqlstate in ("40001", "40P01") for one in moves)
    broken = any(one.sqlstate not in (None, "40001", "40P01") for one in observations)
    happened = not refused and len(moves) == len(race.history) and all(one.expected for one in moves)
    return Report(not happened and not broken and bool(moves), observations, _since(started))


class _Actor:
    """A transaction of a race. Its moves run in order, up to its first failure."""

    def __init__(self, name: str, session: port.EngineSession) -> None:
        self.name = name
        self.session = session
        self.failed = False
        self._last: asyncio.Task[Observation | None] | None = None

    def move(self, step: Step) -> "asyncio.Task[Observation | None]":
        self._last = asyncio.get_running_loop().create_task(self._after(self._last, step))
        return self._last

    async def _after(self, last: "asyncio.Task[Observation | None] | None", step: Step) -> Observation | None:
        if last is not None:
            await asyncio.wait([last])
        if self.failed:
            return None
        started = perf_counter_ns()
        try:
            seen = await _observe(self.session, step, self.name)
        except port.Conflict as conflict:
            self.failed = True
            await self.session.run("ROLLBACK")  # its locks must not block the others
            return Observation(step.sql, None, conflict.message, conflict.sqlstate, False, _since(started), self.name)
        self.failed = seen.error is not None
        return seen


async def _play(race: Race, actors: dict[str, _Actor]) -> list[Observation]:
    for actor in actors.values():
        await actor.session.run(f"BEGIN ISOLATION LEVEL {race.isolation}")
    tasks: list[asyncio.Task[Observation | None]] = []
    try:
        for move in race.history:
            tasks.append(actors[move.actor].move(move.step))
            await asyncio.wait([tasks[-1]], timeout=_BLOCKED_S)
        await asyncio.wait(tasks)
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
    return [seen for task in tasks if (seen := task.result()) is not None]
