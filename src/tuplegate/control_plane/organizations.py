"""Routes of organizations: the caller's own with its usage and audit, and for operators all of them."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from tuplegate.access.limits import LIMITS, check_limit
from tuplegate.access.quotas import WINDOW_S, Tier, find_tier
from tuplegate.access.states import GONE
from tuplegate.access.tokens import RANDOM_BYTES, TokenKind, make_id, make_token
from tuplegate.admission.actor import actor_of
from tuplegate.admission.fair_use.allowances import Allowances
from tuplegate.admission.identity import Identity, IdentityCache
from tuplegate.catalog.catalog import Catalog
from tuplegate.catalog.paging import write_cursor
from tuplegate.control_plane import common
from tuplegate.engine.port import Weakness
from tuplegate.http.exchange import Exchange
from tuplegate.http.query_string import read_query
from tuplegate.protocol.control import OrganizationChange, OrganizationRecord, OrganizationRequest
from tuplegate.protocol.errors import ServiceError
from tuplegate.tenancy.lifecycle import Lifecycle

_encode = msgspec.json.Encoder().encode
_FIRST_DATABASE = "main"


@dataclass(frozen=True, slots=True)
class OrganizationRoutes:
    """Routes of organizations. A new one gets `_default_tier` unless the operator names another of `_tiers`. While
    there are `_unaccepted` weaknesses of the engine, there may be only one organization."""

    _catalog: Catalog
    _lifecycle: Lifecycle
    _identities: IdentityCache
    _tiers: Mapping[str, Tier]
    _allowances: Allowances
    _default_tier: str
    _limits: Mapping[str, int]
    _unaccepted: Sequence[Weakness] = ()

    # -- one's own ----------------------------------------------------------------------------------------------

    async def own(self, exchange: Exchange, identity: Identity) -> None:
        read_query(exchange)
        record = await self._find(identity.principal.organization)
        tier = find_tier(self._tiers, record.tier)
        rate = {"requests": tier.requests, "window_seconds": WINDOW_S}
        names = await self._catalog.databases.list_names(record.id, identity.principal.database)
        allowance = self._allowances.find(record.tier, _encode(record.limits).decode())
        own = {name: allowance.find(name) for name in LIMITS}
        disk, databases = own.pop("organization_bytes_max") or None, own.pop("databases_per_organization")
        rooms = {"database_bytes": tier.bytes_max, "organization_bytes": disk, "databases": databases}
        limits = {"rate": rate, **rooms, **self._limits, **own}
        common.answer(exchange, {**common.get_fields(record), "databases": names, "limits": limits})

    async def usage(self, exchange: Exchange, identity: Identity) -> None:
        given = read_query(exchange, ("since", "until", "limit", "cursor"))
        page = common.find_page(given, common.LIMIT_MAX)  # as many as it can be: it had no pages once
        principal = identity.principal
        since, until = (_read_time(given, name) for name in ("since", "until"))
        items = await self._catalog.journal.list_usage(principal.organization, principal.database, since, until, page)
        shown = items[: page.limit]
        more = write_cursor(shown[-1].hour, shown[-1].database) if len(items) > page.limit else None
        common.answer(exchange, {"items": shown, "next_cursor": more})

    async def audit(self, exchange: Exchange, identity: Identity) -> None:
        given = read_query(exchange, ("limit", "cursor"))
        limit, cursor = common.read_limit(given), given.get("cursor")
        if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
            raise common.bad_cursor()
        before = None if cursor is None else int(cursor)
        principal = identity.principal
        items = await self._catalog.journal.list_audit(principal.organization, principal.database, limit, before)
        shown = items[:limit]
        common.answer(exchange, {"items": shown, "next_cursor": str(shown[-1].id) if len(items) > limit else None})

    # -- the operator's -----------------------------------------------------------------------------------------

    async def index(self, exchange: Exchange, identity: Identity) -> None:
        page = common.read_page(exchange)
        common.answer_page(exchange, page, await self._catalog.organizations.list_page(page))

    async def create(self, exchange: Exchange, identity: Identity) -> None:
        """Create an organization with its first database and a key that manages it."""
        request = common.read_body(exchange, OrganizationRequest)
        tier = self._check_tier(self._default_tier if request.tier is None else request.tier)
        await self._check_walls()
        id = "org_" + make_id(secrets.token_bytes(RANDOM_BYTES))
        token = make_token(TokenKind.KEY, secrets.token_bytes(RANDOM_BYTES))
        with common.translate_refusal(taken=f"there is an organization {request.name!r} already"):
            await self._lifecycle.create_organization(
                actor_of(identity, exchange), id, request.name, tier, _FIRST_DATABASE, token
            )
        with common.report_loss_as_unknown():
            record = await self._find(id)
        common.answer(exchange, {**common.get_fields(record), "key": token.text}, 201)

    async def show(self, exchange: Exchange, identity: Identity) -> None:
        read_query(exchange)
        common.answer(exchange, common.get_fields(await self._find(exchange.path_values["id"])))

    async def change(self, exchange: Exchange, identity: Identity) -> None:
        request = common.read_body(exchange, OrganizationChange)
        id = exchange.path_values["id"]
        name = common.drop_unset(request.name)
        tier = None if isinstance(request.tier, msgspec.UnsetType) else self._check_tier(request.tier)
        limits = None if isinstance(request.limits, msgspec.UnsetType) else _check_limits(request.limits)
        with common.translate_refusal(taken=f"there is an organization {name!r} already"):
            changed = await self._catalog.organizations.change(actor_of(identity, exchange), id, name, tier, limits)
        if not changed:
            raise _unknown(id)
        self._identities.forget()
        with common.report_loss_as_unknown():
            record = await self._find(id)
        common.answer(exchange, common.get_fields(record))

    async def delete(self, exchange: Exchange, identity: Identity) -> None:
        """Delete an organization and everything in it."""
        read_query(exchange)
        id = exchange.path_values["id"]
        if id == await self._catalog.organizations.find_first():
            raise ServiceError("wrong_state", "the installation's own organization cannot be deleted")
        if not await self._lifecycle.delete_organization(actor_of(identity, exchange), id):
            raise _unknown(id)
        self._identities.forget()
        common.answer(exchange, {"state": GONE})

    async def _find(self, id: str) -> OrganizationRecord:
        record = await self._catalog.organizations.show(id)
        if record is None:
            raise _unknown(id)
        return record

    async def _check_walls(self) -> None:
        if self._unaccepted and await self._catalog.organizations.count():
            names = ", ".join(weakness.name for weakness in self._unaccepted)
            raise ServiceError(
                "weaker_walls",
                f"there may be one organization only: the engine does not keep several apart in full ({names})",
                hint="GET /capabilities says what that means, and what closes it. Or start the service with"
                " --accept-weaker-walls.",
            )

    def _check_tier(self, name: str) -> str:
        if name not in self._tiers:
            raise ServiceError("malformed_request", f"there is no tier {name!r}; there are {', '.join(self._tiers)}")
        return name


def _check_limits(limits: Mapping[str, int | None]) -> str:
    """Return limits of an organization as JSON. Raises malformed_request."""
    try:
        for name, value in limits.items():
            check_limit(name, 1 if value is None else value)
    except ValueError as exc:
        raise ServiceError("malformed_request", str(exc)) from exc
    return _encode(limits).decode()


def _unknown(id: str) -> ServiceError:
    return ServiceError("not_found", f"there is no organization {id!r}")


def _read_time(given: Mapping[str, str], name: str) -> datetime | None:
    if name not in given:
        return None
    try:
        time = datetime.fromisoformat(given[name])
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as exc:
        message = f"{name} must be a time such as 2026-11-14T23:00:00Z, not {given[name]!r}"
        raise ServiceError("malformed_request", message) from exc
