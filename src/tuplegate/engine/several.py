"""Several engines behind one service: the port, filled by whichever engine a database lives on.

A database lives whole on one engine, and the name that its engine knows it under is on that engine for good: a database
that moves gets another name. So what is known of a name once holds for ever, and choosing is one look into a dict. Who
asks for a name that has a successor by now gets the successor, also where the request was held during the move.

An engine that cannot be reached fails what is asked of its own databases, with its name in the message, and nothing
else. It is tried again and again, and used when it is there. Names that belong to no database are held on the first.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

import structlog

from tuplegate.access.tokens import write_base62
from tuplegate.access.transaction_ids import MARK_LENGTH
from tuplegate.engine import port
from tuplegate.keeping import keep

_log = structlog.get_logger()
_T = TypeVar("_T")

_TRY_AGAIN_S = 1.0
_START_S = 5.0
"""How long a start waits for the further engines; those that take longer are used when they are there."""
_UNKNOWN = "it is not in the settings of this service (engines)"
_HELD_S = 10.0
_HELD_TICK_S = 0.02

Locate = Callable[[Sequence[str]], Awaitable[dict[str, str]]]
"""Tells the engine of each name that is on one."""


class OpenEngine(port.Engine, Protocol):
    """What a worker needs of an engine beyond the port."""

    def let_go(self, database: str) -> None:
        """Turns away whoever waits for the database: it has moved."""
        ...

    def stop_running(self) -> None: ...


Opening = Callable[[], AbstractAsyncContextManager[OpenEngine]]


@dataclass(slots=True)
class _Place:
    """One engine. `engine` is None while it was not reached yet; then `reason` says why."""

    name: str
    engine: OpenEngine | None
    reason: str = "it was not reached yet"
    tried: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def up(self) -> OpenEngine:
        if self.engine is None:
            raise port.EngineUnavailable(self.reason)
        return self.engine

    def named(self, failure: port.EngineFailure) -> port.EngineFailure:
        """The failure with the engine's name in it, where it is one of the engine and not of the request."""
        if type(failure) not in (port.EngineUnavailable, port.EngineLost):
            return failure
        return type(failure)(f"the engine {self.name} is not available: {failure}")


class SeveralEngines:
    """See the module's text. `async with` opens and closes the further ones; the first is its caller's."""

    def __init__(
        self, first: OpenEngine, further: Mapping[str, Opening], locate: Locate, missing: Iterable[str] = ()
    ) -> None:
        """`missing` are engines that databases live on, and that the service was not told of."""
        self._first = _Place(port.FIRST_ENGINE, first)
        self._openings = further
        self._locate = locate
        self._places = {port.FIRST_ENGINE: self._first, **{name: _Place(name, None) for name in further}}
        self._places |= {name: _Place(name, None, _UNKNOWN) for name in missing}
        self._of: dict[str, _Place] = {}
        self._moving: frozenset[str] = frozenset()
        self._successors: dict[str, str] = {}
        self._paused: frozenset[str] = frozenset()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "SeveralEngines":
        self._tasks = [keep(f"engine_{name}", partial(self._keep_open, name)) for name in self._openings]
        if self._tasks:
            tried = [asyncio.ensure_future(self._places[name].tried.wait()) for name in self._openings]
            _, late = await asyncio.wait(tried, timeout=_START_S)
            for waiting in late:
                waiting.cancel()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _keep_open(self, name: str) -> None:
        place = self._places[name]
        while True:
            try:
                async with self._openings[name]() as engine:
                    engine.pause(self._paused)
                    place.engine = engine
                    place.tried.set()
                    _log.info("an engine is in use", engine=name)
                    await asyncio.get_running_loop().create_future()  # until the service stops
            except port.EngineFailure as failure:
                if str(failure) != place.reason:
                    _log.error("an engine cannot be used", engine=name, reason=str(failure))
                place.reason = str(failure)
            finally:
                place.engine = None
                place.tried.set()
            await asyncio.sleep(_TRY_AGAIN_S)

    # -- which engine -------------------------------------------------------------------------------------------

    async def reachable(self) -> list[str]:
        """The names of the engines that answer."""
        places = list(self._places.values())
        found = await asyncio.gather(*(_health(place) for place in places))
        return [
            place.name
            for place, health in zip(places, found, strict=True)
            if isinstance(health, port.EngineHealth) and health.ok
        ]

    def learn(self, database: str, engine: str) -> None:
        """Told whenever the catalog was asked for a database."""
        if database not in self._of and database not in self._successors:
            self._of[database] = self._place(engine)

    def _place(self, engine: str) -> _Place:
        found = self._places.get(engine)
        return found or _Place(engine, None, _UNKNOWN)

    def follow(self, moves: Mapping[str, tuple[str, str] | None]) -> None:
        """Told the names of databases that are moving, or have moved lately: each with its successor, if there is one
        by now, and the engine of that."""
        self._moving = frozenset(moves)
        for former, successor in moves.items():
            if successor is None or former in self._successors:
                continue
            self.learn(*successor)
            self._successors[former] = successor[0]
            place = self._of.pop(former, None)
            if place is not None and place.engine is not None:
                place.engine.let_go(former)

    async def _find(self, database: str) -> tuple[_Place, str]:
        """Where a name is that was not asked for lately, and the name that it has now."""
        while database in self._successors:
            database = self._successors[database]
        found = self._of.get(database)
        if found is None:
            engines = await self._locate([database])
            if database not in engines:
                raise port.EngineUnavailable("the database is on no engine any more")
            found = self._of[database] = self._place(engines[database])
        return found, database

    async def _after(self, database: str, place: _Place, failure: port.EngineFailure) -> str:
        """The name to ask instead, where the database moved under the request. Raises the failure where it did not."""
        deadline = asyncio.get_running_loop().time() + _HELD_S
        while database not in self._successors:
            if database not in self._moving or asyncio.get_running_loop().time() > deadline:
                raise place.named(failure) from failure
            await asyncio.sleep(_HELD_TICK_S)
        return self._successors[database]

    async def _ask(self, database: str, ask: Callable[[OpenEngine, str], Awaitable[_T]]) -> _T:
        while True:
            place = self._of.get(database)
            if place is None:
                place, database = await self._find(database)
            try:
                return await ask(place.up, database)
            except (port.EngineUnavailable, port.EngineBusy) as failure:
                database = await self._after(database, place, failure)

    @asynccontextmanager
    async def _enter(
        self, database: str, enter: Callable[[OpenEngine, str], AbstractAsyncContextManager[_T]]
    ) -> AsyncIterator[_T]:
        async with AsyncExitStack() as stack:
            yield await self._ask(database, lambda engine, name: stack.enter_async_context(enter(engine, name)))

    # -- the port -----------------------------------------------------------------------------------------------

    @property
    def weaknesses(self) -> tuple[port.Weakness, ...]:
        """Of the first engine; the others were prepared by a superuser."""
        return self._first.up.weaknesses

    @property
    def snapshots(self) -> port.Snapshots:
        return _Snapshots(self, self._first.up.snapshots)

    @property
    def tells_positions(self) -> bool:
        return False

    async def position(self) -> bytes:
        return await self._first.up.position()

    async def query(
        self, target: port.Target, statement: port.Statement, shape: port.Shape, bounds: port.Bounds
    ) -> port.Result:
        place = self._of.get(target.database)
        if place is not None and place.engine is not None:
            try:
                return await place.engine.query(target, statement, shape, bounds)
            except (port.EngineUnavailable, port.EngineBusy) as failure:
                target = _renamed(target, await self._after(target.database, place, failure))
        return await self._ask(
            target.database, lambda engine, name: engine.query(_renamed(target, name), statement, shape, bounds)
        )

    async def transaction(
        self,
        target: port.Target,
        statements: list[port.Statement],
        shape: port.Shape,
        bounds: port.Bounds,
        *,
        read_only: bool,
        promise: port.Promise | None,
    ) -> port.TransactionResult:
        async def run(engine: OpenEngine, name: str) -> port.TransactionResult:
            mark = mark_of(name)
            promised = None if promise is None else port.Promise(promise.id, _marking(promise.keep, mark))
            try:
                done = await engine.transaction(
                    _renamed(target, name), statements, shape, bounds, read_only=read_only, promise=promised
                )
            except port.OutcomeUnknown as unknown:
                unknown.mark = mark
                raise
            done.mark = mark
            return done

        return await self._ask(target.database, run)

    async def begin_id(self, database: str, id: str) -> bool:
        return await self._ask(database, lambda engine, name: engine.begin_id(name, id))

    async def abort_id(self, database: str, id: str) -> port.Outcome:
        return await self._ask(database, lambda engine, name: engine.abort_id(name, id))

    async def find_id(self, database: str, id: str) -> port.Outcome | None:
        return await self._ask(database, lambda engine, name: engine.find_id(name, id))

    async def find_kept(self, database: str, route: str, key: str) -> port.KeptAnswers:
        return await self._ask(database, lambda engine, name: engine.find_kept(name, route, key))

    def pause(self, databases: frozenset[str]) -> None:
        self._paused = databases
        for engine in self._open:
            engine.pause(databases)

    def bound_size(self, database: str, bytes_max: int | None) -> None:
        place = self._of.get(database)
        if place is not None and place.engine is not None:
            place.engine.bound_size(database, bytes_max)

    def hold(self, name: str, database: str | None = None) -> AbstractAsyncContextManager[bool]:
        if database is None:
            return self._first.up.hold(name)
        return self._enter(database, lambda engine, _: engine.hold(name))

    async def outcome(self, target: port.Target, number: int, mark: str = "") -> port.Outcome | None:
        return await self._ask(
            target.database,
            lambda engine, name: engine.outcome(_renamed(target, name), number, self._foreign(engine, name, mark)),
        )

    async def outcome_of_lost(self, target: port.Target, ticket: port.Ticket, mark: str = "") -> port.Outcome:
        return await self._ask(
            target.database,
            lambda engine, name: engine.outcome_of_lost(
                _renamed(target, name), ticket, self._foreign(engine, name, mark)
            ),
        )

    def _foreign(self, engine: OpenEngine, database: str, mark: str) -> str:
        """The mark of a transaction, for its engine: none where its number is that engine's own. Without a mark are
        those from before there were several."""
        if mark == mark_of(database) or (not mark and engine is self._first.engine):
            return ""
        return mark or port.FIRST_ENGINE

    def stream(
        self, target: port.Target, statement: port.Statement, shape: port.Shape, bounds: port.Bounds
    ) -> AbstractAsyncContextManager[port.RowStream]:
        return self._enter(
            target.database, lambda engine, name: engine.stream(_renamed(target, name), statement, shape, bounds)
        )

    async def health(self) -> port.EngineHealth:
        places = list(self._places.values())
        first, *further = await asyncio.gather(*(_health(place) for place in places))
        assert isinstance(first, port.EngineHealth)
        warnings = dict(first.warnings)
        for place, health in zip(places[1:], further, strict=True):
            if isinstance(health, str):
                warnings[f"engine {place.name}"] = health
            else:
                wrong = [state for state in health.checks.values() if state != "ok"]
                warnings[f"engine {place.name}"] = wrong[0] if wrong else "ok"
        return port.EngineHealth(first.kind, first.version, first.checks, warnings, first.replicated)

    async def tables(self, target: port.Target, bounds: port.Bounds) -> port.Tables:
        return await self._ask(target.database, lambda engine, name: engine.tables(_renamed(target, name), bounds))

    def session(self, target: port.Target, timeout_ms: int) -> AbstractAsyncContextManager[port.EngineSession]:
        return self._enter(target.database, lambda engine, name: engine.session(_renamed(target, name), timeout_ms))

    def scratch(self, database: str) -> AbstractAsyncContextManager[str]:
        return self._enter(database, lambda engine, name: engine.scratch(name))

    def dump(
        self, database: str, timeout_s: float, organization: str | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._enter(database, lambda engine, name: engine.dump(name, timeout_s, organization))

    async def durability(self, target: port.Target) -> port.Durability:
        return await self._ask(target.database, lambda engine, name: engine.durability(_renamed(target, name)))

    def serializable_headroom(self) -> port.Headroom:
        """Of the first engine."""
        return self._first.up.serializable_headroom()

    def measured(self) -> port.Measured:
        first, *further = [engine.measured() for engine in self._open]
        for other in further:
            for kind, cell in other.seconds.items():
                known = first.seconds.setdefault(kind, [0] * len(cell))
                first.seconds[kind] = [a + b for a, b in zip(known, cell, strict=True)]
            for event, count in other.events.items():
                first.events[event] = first.events.get(event, 0) + count
            for gauge, value in other.gauges.items():
                if not gauge.startswith(_OF_THE_FIRST):
                    first.gauges[gauge] = first.gauges.get(gauge, 0) + value
        return first

    def stop_running(self) -> None:
        for engine in self._open:
            engine.stop_running()

    @property
    def _open(self) -> list[OpenEngine]:
        return [place.engine for place in self._places.values() if place.engine is not None]


class _Snapshots:
    """Answered as if there were no replica: a position of one engine means nothing on another, to which the database
    may have moved since."""

    def __init__(self, engines: SeveralEngines, of_first: port.Snapshots) -> None:
        self._engines = engines
        self._of_first = of_first

    def check(self, position: bytes) -> None:
        self._of_first.check(position)

    async def query(
        self,
        target: port.Target,
        statement: port.Statement,
        shape: port.Shape,
        bounds: port.Bounds,
        after: bytes | None,
    ) -> port.Result:
        self._check(after)
        return await self._engines.query(target, statement, shape, bounds)

    async def transaction(
        self,
        target: port.Target,
        statements: list[port.Statement],
        shape: port.Shape,
        bounds: port.Bounds,
        after: bytes | None,
    ) -> port.TransactionResult:
        self._check(after)
        return await self._engines.transaction(target, statements, shape, bounds, read_only=True, promise=None)

    def stream(
        self,
        target: port.Target,
        statement: port.Statement,
        shape: port.Shape,
        bounds: port.Bounds,
        after: bytes | None,
    ) -> AbstractAsyncContextManager[port.RowStream]:
        self._check(after)
        return self._engines.stream(target, statement, shape, bounds)

    def _check(self, after: bytes | None) -> None:
        if after is not None:
            self._of_first.check(after)


_OF_THE_FIRST = ("serializable_", "disk_")
"""Gauges that are shown of the first engine alone."""


def mark_of(database: str) -> str:
    """Stands for a name: a database that was reset or moved since has another."""
    digest = hashlib.sha256(database.encode()).digest()
    return write_base62(int.from_bytes(digest, "big"), MARK_LENGTH)


def _marking(keep: port.Keep | None, mark: str) -> port.Keep | None:
    """What is to be recorded, made of a result with the mark in it."""
    if keep is None:
        return None
    body = keep.body

    def marked(done: port.TransactionResult) -> bytes:
        done.mark = mark
        return body(done)

    return port.Keep(keep.route, keep.key, keep.request, marked)


async def _health(place: _Place) -> port.EngineHealth | str:
    return place.reason if place.engine is None else await place.engine.health()


def _renamed(target: port.Target, database: str) -> port.Target:
    return target if target.database == database else port.Target(database, target.access, target.id)


class SeveralDatabases:
    """The databases of all engines: each step is done by the engine that a name is on. `engines` has the first one."""

    def __init__(self, engines: Mapping[str, port.Databases], locate: Locate) -> None:
        self._engines = engines
        self._locate = locate
        self._of: dict[str, str] = {}

    def on(self, engine: str) -> port.Databases:
        """Raises EngineUnavailable where the service has no such engine."""
        try:
            return self._engines[engine]
        except KeyError:
            raise port.EngineUnavailable(f"the engine {engine} is not in the settings of this service") from None

    async def _on(self, name: str) -> port.Databases:
        await self._learn([name])
        if name not in self._of:
            raise port.EngineUnavailable(f"the database {name} is on no engine")
        return self.on(self._of[name])

    async def _learn(self, names: Sequence[str]) -> None:
        if new := [name for name in names if name not in self._of]:
            self._of |= await self._locate(new)

    def furnishing_of(self, name: str) -> str:
        return self.on(self._of[name]).furnishing_of(name)

    async def create(self, name: str, *, for_copy: bool = False) -> None:
        await (await self._on(name)).create(name, for_copy=for_copy)

    async def copy(self, source: str, name: str) -> None:
        await (await self._on(name)).copy(source, name)

    async def silence(self, name: str) -> None:
        await (await self._on(name)).silence(name)

    async def open(self, name: str) -> None:
        await (await self._on(name)).open(name)

    async def keep_outcomes(self, source: str, name: str) -> None:
        await (await self._on(name)).keep_outcomes(source, name)

    async def drop(self, name: str) -> None:
        await (await self._on(name)).drop(name)
        self._of.pop(name, None)

    async def drop_left_roles(self) -> None:
        for engine, databases in self._engines.items():
            try:
                await databases.drop_left_roles()
            except port.EngineFailure:
                if engine == port.FIRST_ENGINE:
                    raise

    async def sizes(self, names: Sequence[str]) -> dict[str, int]:
        await self._learn(names)
        by_engine: dict[str, list[str]] = {}
        for name in names:
            if name in self._of:
                by_engine.setdefault(self._of[name], []).append(name)
        found: dict[str, int] = {}
        for engine, of_one in by_engine.items():
            try:
                found |= await self.on(engine).sizes(of_one)
            except port.EngineUnavailable:
                continue  # an engine that is down keeps nobody from seeing the others
        return found

    async def take_over(self, other: port.Databases, source: str, name: str) -> None:
        await (await self._on(name)).take_over(other, source, name)

    @asynccontextmanager
    async def follow(self, other: port.Databases, source: str, name: str) -> AsyncIterator[port.Following]:
        async with (await self._on(name)).follow(other, source, name) as following:
            yield following

    async def stop_following(self, name: str, *, dumped: bool) -> None:
        await (await self._on(name)).stop_following(name, dumped=dumped)

    @asynccontextmanager
    async def keep_up(self, source: str, name: str) -> AsyncIterator[port.Following]:
        async with self.follow(await self._on(source), source, name) as following:
            yield following

    async def forget_source(self, source: str) -> None:
        for databases in self._engines.values():
            await databases.forget_source(source)

    async def let_end(self, name: str, seconds: float) -> None:
        await (await self._on(name)).let_end(name, seconds)

    async def check_silent(self, name: str) -> None:
        await (await self._on(name)).check_silent(name)

    async def load(self) -> port.Load:
        """Of the first engine."""
        return await self.on(port.FIRST_ENGINE).load()

    async def bring(self, source: str, name: str) -> None:
        """All that is in `source`, which is silent, into `name`, on whichever engines they are."""
        await (await self._on(name)).take_over(await self._on(source), source, name)

    async def analyze(self, name: str) -> None:
        await (await self._on(name)).analyze(name)
