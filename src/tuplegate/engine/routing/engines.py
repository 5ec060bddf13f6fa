"""The port over several engines: each request goes to the engine that its database lives on.

A database lives completely on one engine, and its name stays on that engine for good: a database that moves gets
another name. So the engine of a name never changes, and to find it is one look into a dict. A request for a name that
has a successor goes to the successor, even if the request was held during the move.

An engine that cannot be reached fails the requests for its own databases, with its name in the message, and no others.
The service keeps trying, and uses it when it is back. Locks that belong to no database are held on the first engine.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TypeVar

import structlog

from tuplegate.access.tokens import write_base62
from tuplegate.access.transaction_ids import MARK_LENGTH
from tuplegate.background import keep
from tuplegate.engine import port
from tuplegate.engine.cells.line import Stay
from tuplegate.engine.routing.databases import Locate
from tuplegate.engine.routing.locations import CellPlace, Cells, Place

_log = structlog.get_logger()
_T = TypeVar("_T")

_TRY_AGAIN_S = 1.0
_START_S = 5.0
"""How long a start waits for the further engines; slower ones are used once they are there."""
_UNKNOWN = "it is not in the settings of this service (engines)"
_HELD_S = 10.0
_HELD_TICK_S = 0.02

Opening = Callable[[], AbstractAsyncContextManager[port.OpenEngine]]


# size: it fills the port, with a short method for each of its parts.
class SeveralEngines:
    """Fills the port. `async with` opens and closes the further engines; the caller has opened the first."""

    def __init__(
        self,
        first: port.OpenEngine,
        further: Mapping[str, Opening],
        locate: Locate,
        missing: Iterable[str] = (),
        cells: Cells | None = None,
    ) -> None:
        """Open nothing yet. `missing` are engines that have databases but are not in the settings. With `cells` the
        first engine only has the catalog, and its databases are in cells."""
        self._first = Place(port.FIRST_ENGINE, first)
        self._openings = further
        self._locate = locate
        self._cells = cells
        self._places = {port.FIRST_ENGINE: self._first, **{name: Place(name) for name in further}}
        self._places |= {name: Place(name, reason=_UNKNOWN) for name in missing}
        self._of: dict[str, Place] = {}
        self._retired = port.Measured({}, {}, {})
        self._moving: frozenset[str] = frozenset()
        self._successors: dict[str, str] = {}
        self._paused: frozenset[str] = frozenset()
        self._tasks: list[asyncio.Task[None]] = []
        # The first engine does for all what belongs to no database. It was told of the weaknesses of the others, and
        # all share the memory for answers.
        self.weaknesses = first.weaknesses
        self.hold, self.hold_answer = first.hold, first.hold_answer
        self.serializable_headroom = first.serializable_headroom
        # A position of one engine means nothing on another, where the database may be by now: no replica is asked.
        self.position, self.tells_positions = first.position, False
        self.snapshots = first.snapshots.asked_of(self)

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

    @property
    def is_several(self) -> bool:
        """Return whether there is an engine beside the first."""
        return len(self._places) > 1

    async def find_reachable(self) -> list[str]:
        """Return the names of the engines that answer."""
        places = list(self._places.values())
        found = await asyncio.gather(*(_ask_health(place) for place in places))
        return [
            place.name
            for place, health in zip(places, found, strict=True)
            if isinstance(health, port.EngineHealth) and health.ok
        ]

    def learn(self, database: str, engine: str) -> None:
        """Note the engine of a database, as the catalog has it."""
        if database not in self._of and database not in self._successors:
            self._of[database] = self._place(database, engine)

    def _place(self, database: str, engine: str) -> Place:
        if engine == port.FIRST_ENGINE and self._cells is not None:
            place = CellPlace(database, self._cells, self._retire)
            place.is_paused = database in self._paused
            return place
        found = self._places.get(engine)
        return found or Place(engine, reason=_UNKNOWN)

    def follow(self, moves: Mapping[str, tuple[str, str] | None]) -> None:
        """Note the databases that are moving or have moved recently: each with its successor, if it has one by now, and
        the successor's engine."""
        self._moving = frozenset(moves)
        for former, successor in moves.items():
            if successor is None or former in self._successors:
                continue
            self.learn(*successor)
            self._successors[former] = successor[0]
            place = self._of.pop(former, None)
            if place is not None and place.engine is not None:
                place.engine.let_go(former)

    async def _find(self, database: str) -> tuple[Place, str]:
        """Return the engine of a name that is not in the dict, and the current name of its database."""
        while database in self._successors:
            database = self._successors[database]
        found = self._of.get(database)
        if found is None:
            engines = await self._locate([database])
            if database not in engines:
                raise port.EngineUnavailable("the database is on no engine any more")
            found = self._of[database] = self._place(database, engines[database])
        return found, database

    async def _find_successor(self, database: str, place: Place, stay: Stay, failure: port.EngineFailure) -> str:
        """Return the name to ask next if the database moved during the request; or the same name, if its cell was put
        to sleep before the request had begun there. Otherwise raise the failure."""
        if type(failure) is port.EngineUnavailable and await place.has_left(stay):
            return database
        deadline = asyncio.get_running_loop().time() + _HELD_S
        while database not in self._successors:
            if database not in self._moving or asyncio.get_running_loop().time() > deadline:
                raise place.explain(failure) from failure
            await asyncio.sleep(_HELD_TICK_S)
        return self._successors[database]

    async def _ask(self, database: str, ask: Callable[[port.OpenEngine, str], Awaitable[_T]]) -> _T:
        return (await self._ask_at(database, ask))[0]

    async def _ask_at(self, database: str, ask: Callable[[port.OpenEngine, str], Awaitable[_T]]) -> tuple[_T, Stay]:
        """Ask the engine of a database. Return its answer, and the stay there, which may be over by now."""
        while True:
            place = self._of.get(database)
            if place is None:
                place, database = await self._find(database)
            stay = Stay(database)
            try:
                engine = place.engine or await place.reach()
                stay = place.stay
                stay.users += 1
                try:
                    return await ask(engine, database), stay
                finally:
                    stay.users -= 1
                    stay.was_used = True
            except (port.EngineUnavailable, port.EngineBusy) as failure:
                database = await self._find_successor(database, place, stay, failure)

    @asynccontextmanager
    async def _enter(
        self, database: str, enter: Callable[[port.OpenEngine, str], AbstractAsyncContextManager[_T]]
    ) -> AsyncIterator[_T]:
        async with AsyncExitStack() as stack:
            entered, stay = await self._ask_at(
                database, lambda engine, name: stack.enter_async_context(enter(engine, name))
            )
            stay.users += 1
            try:
                yield entered
            finally:
                stay.users -= 1

    # -- the port -----------------------------------------------------------------------------------------------

    async def query(self, target: port.Target, statement: port.Statement, bounds: port.Bounds) -> port.Result:
        place = self._of.get(target.database)
        if place is not None and (engine := place.engine) is not None:  # nothing stands between: see _ask for the rest
            stay = place.stay
            stay.users += 1
            try:
                return await engine.query(target, statement, bounds)
            except (port.EngineUnavailable, port.EngineBusy) as failure:
                target = _rename(target, await self._find_successor(target.database, place, stay, failure))
            finally:
                stay.users -= 1
                stay.was_used = True
        return await self._ask(
            target.database, lambda engine, name: engine.query(_rename(target, name), statement, bounds)
        )

    async def transaction(
        self,
        target: port.Target,
        statements: list[port.Statement],
        bounds: port.Bounds,
        *,
        read_only: bool = False,
        promise: port.Promise | None = None,
    ) -> port.TransactionResult:
        async def run(engine: port.OpenEngine, name: str) -> port.TransactionResult:
            mark = mark_of(name)
            promised = None if promise is None else port.Promise(promise.id, _add_mark(promise.keep, mark))
            try:
                done = await engine.transaction(
                    _rename(target, name), statements, bounds, read_only=read_only, promise=promised
                )
            except port.OutcomeUnknown as unknown:
                unknown.mark = mark
                raise
            done.mark = mark
            return done

        return await self._ask(target.database, run)

    async def begin(self, target: port.Target, id: str, timeout_ms: int, *, read_only: bool) -> port.OpenTransaction:
        return await self._ask(
            target.database,
            lambda engine, name: engine.begin(_rename(target, name), id, timeout_ms, read_only=read_only),
        )

    async def begin_id(self, database: str, id: str) -> bool:
        return await self._ask(database, lambda engine, name: engine.begin_id(name, id))

    async def abort_id(self, database: str, id: str, *, even_if_full: bool = False) -> port.Outcome:
        return await self._ask(database, lambda engine, name: engine.abort_id(name, id, even_if_full=even_if_full))

    async def find_id(self, database: str, id: str) -> port.Outcome | None:
        return await self._ask(database, lambda engine, name: engine.find_id(name, id))

    async def find_kept(self, database: str, route: str, key: str) -> port.KeptAnswers:
        return await self._ask(database, lambda engine, name: engine.find_kept(name, route, key))

    def pause(self, databases: frozenset[str]) -> None:
        self._paused = databases
        for place in self._of.values():
            if isinstance(place, CellPlace):
                place.is_paused = place.name in databases
        for engine in self._open:
            engine.pause(databases)

    def bound_size(self, database: str, bytes_max: int | None) -> None:
        place = self._of.get(database)
        if isinstance(place, CellPlace):
            place.bytes_max = bytes_max
        if place is not None and place.engine is not None:
            place.engine.bound_size(database, bytes_max)

    def hold_in(self, database: str, lock: port.Lock, key: str = "") -> AbstractAsyncContextManager[bool]:
        return self._enter(database, lambda engine, name: engine.hold_in(name, lock, key))

    async def outcome(self, target: port.Target, number: int, mark: str = "", history: int = 0) -> port.Outcome | None:
        return await self._ask(
            target.database,
            lambda engine, name: engine.outcome(
                _rename(target, name), number, self._choose_mark(engine, name, mark), history
            ),
        )

    async def outcome_of_lost(self, target: port.Target, ticket: port.Ticket, mark: str = "") -> port.Outcome:
        return await self._ask(
            target.database,
            lambda engine, name: engine.outcome_of_lost(
                _rename(target, name), ticket, self._choose_mark(engine, name, mark)
            ),
        )

    def _choose_mark(self, engine: port.OpenEngine, database: str, mark: str) -> str:
        """Return the mark for the engine: empty if it has given the number itself.

        Transactions from before there were several engines have no mark.
        """
        if mark == mark_of(database) or (not mark and engine is self._first.engine):
            return ""
        return mark or port.FIRST_ENGINE

    def stream(
        self, target: port.Target, statement: port.Statement, bounds: port.Bounds
    ) -> AbstractAsyncContextManager[port.RowStream]:
        return self._enter(
            target.database, lambda engine, name: engine.stream(_rename(target, name), statement, bounds)
        )

    async def health(self) -> port.EngineHealth:
        places = list(self._places.values())
        first, *further = await asyncio.gather(*(_ask_health(place) for place in places))
        assert isinstance(first, port.EngineHealth)
        warnings = dict(first.warnings)
        for place, health in zip(places[1:], further, strict=True):
            if isinstance(health, str):
                warnings[f"engine {place.name}"] = health
            else:
                wrong = [state for state in health.checks.values() if state != "ok"]
                warnings[f"engine {place.name}"] = wrong[0] if wrong else "ok"
        if self._cells is not None:
            warnings |= {f"database {name}": reason for name, reason in self._cells.find_failures().items()}
        return port.EngineHealth(first.kind, first.version, first.checks, warnings, first.replicated)

    async def tables(self, target: port.Target, bounds: port.Bounds) -> port.Tables:
        return await self._ask(target.database, lambda engine, name: engine.tables(_rename(target, name), bounds))

    def session(self, target: port.Target, timeout_ms: int) -> AbstractAsyncContextManager[port.EngineSession]:
        return self._enter(target.database, lambda engine, name: engine.session(_rename(target, name), timeout_ms))

    def wire(
        self, target: port.Target, settings: dict[str, str], application: str, bounds: port.Bounds
    ) -> AbstractAsyncContextManager[port.OpenedWire]:
        return self._enter(
            target.database,
            lambda engine, name: engine.wire(_rename(target, name), settings, application, bounds),
        )

    def scratch(self, database: str) -> AbstractAsyncContextManager[str]:
        return self._enter(database, lambda engine, name: engine.scratch(name))

    def dump(
        self, database: str, timeout_s: float, organization: str | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._enter(database, lambda engine, name: engine.dump(name, timeout_s, organization))

    async def durability(self, target: port.Target) -> port.Durability:
        return await self._ask(target.database, lambda engine, name: engine.durability(_rename(target, name)))

    def measure(self) -> port.Measured:
        first, *further = [engine.measure() for engine in self._open]
        cells = () if self._cells is None else (self._cells.measure(),)
        for other in (*further, *cells, self._retired):
            _add_counts(first, other)
            for gauge, value in other.gauges.items():
                if not gauge.startswith(_OF_THE_FIRST):
                    first.gauges[gauge] = first.gauges.get(gauge, 0) + value
        return first

    def _retire(self, engine: port.OpenEngine) -> None:
        """Keep the counts of an engine that is closed."""
        _add_counts(self._retired, engine.measure())

    def stop_running(self) -> None:
        for engine in self._open:
            engine.stop_running()

    @property
    def _open(self) -> list[port.OpenEngine]:
        cells = [place for place in self._of.values() if isinstance(place, CellPlace)]
        return [place.engine for place in (*self._places.values(), *cells) if place.engine is not None]


_OF_THE_FIRST = ("serializable_", "disk_", "engine_connections_max")
"""Gauges that are shown for the first engine only."""


def _add_counts(all: port.Measured, other: port.Measured) -> None:
    for kind, cell in other.seconds.items():
        known = all.seconds.setdefault(kind, [0] * len(cell))
        all.seconds[kind] = [a + b for a, b in zip(known, cell, strict=True)]
    for event, count in other.events.items():
        all.events[event] = all.events.get(event, 0) + count


def mark_of(database: str) -> str:
    """Return a short text that identifies a name: after a reset or a move the database has another one."""
    digest = hashlib.sha256(database.encode()).digest()
    return write_base62(int.from_bytes(digest, "big"), MARK_LENGTH)


def _add_mark(keep: port.Keep | None, mark: str) -> port.Keep | None:
    """Return the answer to record, made from a result with the mark in it."""
    if keep is None:
        return None
    body = keep.body

    def marked(done: port.TransactionResult) -> bytes:
        done.mark = mark
        return body(done)

    return port.Keep(keep.route, keep.key, keep.request, marked)


async def _ask_health(place: Place) -> port.EngineHealth | str:
    return place.reason if place.engine is None else await place.engine.health()


def _rename(target: port.Target, database: str) -> port.Target:
    return target if target.database == database else port.Target(database, target.access, target.id, target.owner)
