"""Routes that list, create, change, rotate and revoke API keys."""

import secrets
from collections.abc import Iterable

import msgspec

from tuplegate.access.scopes import Scope, covers
from tuplegate.access.states import KEY
from tuplegate.access.tokens import RANDOM_BYTES, TokenKind, make_token
from tuplegate.admission.actor import actor_of
from tuplegate.admission.identity import Identity, IdentityCache
from tuplegate.catalog.catalog import Catalog
from tuplegate.control_plane import common
from tuplegate.http.exchange import Exchange
from tuplegate.http.query_string import read_query
from tuplegate.protocol.control import KeyChange, KeyRecord, KeyRequest, RotateRequest
from tuplegate.protocol.errors import ServiceError


class KeyRoutes:
    """Routes of keys. A token that is bound to one database sees and creates only keys of that one."""

    def __init__(self, catalog: Catalog, identities: IdentityCache) -> None:
        self._catalog = catalog
        self._identities = identities

    async def index(self, exchange: Exchange, identity: Identity) -> None:
        page = common.read_page(exchange)
        principal = identity.principal
        common.answer_page(
            exchange, page, await self._catalog.keys.list_page(principal.organization, principal.database, page)
        )

    async def create(self, exchange: Exchange, identity: Identity) -> None:
        request = common.read_body(exchange, KeyRequest)
        _check_scopes(identity, request.scopes)
        principal = identity.principal
        database = principal.database
        if request.database is not None:
            database = (await common.find_database(self._catalog, identity, request.database)).id
        token = make_token(TokenKind.KEY, secrets.token_bytes(RANDOM_BYTES))
        with common.translate_refusal(gone="the database was deleted at the same time"):
            await self._catalog.keys.add(
                actor_of(identity, exchange), token, principal.organization, request.name,
                sorted(set(request.scopes)), database, request.expires_in, request.consistency,
            )  # fmt: skip
        with common.report_loss_as_unknown():
            fields = await self._fields(identity, token.id)
        common.answer(exchange, {**fields, "key": token.text}, 201)

    async def show(self, exchange: Exchange, identity: Identity) -> None:
        read_query(exchange)
        common.answer(exchange, await self._fields(identity, exchange.path_values["id"]))

    async def change(self, exchange: Exchange, identity: Identity) -> None:
        request = common.read_body(exchange, KeyChange)
        record = await self._find(identity, exchange.path_values["id"])
        _check_transition(record, "change")
        _check_scopes(identity, record.scopes)
        scopes = None if isinstance(request.scopes, msgspec.UnsetType) else sorted(set(request.scopes))
        if scopes is not None:
            _check_scopes(identity, scopes)
        expiry = request.expires_in
        changed = await self._catalog.keys.change(
            actor_of(identity, exchange),
            record.id,
            name=common.drop_unset(request.name),
            scopes=scopes,
            expires=not isinstance(expiry, msgspec.UnsetType),
            expires_in=common.drop_unset(expiry),
            consistency=common.drop_unset(request.consistency),
        )
        await self._answer_change(exchange, identity, record, changed)

    async def rotate(self, exchange: Exchange, identity: Identity) -> None:
        request = common.read_body(exchange, RotateRequest)
        record = await self._find(identity, exchange.path_values["id"])
        _check_transition(record, "rotate")
        _check_scopes(identity, record.scopes)
        token = make_token(TokenKind.KEY, secrets.token_bytes(RANDOM_BYTES), record.id)
        rotated = await self._catalog.keys.rotate(actor_of(identity, exchange), token, request.grace_seconds)
        await self._answer_change(exchange, identity, record, rotated, key=token.text)

    async def revoke(self, exchange: Exchange, identity: Identity) -> None:
        read_query(exchange)
        record = await self._find(identity, exchange.path_values["id"])
        _check_transition(record, "be revoked")
        _check_scopes(identity, record.scopes)
        revoked = await self._catalog.keys.revoke(actor_of(identity, exchange), record.id)
        await self._answer_change(exchange, identity, record, revoked)

    async def _answer_change(
        self, exchange: Exchange, identity: Identity, record: KeyRecord, done: bool, **more: object
    ) -> None:
        if not done:
            raise ServiceError("wrong_state", f"the key {record.id} was revoked or has expired at the same time")
        self._identities.forget()
        with common.report_loss_as_unknown():
            fields = await self._fields(identity, record.id)
        common.answer(exchange, {**fields, **more})

    async def _find(self, identity: Identity, id: str) -> KeyRecord:
        principal = identity.principal
        record = await self._catalog.keys.show(principal.organization, principal.database, id)
        if record is None:
            raise ServiceError("not_found", f"there is no key {id!r}")
        return record

    async def _fields(self, identity: Identity, id: str) -> dict[str, object]:
        return common.get_fields(await self._find(identity, id))


def _check_scopes(identity: Identity, scopes: Iterable[str]) -> None:
    """Refuse scopes that the token does not have itself, whether it gives them to a key or changes a key that has
    them."""
    wanted = frozenset(Scope(scope) for scope in scopes)
    if not covers(identity.principal.scopes, wanted):
        raise ServiceError(
            "forbidden", f"a key with the scopes {', '.join(sorted(wanted))} is above the scopes of this token"
        )


def _check_transition(record: KeyRecord, event: str) -> str:
    return common.check_transition(KEY, record.state, event, f"the key {record.id}")
