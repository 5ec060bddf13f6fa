"""Routes that list, create, copy, change and delete databases."""

from dataclasses import dataclass

import msgspec

from tuplegate.access.states import DATABASE
from tuplegate.admission.actor import actor_of
from tuplegate.admission.identity import Identity, IdentityCache
from tuplegate.catalog.catalog import Catalog
from tuplegate.control_plane import common
from tuplegate.engine.port import DatabaseSizes, NotSupported
from tuplegate.http.exchange import Exchange
from tuplegate.http.query_string import read_query
from tuplegate.protocol.control import DatabaseChange, DatabaseRecord, DatabaseRequest
from tuplegate.protocol.errors import ServiceError
from tuplegate.tenancy.lifecycle import Lifecycle


@dataclass(frozen=True, slots=True)
class DatabaseRoutes:
    """Routes of databases. A token that is bound to one database sees and changes only that one."""

    _catalog: Catalog
    _lifecycle: Lifecycle
    _sizes: DatabaseSizes
    _identities: IdentityCache

    async def index(self, exchange: Exchange, identity: Identity) -> None:
        page = common.read_page(exchange)
        principal = identity.principal
        records = await self._catalog.databases.list_page(principal.organization, principal.database, page)
        common.answer_page(exchange, page, await self._add_engines_part(records))

    async def create(self, exchange: Exchange, identity: Identity) -> None:
        request = common.read_body(exchange, DatabaseRequest)
        if identity.principal.database is not None:
            raise ServiceError("forbidden", "a token that is bound to one database cannot make another")
        await self._check_count(identity)
        source = None
        if request.clone_of is not None:
            source = await self._find(identity, request.clone_of)
            _check_transition(source, "be cloned")
        await self._check_room(identity, source)
        try:
            with common.translate_refusal(taken=f"there is a database {request.name!r} already"):
                id = await self._lifecycle.create(
                    actor_of(identity, exchange), request.name, None if source is None else source.id
                )
        except NotSupported as failure:
            raise ServiceError("not_supported", str(failure)) from failure
        await self._answer(exchange, identity, id, 201)

    async def _check_count(self, identity: Identity) -> None:
        most = identity.allowance.find("databases_per_organization") or 0
        if await self._catalog.databases.count(identity.principal.organization) >= most:
            raise ServiceError(
                "too_many_databases",
                f"the organization has {most} databases, and no more may be",
                hint="Delete one that is not needed. Whoever runs the service can raise databases_per_organization.",
            )

    async def _check_room(self, identity: Identity, source: DatabaseRecord | None) -> None:
        """Refuse a database, or the copy of one, for which the organization has no room."""
        most = identity.allowance.find("organization_bytes_max")
        if not most:
            return
        sizes = await self._sizes.sizes(
            await self._catalog.databases.list_engine_names(identity.principal.organization)
        )
        used = sum(sizes.values())
        if source is not None:
            [name] = (await self._catalog.databases.find_engine_names([source.id])).values()
            used += sizes.get(name, 0)
        if used >= most:
            raise ServiceError(
                "organization_full",
                f"with it, the databases of the organization would take {used:,} bytes, and may take {most:,}",
                hint="Delete a database, or rows and then VACUUM FULL. Whoever runs the service can raise"
                " organization_bytes_max.",
            )

    async def show(self, exchange: Exchange, identity: Identity) -> None:
        read_query(exchange)
        [record] = await self._add_engines_part([await self._find(identity, exchange.path_values["name"])])
        common.answer(exchange, common.get_fields(record))

    async def change(self, exchange: Exchange, identity: Identity) -> None:
        request = common.read_body(exchange, DatabaseChange)
        record = await self._find(identity, exchange.path_values["name"])
        _check_transition(record, "change")
        if request.default is True and identity.principal.database is not None:
            raise ServiceError(
                "forbidden", "a token that is bound to one database cannot take the default from another"
            )
        name = common.drop_unset(request.name)
        protection = common.drop_unset(request.delete_protection)
        with common.translate_refusal(taken=f"there is a database {name!r} already"):
            changed = await self._catalog.databases.change(
                actor_of(identity, exchange),
                record.id,
                name=name,
                delete_protection=protection,
                default=request.default is True,
            )
        if not changed:
            raise ServiceError("wrong_state", f"the database {record.name!r} is not active any more")
        self._identities.forget()
        await self._answer(exchange, identity, record.id)

    async def delete(self, exchange: Exchange, identity: Identity) -> None:
        read_query(exchange)
        record = await self._find(identity, exchange.path_values["name"])
        state = _check_transition(record, "be deleted")
        if record.default:
            raise ServiceError(
                "wrong_state",
                f"{record.name!r} is the organization's default database",
                hint='Make another the default first: PATCH it with {"default": true}.',
            )
        if record.delete_protection:
            raise ServiceError(
                "delete_protected",
                f"the database {record.name!r} is protected",
                hint='PATCH it with {"delete_protection": false} first.',
            )
        deleted = await self._lifecycle.delete(actor_of(identity, exchange), record.id)
        if not deleted:
            raise ServiceError("wrong_state", f"the database {record.name!r} was changed at the same time")
        self._identities.forget()
        common.answer(exchange, {"state": DATABASE.after(state, "be removed")})

    async def _find(self, identity: Identity, name: str) -> DatabaseRecord:
        return await common.find_database(self._catalog, identity, name)

    async def _answer(self, exchange: Exchange, identity: Identity, id: str, status: int = 200) -> None:
        """Answer with the database after a change. It is found by id, since its name may have changed."""
        with common.report_loss_as_unknown():
            record = await self._catalog.databases.find(identity.principal.organization, id)
            if record is None:
                raise ServiceError("not_found", "the database was deleted at the same time")
            [record] = await self._add_engines_part([record])
        common.answer(exchange, common.get_fields(record), status)

    async def _add_engines_part(self, records: list[DatabaseRecord]) -> list[DatabaseRecord]:
        """Add the fields that only the engine knows. No database is waked for that."""
        names = await self._catalog.databases.find_engine_names([record.id for record in records])
        sizes = await self._sizes.sizes(list(names.values()))
        awake = await self._sizes.find_awake(list(names.values()))
        return [
            msgspec.structs.replace(
                record,
                size_bytes=sizes.get(names.get(record.id, "")),
                activity="awake" if names.get(record.id) in awake else "asleep",
            )
            for record in records
        ]


def _check_transition(record: DatabaseRecord, event: str) -> str:
    return common.check_transition(DATABASE, record.state, event, f"the database {record.name!r}")
