"""A plane: its route table, and the order in which a request is checked: route, token, scope, quota, body."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter_ns
from typing import Final

from tuplegate.access.scopes import Scope
from tuplegate.admission.identity import Identity, IdentityCache
from tuplegate.admission.openapi import Description
from tuplegate.admission.paths import PathTree, split_path
from tuplegate.admission.traces import Traces
from tuplegate.admission.unhandled_failures import to_fallback_error
from tuplegate.engine.port import EngineFailure
from tuplegate.http.cors import respond_options
from tuplegate.http.errors import end_with_error, report_unexpected, respond_error
from tuplegate.http.exchange import ClientGone, Exchange
from tuplegate.http.sharing.memory import Memory, too_much_held
from tuplegate.metrics.cells import Cell, PlaneCounts, count_answer
from tuplegate.protocol.errors import ServiceError

_STRANGERS_BODY_MAX: Final = 64 * 1024
"""For a request that needs no token, or has it in its body."""
_PATH_SHOWN_MAX: Final = 200

Open = Callable[[Exchange], Awaitable[None]]
Guarded = Callable[[Exchange, Identity], Awaitable[None]]
Translate = Callable[[Exchange], None]


@dataclass(frozen=True, slots=True)
class Route:
    """A route. `scope` is the scope that a token must have; an open route takes no token. `describes` is for authors of
    clients, `group` for readers of the table. `translate` is for a route that others have defined: it moves data of the
    request into the headers that the service reads, before anything else reads them. `takes` are the headers that a
    page may send only here. A route that is not `in_lanes` never waits in a lane: it continues work that has its place
    already, and others may be waiting for it."""

    summary: str
    scope: Scope | None
    open: Open | None = None
    guarded: Guarded | None = None
    describes: Description = Description()  # noqa: RUF009 - it is frozen
    group: str = "The service"
    translate: Translate | None = None
    takes: tuple[str, ...] = ()
    in_lanes: bool = True


@dataclass(frozen=True, slots=True)
class OtherPlane:
    """The paths that only another plane has, and its address as others reach it, if that is known."""

    plane: str
    paths: PathTree[None]
    address: str | None


RouteTable = dict[tuple[str, str], Route]
"""Routes by method and path; a part in braces stands for any text."""


def put_in_group(name: str, table: RouteTable) -> RouteTable:
    return {key: replace(route, group=name) for key, route in table.items()}


class Plane:
    """Passes every request to its route, and answers every failure.

    With `in_lanes`, organizations share it fairly: see `fairness`. Every request is counted in `counts`. A body is read
    once its sender is known, and is held in `memory`. A path that is found `elsewhere` is refused with its address.
    Another worker `vouches` for requests that it has counted already.
    """

    def __init__(
        self,
        routes: RouteTable,
        identities: IdentityCache,
        counts: PlaneCounts,
        memory: Memory,
        body_bytes_max: int = _STRANGERS_BODY_MAX,
        *,
        in_lanes: bool = False,
        traces: Traces | None = None,
        elsewhere: OtherPlane | None = None,
        vouches: Callable[[Exchange], bool] | None = None,
    ) -> None:
        self._elsewhere = elsewhere
        self._vouches = vouches
        self._memory = memory
        self._body_bytes_max = body_bytes_max
        self._traces = traces
        self._in_lanes = in_lanes
        self._routes = {key: (route, counts.cell(*key)) for key, route in routes.items()}
        self._tree: PathTree[tuple[Route, Cell]] = PathTree()
        for (method, path), found in self._routes.items():
            self._tree.add(method, path, found)
        self._counts = counts
        self._identities = identities
        self._loop_time = asyncio.get_running_loop().time

    async def handle(self, exchange: Exchange) -> None:
        cell = self._counts.other
        try:
            route, cell = self._routes.get((exchange.method, exchange.path)) or self._find_route(exchange)
            if route.open is not None:
                await exchange.collect(exchange.outgoing.owner, _STRANGERS_BODY_MAX)
                await route.open(exchange)
                return
            assert route.guarded is not None
            if route.translate is not None:
                route.translate(exchange)
            now = self._loop_time()
            identity = self._identities.find(exchange, now) or await self._identities.identify(exchange, now)
            allowed = _allows(route, identity)
            quota = identity.quota
            if quota is not None and not (self._vouches is not None and self._vouches(exchange)):
                if quota.take(now):
                    exchange.extra_headers += quota.headers(now)
                else:
                    await take_permit(exchange, identity, now, refuse=allowed)
            if not allowed:
                raise _forbidden(route)
            exchange.usage = identity.usage
            owner = identity.principal.organization
            if exchange.outgoing.owner != owner:
                exchange.outgoing.belong_to(owner)
            if self._memory.is_spent(owner):
                raise too_much_held()
            if exchange.incoming is not None or len(exchange.body) > self._body_bytes_max:
                await exchange.collect(owner, self._body_bytes_max)
            lane = identity.lane if self._in_lanes and route.in_lanes else None
            waited = lane is not None and not lane.enter()
            if waited:
                assert lane is not None
                await lane.wait()
            try:
                if waited:
                    now = self._loop_time()
                    identity = self._identities.find(exchange, now) or await self._identities.identify(exchange, now)
                    if not _allows(route, identity):
                        raise _forbidden(route)
                if self._traces is not None:
                    exchange.traced, exchange.admitted_ns = True, perf_counter_ns()
                await route.guarded(exchange, identity)
            finally:
                if lane is not None:
                    lane.leave()
        except ServiceError as refusal:
            respond_error(exchange, refusal)
        except ClientGone:
            pass
        except asyncio.CancelledError:
            raise
        except Exception as exc:  # noqa: BLE001 - whatever it is, the client gets an answer and the log the cause
            known = to_fallback_error(exc, exchange.method) if isinstance(exc, EngineFailure) else None
            end_with_error(exchange, known or report_unexpected(exchange, exc))
        finally:
            count_answer(cell, exchange.status, exchange.started_ns)
            if exchange.error_code is not None:
                self._counts.count_error(exchange.error_code)
            if self._traces is not None:
                self._traces.record(exchange, self._counts.plane, *self._counts.name(cell))
            usage = exchange.usage
            if usage is not None:
                usage.requests += 1
                usage.rows += exchange.row_count
                usage.bytes += exchange.sent_bytes
                if exchange.failed or exchange.status >= 400:
                    usage.errors += 1

    def _find_route(self, exchange: Exchange) -> tuple[Route, Cell]:
        method = "GET" if exchange.method == "HEAD" else exchange.method
        parts = split_path(exchange.path)
        offered = self._tree.find(parts)
        if method in offered:
            names, found = offered[method]
            exchange.path_values = {name: parts[place] for place, name in names}
            return found
        if offered and method == "OPTIONS":
            takes = [header for _, (route, _) in offered.values() for header in route.takes]
            return Route("What the path takes.", None, open=partial(_options, list(offered), takes)), self._counts.other
        if offered:
            allowed = ", ".join(sorted(offered))
            raise ServiceError(
                "method_not_allowed",
                f"{exchange.path} takes {allowed}, not {exchange.method}",
                headers=(("allow", allowed),),
            )
        raise self._no_route(exchange.path[:_PATH_SHOWN_MAX], parts)

    def _no_route(self, path: str, parts: list[str]) -> ServiceError:
        other = self._elsewhere
        if other is None or not other.paths.find(parts):
            return ServiceError("not_found", f"there is no route {path}", hint="GET / lists the routes.")
        return ServiceError(
            "not_found",
            f"{path} is a route of the {other.plane} plane, and this is the {self._counts.plane} plane",
            hint=f"Send it to {other.address}{path}" if other.address else f"Send it to the {other.plane} plane.",
        )


def _allows(route: Route, identity: Identity) -> bool:
    return route.scope is None or route.scope in identity.scopes


def _forbidden(route: Route) -> ServiceError:
    scope = route.scope.value if route.scope else ""
    return ServiceError("forbidden", f"this route needs the scope {scope}, which the token lacks")


async def take_permit(exchange: Exchange, identity: Identity, now: float, *, refuse: bool = True) -> None:
    """Count an authenticated request against its quota. With `refuse` off, a request over the quota passes: it is
    refused anyway, for another reason."""
    quota = identity.quota
    if quota is None:
        return
    taken = quota.take(now) or await quota.take_more(now)
    exchange.extra_headers += quota.headers(now)
    if not taken and refuse:
        raise quota.refusal(now)


async def _options(methods: list[str], takes: list[str], exchange: Exchange) -> None:
    respond_options(exchange, methods, takes)
