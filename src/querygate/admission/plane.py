"""The data plane: its route table, and the order in which a request is judged: route, token, scope, body."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import structlog

from querygate.access.scopes import Scope
from querygate.admission.identity import Identity, IdentityCache
from querygate.http.answers import respond_error, unexpected
from querygate.http.cors import respond_options
from querygate.http.exchange import ClientGone, Exchange
from querygate.protocol.errors import ServiceError

_log = structlog.get_logger()

Open = Callable[[Exchange], Awaitable[None]]
Guarded = Callable[[Exchange, Identity], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Route:
    """`scope` is what a token must have; an open route takes none."""

    summary: str
    scope: Scope | None
    open: Open | None = None
    guarded: Guarded | None = None


class Plane:
    """Gives every request to its route, and every failure an answer."""

    def __init__(self, routes: dict[tuple[str, str], Route], identities: IdentityCache) -> None:
        self._routes = routes
        self._identities = identities
        self._loop_time = asyncio.get_running_loop().time

    async def handle(self, exchange: Exchange) -> None:
        try:
            route = self._routes.get((exchange.method, exchange.path)) or self._find_route(exchange)
            if route.open is not None:
                await route.open(exchange)
                return
            assert route.guarded is not None
            now = self._loop_time()
            authorization = exchange.headers.get(b"authorization")
            identity = self._identities.find(authorization, now) or await self._identities.identify(authorization, now)
            if route.scope is not None and route.scope not in identity.scopes:
                raise ServiceError(
                    "forbidden", f"this route needs the scope {route.scope.value}, which the token lacks"
                )
            await route.guarded(exchange, identity)
        except ServiceError as exc:
            respond_error(exchange, exc)
        except ClientGone:
            pass
        except asyncio.CancelledError:
            raise
        except Exception as exc:  # noqa: BLE001 - whatever it is, the client gets an answer and the log the cause
            error = unexpected(exchange, exc)
            if not exchange.answered:
                respond_error(exchange, error)
            else:
                exchange.keep_alive = False

    def _find_route(self, exchange: Exchange) -> Route:
        method = "GET" if exchange.method == "HEAD" else exchange.method
        allowed = []
        for (offered, template), route in self._routes.items():
            values = match_template(template, exchange.path)
            if values is not None and offered == method:
                exchange.path_values = values
                return route
            if values is not None:
                allowed.append(offered)
        if allowed and method == "OPTIONS":
            return Route("What the path takes.", None, open=partial(_options, allowed))
        if allowed:
            raise ServiceError(
                "method_not_allowed",
                f"{exchange.path} takes {', '.join(sorted(allowed))}, not {exchange.method}",
                headers=(("allow", ", ".join(sorted(allowed))),),
            )
        raise ServiceError("not_found", f"there is no route {exchange.path}", hint="GET / lists the routes.")


async def _options(methods: list[str], exchange: Exchange) -> None:
    respond_options(exchange, methods)


def match_template(template: str, path: str) -> dict[str, str] | None:
    """What stands in the path for every {name} of the template; None where the path is another one."""
    parts, given = template.split("/"), path.split("/")
    if len(parts) != len(given):
        return None
    values: dict[str, str] = {}
    for part, value in zip(parts, given, strict=True):
        if part.startswith("{") and value:
            values[part[1:-1]] = value
        elif part != value:
            return None
    return values
