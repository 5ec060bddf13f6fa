"""Routes for operators that list and change engines, and move databases between them."""

import asyncio

import msgspec

from tuplegate.access.states import DATABASE
from tuplegate.admission.actor import actor_of
from tuplegate.admission.identity import Identity, IdentityCache
from tuplegate.catalog.catalog import Catalog
from tuplegate.catalog.engines import EngineEntry
from tuplegate.control_plane import common
from tuplegate.engine.port import AllDatabases, DatabaseSizes, EngineFailure, Load, MoveFailed, NotSupported
from tuplegate.http.exchange import Exchange
from tuplegate.http.query_string import read_query
from tuplegate.protocol.control import DatabaseRecord, EngineChange, EngineRecord, MoveRequest
from tuplegate.protocol.errors import ServiceError
from tuplegate.tenancy.moves import Mover

_ASKED_S = 5.0


class EngineRoutes:
    def __init__(
        self, catalog: Catalog, databases: AllDatabases, sizes: DatabaseSizes, identities: IdentityCache, mover: Mover
    ) -> None:
        self._catalog = catalog
        self._databases = databases
        self._sizes = sizes
        self._identities = identities
        self._mover = mover

    async def index(self, exchange: Exchange, identity: Identity) -> None:
        read_query(exchange)
        items = await asyncio.gather(*(self._describe(entry) for entry in await self._catalog.engines.list_all()))
        common.answer(exchange, {"items": items, "next_cursor": None})

    async def change(self, exchange: Exchange, identity: Identity) -> None:
        request = common.read_body(exchange, EngineChange)
        name = exchange.path_values["name"]
        changed = await self._catalog.engines.change(
            actor_of(identity, exchange),
            name,
            weight=common.drop_unset(request.weight),
            state=common.drop_unset(request.state),
        )
        if not changed:
            raise _no_engine(name)
        with common.report_loss_as_unknown():
            [entry] = [entry for entry in await self._catalog.engines.list_all() if entry.name == name]
            [shown] = await asyncio.gather(self._describe(entry))  # in a task, which asyncio.timeout needs
            common.answer(exchange, common.get_fields(shown))

    async def move(self, exchange: Exchange, identity: Identity) -> None:
        request = common.read_body(exchange, MoveRequest)
        name = exchange.path_values["name"]
        own = identity.principal
        organization = request.organization or own.organization
        bound = own.database if organization == own.organization else None
        record = await self._catalog.databases.show(organization, bound, name)
        if record is None:
            raise ServiceError("not_found", f"there is no database {name!r}")
        await self._check(request.engine, record)
        try:
            moved = await self._mover.move(actor_of(identity, exchange), organization, record.id, request.engine)
        except NotSupported as failure:
            raise ServiceError("not_supported", str(failure)) from failure
        except MoveFailed as failure:
            raise ServiceError("move_failed", str(failure), detail=failure.detail) from failure
        self._identities.forget()
        with common.report_loss_as_unknown():
            now = await self._catalog.databases.find(organization, record.id)
            if now is None:
                raise ServiceError("not_found", "the database was deleted at the same time")
            [name] = (await self._catalog.databases.find_engine_names([record.id])).values()
            now = msgspec.structs.replace(now, size_bytes=(await self._sizes.sizes([name])).get(name))
        told = {"way": moved.way, "held_ms": moved.held_ms, "reason": moved.reason}
        common.answer(exchange, {**common.get_fields(now), **told})

    async def _check(self, engine: str, record: DatabaseRecord) -> None:
        entries = {entry.name: entry for entry in await self._catalog.engines.list_all()}
        if engine not in entries:
            raise _no_engine(engine)
        common.check_transition(DATABASE, record.state, "be moved", f"the database {record.name!r}")
        if record.engine == engine:
            raise ServiceError("wrong_state", f"the database {record.name!r} is on the engine {engine} already")
        if entries[engine].state != "active":
            raise ServiceError(
                "wrong_state",
                f"the engine {engine} is draining, and takes no databases",
                hint='PATCH it with {"state": "active"} first, or choose another.',
            )

    async def _describe(self, entry: EngineEntry) -> EngineRecord:
        size: int | None = None
        load: Load | None = None
        problem: str | None = None
        try:
            async with asyncio.timeout(_ASKED_S):
                databases = self._databases.on(entry.name)
                load = await databases.load()
                size = sum((await databases.sizes(entry.databases)).values())
        except EngineFailure as failure:
            problem = str(failure)
        except TimeoutError:
            problem = f"no answer within {_ASKED_S:g} s"
        return EngineRecord(
            entry.name,
            entry.state,
            entry.weight,
            problem,
            len(entry.databases),
            size,
            None if load is None else load.connections,
            None if load is None else load.running,
            None if load is None else load.connections_max,
        )


def _no_engine(name: str) -> ServiceError:
    return ServiceError(
        "not_found", f"there is no engine {name!r}", hint="GET /v1/engines lists those that the service has used."
    )
