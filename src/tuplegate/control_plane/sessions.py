"""Routes that open, show, list, refresh and end sessions. `access.states` has the table of their states."""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from tuplegate.access.scopes import Scope, covers, expand_scopes
from tuplegate.access.states import SESSION
from tuplegate.access.tokens import RANDOM_BYTES, Token, TokenKind, hash_token, make_token
from tuplegate.admission.actor import actor_of
from tuplegate.admission.identity import Identity, IdentityCache, read_bearer
from tuplegate.admission.plane import take_permit
from tuplegate.catalog.catalog import Catalog
from tuplegate.control_plane import common
from tuplegate.http.exchange import Exchange
from tuplegate.http.query_string import read_query
from tuplegate.protocol.control import SessionRecord, SessionRequest
from tuplegate.protocol.errors import ServiceError


@dataclass(frozen=True, slots=True)
class SessionBounds:
    """Lifetime of a session. `cap_s` limits how long refreshes can extend it; None for no limit."""

    lifetime_s: int
    cap_s: int | None


@dataclass(frozen=True, slots=True)
class SessionTerms:
    """The terms of a session to be opened: at most those of its key."""

    scopes: list[str]
    database: str | None
    lifetime_s: int


class SessionRoutes:
    def __init__(self, catalog: Catalog, identities: IdentityCache, bounds: SessionBounds) -> None:
        self._catalog = catalog
        self._identities = identities
        self._bounds = bounds

    async def create(self, exchange: Exchange) -> None:
        """Open a session. The route checks the token itself, since the key may be in the body."""
        now = asyncio.get_running_loop().time()
        authorization = exchange.headers.get(b"authorization")
        request = None if authorization is not None else common.read_body(exchange, SessionRequest)
        if request is None or request.api_key is None:
            identity = await self._identities.identify(exchange, now)
            key = read_bearer(authorization)
        else:
            key = request.api_key.encode()
            identity = await self._identities.identify_token(key, exchange.outgoing.address, now)
        exchange.outgoing.belong_to(identity.principal.organization)
        await take_permit(exchange, identity, now)
        exchange.usage = identity.usage
        request = request or common.read_body(exchange, SessionRequest)
        if identity.principal.session is not None:
            raise ServiceError("forbidden", "a session is opened with an API key, not with another session's token")
        if authorization is not None and request.api_key is not None:
            raise ServiceError("malformed_request", "the API key is given twice: as Bearer and in the body")
        await self._open(exchange, identity, hash_token(key), request)

    async def _open(self, exchange: Exchange, identity: Identity, secret: bytes, request: SessionRequest) -> None:
        terms = await self.settle(identity, request.scopes, request.database, request.expires_in)
        token = make_token(TokenKind.SESSION, secrets.token_bytes(RANDOM_BYTES))
        actor = actor_of(identity, exchange)
        with common.translate_refusal(gone="the key or its database was deleted at the same time"):
            await self._catalog.sessions.add(actor, token, secret, terms.scopes, terms.database, terms.lifetime_s)
        await self.answer_opened(exchange, token, terms.lifetime_s)

    async def settle(
        self, identity: Identity, wished: Sequence[str] | None, name: str | None, expires_in: int | None
    ) -> SessionTerms:
        """Return the terms of a session with these scopes, for the database of this name, that ends after this time.
        Raises forbidden, not_found and malformed_request."""
        principal = identity.principal
        lifetime_s = self._choose_lifetime_s(expires_in)
        scopes = principal.scopes if wished is None else frozenset(Scope(scope) for scope in wished)
        if not covers(principal.scopes, scopes):
            more = ", ".join(sorted(expand_scopes(scopes) - identity.scopes))
            raise ServiceError("forbidden", f"the key has not the scope {more} and cannot give it to a session")
        database = principal.database
        if name is not None:
            found = await self._catalog.credentials.find_database(principal.organization, name)
            if found is None or database not in (None, found[0]):
                raise ServiceError("not_found", f"there is no database {name!r} for this key")
            database = found[0]
        return SessionTerms(sorted(scopes), database, lifetime_s)

    async def answer_opened(self, exchange: Exchange, token: Token, lifetime_s: int) -> None:
        """Answer with a session that was just opened."""
        with common.report_loss_as_unknown():
            record = await self._find(token.id)
        fields = {"token": token.text, "expires_at": record.expires_at, "expires_in": lifetime_s}
        common.answer(exchange, {**fields, "session": record}, 201)

    def _choose_lifetime_s(self, expires_in: int | None) -> int:
        most = self._bounds.lifetime_s
        if expires_in is None:
            return most
        if expires_in > most:
            raise ServiceError(
                "malformed_request", f"`expires_in` must be at most {most}, the lifetime of sessions here"
            )
        return expires_in

    async def show(self, exchange: Exchange, identity: Identity) -> None:
        read_query(exchange)
        common.answer(exchange, {"session": await self._find(_session_of(identity))})

    async def refresh(self, exchange: Exchange, identity: Identity) -> None:
        read_query(exchange)
        id = _session_of(identity)
        bounds = self._bounds
        if not await self._catalog.sessions.refresh(actor_of(identity, exchange), id, bounds.lifetime_s, bounds.cap_s):
            raise _session_ended()
        with common.report_loss_as_unknown():
            record = await self._find(id)
        common.answer(exchange, {"expires_at": record.expires_at, "session": record})

    async def destroy(self, exchange: Exchange, identity: Identity) -> None:
        read_query(exchange)
        if not await self._catalog.sessions.destroy(actor_of(identity, exchange), _session_of(identity)):
            raise _session_ended()
        self._identities.forget()
        common.answer(exchange, {"state": SESSION.after("active", "log out")})

    async def index(self, exchange: Exchange, identity: Identity) -> None:
        page = common.read_page(exchange)
        principal = identity.principal
        found = await self._catalog.sessions.list_page(principal.organization, principal.database, page)
        common.answer_page(exchange, page, [replace(one, current=one.id == principal.session) for one in found])

    async def end(self, exchange: Exchange, identity: Identity) -> None:
        """End the session of somebody else, which may have no more rights than the token that asks."""
        read_query(exchange)
        id, principal = exchange.path_values["id"], identity.principal
        found = await self._catalog.sessions.find_open(principal.organization, principal.database, id)
        if found is None:
            raise ServiceError("not_found", "there is no open session with this id")
        if not covers(principal.scopes, frozenset(Scope(scope) for scope in found.scopes)):
            raise ServiceError("forbidden", "the session has a scope that the token lacks")
        if not await self._catalog.sessions.destroy(actor_of(identity, exchange), id):
            raise ServiceError("not_found", "the session has ended at the same time")
        self._identities.forget()
        common.answer(exchange, {"state": SESSION.after("active", "be ended by an admin")})

    async def _find(self, id: str) -> SessionRecord:
        record = await self._catalog.sessions.show(id)
        if record is None:
            raise _session_ended()
        return record


def _session_ended() -> ServiceError:
    return ServiceError("unauthenticated", "the session is unknown, expired or revoked")


def _session_of(identity: Identity) -> str:
    if identity.principal.session is None:
        raise ServiceError("forbidden", "this route is about a session; the token is an API key")
    return identity.principal.session
