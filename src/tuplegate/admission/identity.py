"""Identifies the sender of a request: from its token to a principal, and to a target of the engine.

Answers of the catalog are kept for `_FRESH_S`. So a revoked token is refused here within that time, and at once if this
worker hears of the change (see `Pulse`). Tokens are compared with the catalog's digests when they are looked up; a
digest for every request would cost a twentieth of the whole.
"""

import asyncio
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from tuplegate.access.scopes import Principal, Scope, expand_scopes
from tuplegate.access.tokens import BEGINNING, TokenKind, hash_token, read_token
from tuplegate.admission.fair_use.allowances import Allowance, Allowances
from tuplegate.admission.fair_use.fairness import Lane, Lanes
from tuplegate.admission.fair_use.newcomers import Newcomers
from tuplegate.admission.fair_use.quota import Quota, Quotas
from tuplegate.admission.fair_use.usage import Usage, UsageBook
from tuplegate.catalog.tokens.credentials import Credential, Credentials, Whereabouts
from tuplegate.engine.port import Access, EngineFailure, Target
from tuplegate.http.exchange import Exchange
from tuplegate.protocol.control import NAME_LENGTH_MAX
from tuplegate.protocol.errors import ServiceError

_FRESH_S: Final = 2.5
_CACHE_MAX: Final = 10_000
_STRANGERS_ASKED_MAX: Final = 8
"""The number of tokens, never valid before, that are looked up at once. Known tokens do not queue behind them, and new
valid ones only behind those of their own address."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A principal with all its scopes. `target` is the database for requests that name none. Unless something changes,
    its token is good until `ends_at`. `allowance` has the limits of its organization. `quota` is None if requests are
    not limited. `reads_snapshots`: its reads need not be serializable, unless a request says otherwise."""

    principal: Principal
    scopes: frozenset[Scope]
    target: Target | None
    quota: Quota | None
    lane: Lane
    usage: Usage
    tier: str
    allowance: Allowance
    reads_snapshots: bool
    ends_at: float


@dataclass(slots=True)
class _Entry:
    """A cached identity, valid until then; 0 if something has changed since. An older entry is looked up again, but
    never behind tokens that may be invented."""

    identity: Identity
    until: float


class IdentityCache:
    def __init__(
        self,
        credentials: Credentials,
        quotas: Quotas,
        lanes: Lanes,
        usage: UsageBook,
        allowances: Allowances,
        found_database: Callable[[Whereabouts, str, Allowance], None],
    ) -> None:
        """`found_database` is called with a database, its tier and its organization's limits whenever the catalog was
        asked for it."""
        self._found_database = found_database
        self._credentials = credentials
        self._lanes = lanes
        self._quotas = quotas
        self._usage = usage
        self._allowances = allowances
        self._entries: dict[bytes, _Entry] = {}
        self._unknown: dict[bytes, float] = {}
        """Invalid tokens, with the time until which they are refused without a look-up."""
        self._newcomers = Newcomers(_STRANGERS_ASKED_MAX)
        self._databases: dict[tuple[str, str], tuple[Whereabouts | None, float]] = {}
        self._forgotten = 0
        """The number of times that everything was forgotten."""

    def forget(self) -> None:
        """Look everything up again: something has changed in the catalog."""
        self._forgotten += 1
        for entry in self._entries.values():
            entry.until = 0.0
        self._unknown.clear()
        self._databases.clear()

    def find(self, exchange: Exchange, now: float) -> Identity | None:
        """Return the identity if it is known and fresh; None otherwise. This is the hot path: no await."""
        authorization = exchange.headers.get(b"authorization")
        if authorization is None or authorization[:7] != b"Bearer ":
            return None
        entry = self._entries.get(authorization[7:])
        if entry is None or entry.until < now:
            return None
        return entry.identity

    def find_last(self, exchange: Exchange) -> Identity | None:
        """Return the identity from the token's last look-up; None if there was none, or the token has expired."""
        authorization = exchange.headers.get(b"authorization", b"")
        entry = self._entries.get(authorization[7:])
        return None if entry is None or entry.identity.ends_at < asyncio.get_running_loop().time() else entry.identity

    def has_stayed_good(self, token: bytes, now: float) -> bool:
        """Return whether nothing has changed since the token was looked up, and it has not expired."""
        entry = self._entries.get(token)
        return entry is not None and entry.until > 0.0 and entry.identity.ends_at > now

    async def identify(self, exchange: Exchange, now: float) -> Identity:
        """Return the identity, from the catalog if necessary. Raises unauthenticated."""
        token = read_bearer(exchange.headers.get(b"authorization"))
        return await self.identify_token(token, exchange.outgoing.address, now)

    async def identify_token(self, token: bytes, address: str, now: float) -> Identity:
        """Identify as `identify` does, for a token that came from this address."""
        known = read_token(token)
        if known is None or known[0] is TokenKind.CODE:
            raise ServiceError(
                "unauthenticated",
                "the token is not a well-formed API key or session token",
                hint="An API key begins with svc_k_, a session token with svc_s_.",
            )
        entry = self._entries.get(token)
        if entry is not None and entry.until >= now:
            return entry.identity
        forgotten = self._forgotten
        if entry is not None:
            identity = await self._look_up(*known, token)
        elif self._unknown.get(token, 0.0) >= now:
            raise _unknown_token(known[0])
        else:
            async with self._newcomers.take_turn(address):
                identity = await self._look_up(*known, token)
        # The answer may be older than a change that this worker has heard of meanwhile.
        self._note(token, identity, now + _FRESH_S if forgotten == self._forgotten else 0.0)
        if identity is None:
            raise _unknown_token(known[0])
        return identity

    def _note(self, token: bytes, identity: Identity | None, until: float) -> None:
        """Cache the answer of a look-up. Invented tokens do not displace valid ones."""
        if identity is None:
            self._entries.pop(token, None)
            if len(self._unknown) >= _CACHE_MAX:
                self._unknown.clear()
            self._unknown[token] = until
        else:
            self._unknown.pop(token, None)
            if len(self._entries) >= _CACHE_MAX and token not in self._entries:
                del self._entries[next(iter(self._entries))]
            self._entries[token] = _Entry(identity, until)

    async def _look_up(self, kind: TokenKind, id: str, token: bytes) -> Identity | None:
        find = self._credentials.find_key if kind is TokenKind.KEY else self._credentials.find_session
        try:
            found = await find(id)
        except EngineFailure as exc:
            raise ServiceError("engine_unavailable", "the engine cannot be asked for the token just now") from exc
        if found is None or not found.live:
            return None
        if not any(hmac.compare_digest(known, hash_token(token).hex()) for known in found.digests):
            return None
        return self._identity(found)

    def _identity(self, found: Credential) -> Identity:
        principal = found.principal
        self._usage.note_key_used(principal.key)
        scopes = expand_scopes(principal.scopes)
        place = found.database
        allowance = self._allowances.find(found.tier, found.limits)
        if place is not None:
            self._found_database(place, found.tier, allowance)
        return Identity(
            principal,
            scopes,
            None if place is None else Target(place[1], access_of(scopes), place[0], principal.organization),
            self._quotas.find_quota(principal.organization, found.tier),
            self._lanes.find_lane(principal.organization),
            self._usage.find_usage(principal.organization, "" if place is None else place[0]),
            found.tier,
            allowance,
            found.reads_snapshots,
            inf if found.remaining_s is None else asyncio.get_running_loop().time() + found.remaining_s,
        )

    async def find_target(self, identity: Identity, exchange: Exchange) -> Target:
        """Return the database that the request names, or the identity's own."""
        target, exchange.usage = await self.find_named(identity, exchange.headers.get(b"tuplegate-database"))
        return target

    async def find_named(self, identity: Identity, name: bytes | None) -> tuple[Target, Usage]:
        """Return the database of this name, or the identity's own, with its usage."""
        if name is None:
            if identity.target is None:
                raise ServiceError("not_found", "there is no database for this token")
            return identity.target, identity.usage
        now = asyncio.get_running_loop().time()
        wanted = name[:NAME_LENGTH_MAX].decode("utf-8", "replace")
        if len(name) > NAME_LENGTH_MAX:  # no database has such a name; it is neither looked up nor kept
            raise ServiceError("not_found", f"there is no database {_quote(wanted + '…')} for this token")
        key = (identity.principal.organization, wanted)
        found = self._databases.get(key)
        if found is None or found[1] < now:
            forgotten = self._forgotten
            place = await self._find_database(*key)
            # It may have got another name meanwhile: see `identify_token`.
            found = (place, now + _FRESH_S if forgotten == self._forgotten else 0.0)
            if len(self._databases) >= _CACHE_MAX:
                self._databases.clear()
            self._databases[key] = found
            if found[0] is not None:
                self._found_database(found[0], identity.tier, identity.allowance)
        place, bound = found[0], identity.principal.database
        if place is None or (bound is not None and bound != place[0]):
            raise ServiceError("not_found", f"there is no database {_quote(wanted)} for this token")
        usage = self._usage.find_usage(identity.principal.organization, place[0])
        organization = identity.principal.organization
        return Target(place[1], access_of(identity.scopes), place[0], organization), usage

    async def _find_database(self, organization: str, name: str) -> Whereabouts | None:
        try:
            return await self._credentials.find_database(organization, name)
        except EngineFailure as exc:
            raise ServiceError("engine_unavailable", "the engine cannot be asked for the database just now") from exc


def access_of(scopes: frozenset[Scope]) -> Access:
    return Access.WRITE if Scope.WRITE in scopes else Access.READ


def _unknown_token(kind: TokenKind) -> ServiceError:
    if kind is TokenKind.SESSION:
        return ServiceError(
            "unauthenticated",
            "the session is unknown, expired or revoked",
            hint="Open another with POST /v1/session and an API key.",
        )
    return ServiceError(
        "unauthenticated",
        "the API key is unknown, expired or revoked",
        hint="Make another: with POST /v1/keys, or on the machine of the service with `tuplegate key create --local`.",
    )


def _quote(name: str) -> str:
    """Return a name for an error, without any token that was put in its place."""
    begin, mark, _ = name.partition(BEGINNING)
    return repr(begin + mark + "…" if mark else name)


def read_bearer(authorization: bytes | None) -> bytes:
    """Return the token of the header. Raises unauthenticated."""
    if authorization is None:
        raise ServiceError(
            "unauthenticated",
            "the request has no token",
            hint="Send the header Authorization: Bearer svc_k_… If a redirect led here, the client has left the header"
            " out, as most do on the way to another host or port: send the request to this address itself.",
        )
    kind, _, token = authorization.partition(b" ")
    if kind.lower() != b"bearer" or not token:
        raise ServiceError(
            "unauthenticated",
            "the Authorization header is not of the form Bearer svc_k_…",
            hint="The scheme is Bearer, then a blank and the API key or session token.",
        )
    return token.strip()
