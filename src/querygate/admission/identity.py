"""Who is asking, and for which database: the token of a request to a target of the engine.

Answers of the catalog are kept for `_FRESH_S`, so what is revoked there is refused here within that time. The cache is
found by the token's SHA-256; the token itself is kept nowhere.
"""

import asyncio
import hmac
from dataclasses import dataclass

from querygate.access.scopes import Principal, Scope, effective
from querygate.access.tokens import digest, key_id
from querygate.catalog.store import Catalog
from querygate.engine.port import Access, EngineFailure, Target
from querygate.http.exchange import Exchange
from querygate.protocol.errors import ServiceError

_FRESH_S = 2.5
_CACHE_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Identity:
    """A principal with what it may do, spelled out. `target` is the database it gets when it names none."""

    principal: Principal
    scopes: frozenset[Scope]
    target: Target | None


@dataclass(frozen=True, slots=True)
class _Entry:
    identity: Identity | None
    until: float


class IdentityCache:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._entries: dict[bytes, _Entry] = {}
        self._databases: dict[tuple[str, str], tuple[str | None, float]] = {}

    def find(self, authorization: bytes | None, now: float) -> Identity | None:
        """The identity if it is known and fresh; None otherwise. This is the hot path: no await."""
        if authorization is None or authorization[:7] != b"Bearer ":
            return None
        entry = self._entries.get(digest(authorization[7:]))
        if entry is None or entry.until < now:
            return None
        return entry.identity

    async def identify(self, authorization: bytes | None, now: float) -> Identity:
        """The identity, asked of the catalog where it must be. Raises unauthenticated."""
        token = _bearer(authorization)
        id = key_id(token)
        if id is None:
            raise ServiceError(
                "unauthenticated", "the token is not a well-formed API key", hint="It begins with svc_k_."
            )
        hashed = digest(token)
        entry = self._entries.get(hashed)
        if entry is None or entry.until < now:
            identity = await self._look_up(id, hashed)
            if len(self._entries) >= _CACHE_MAX:
                self._entries.clear()
            self._entries[hashed] = entry = _Entry(identity, now + _FRESH_S)
        if entry.identity is None:
            raise ServiceError("unauthenticated", "the API key is unknown, expired or revoked")
        return entry.identity

    async def _look_up(self, id: str, hashed: bytes) -> Identity | None:
        try:
            record = await self._catalog.find_key(id)
            if record is None or not record.live or not hmac.compare_digest(record.digest, hashed.hex()):
                return None
            principal = record.principal
            database = await self._catalog.find_database(principal.organization, id=principal.database, name=None)
        except EngineFailure as exc:
            raise ServiceError("engine_unavailable", "the engine cannot be asked for the key just now") from exc
        scopes = effective(principal.scopes)
        return Identity(principal, scopes, None if database is None else Target(database.id, access_of(scopes)))

    async def target(self, identity: Identity, exchange: Exchange) -> Target:
        """The database that the request is for: the one it names, or the identity's own."""
        name = exchange.headers.get(b"querygate-database")
        now = asyncio.get_running_loop().time()
        if name is None:
            if identity.target is None:
                raise ServiceError("not_found", "the key has no database")
            return identity.target
        wanted = name.decode("utf-8", "replace")
        key = (identity.principal.organization, wanted)
        found = self._databases.get(key)
        if found is None or found[1] < now:
            found = (await self._find_database(*key), now + _FRESH_S)
            if len(self._databases) >= _CACHE_MAX:
                self._databases.clear()
            self._databases[key] = found
        bound = identity.principal.database
        if found[0] is None or (bound is not None and bound != found[0]):
            raise ServiceError("not_found", f"there is no database {wanted!r} for this key")
        return Target(found[0], access_of(identity.scopes))

    async def _find_database(self, organization: str, name: str) -> str | None:
        try:
            record = await self._catalog.find_database(organization, id=None, name=name)
        except EngineFailure as exc:
            raise ServiceError("engine_unavailable", "the engine cannot be asked for the database just now") from exc
        return record.id if record else None


def access_of(scopes: frozenset[Scope]) -> Access:
    return Access.WRITE if Scope.WRITE in scopes else Access.READ


def _bearer(authorization: bytes | None) -> bytes:
    if authorization is None:
        raise ServiceError(
            "unauthenticated", "the request has no token", hint="Send the header Authorization: Bearer svc_k_…"
        )
    kind, _, token = authorization.partition(b" ")
    if kind.lower() != b"bearer" or not token:
        raise ServiceError("unauthenticated", "the Authorization header is not of the form Bearer svc_k_…")
    return token.strip()
