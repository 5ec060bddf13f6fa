"""The routes by which every plane describes itself: `GET /`, `/health`, `/openapi.json` and `/docs`. None needs a
token."""

import asyncio
from collections.abc import Mapping
from functools import cached_property

import msgspec

from tuplegate import __version__
from tuplegate.access.scopes import Scope
from tuplegate.admission.identity import IdentityCache
from tuplegate.admission.openapi import Description, Operation, write_document
from tuplegate.admission.page import page, policy
from tuplegate.admission.plane import Route, RouteTable
from tuplegate.engine.port import Reports
from tuplegate.http.exchange import Exchange
from tuplegate.protocol.answers import Banner, Health, OpenApi
from tuplegate.protocol.errors import ServiceError

_encode = msgspec.json.Encoder().encode

DOCUMENTATION, OPENAPI = "/docs", "/openapi.json"


def find_console(control_url: str | None) -> str | None:
    """Return the address of the console, which the control plane serves."""
    return None if control_url is None else f"{control_url}/console/"


class AboutRoutes:
    """The routes that every plane has. `text` describes the plane; `addresses` are those of the planes, as others reach
    them."""

    def __init__(
        self, reports: Reports, identities: IdentityCache, plane: str, text: str, addresses: Mapping[str, str]
    ) -> None:
        self._identities = identities
        self._addresses = addresses
        self._plane = plane
        self._reports = reports
        self._text = text
        self._table: RouteTable = {}

    def add_to(self, table: RouteTable) -> RouteTable:
        """Return the table with the routes that every plane has. They describe the resulting table."""
        health = Description(Health, other=((503, Health),))
        self._table = {
            **table,
            ("GET", "/health"): Route(
                "Whether the service and its engine work.", None, open=self.health, describes=health
            ),
            ("GET", OPENAPI): Route(
                "This interface, by OpenAPI 3.1.", None, open=self.openapi, describes=Description(OpenApi)
            ),
            ("GET", DOCUMENTATION): Route(
                "The same as a page to read.", None, open=self.docs, describes=Description("text/html")
            ),
            ("GET", "/"): Route("This overview.", None, open=self.banner, describes=Description(Banner)),
        }
        return dict(self._table)

    async def banner(self, exchange: Exchange) -> None:
        body = {
            "service": "tuplegate",
            "plane": self._plane,
            "version": __version__,
            "description": "PostgreSQL over HTTPS",
            "endpoints": {f"{method} {path}": route.summary for (method, path), route in self._table.items()},
            "data_url": self._addresses.get("data"),
            "control_url": self._addresses.get("control"),
            "authentication": "Authorization: Bearer svc_k_…",
            "documentation": DOCUMENTATION,
            "console": find_console(self._addresses.get("control")),
            "openapi": OPENAPI,
        }
        await exchange.respond_in_pieces(_encode(body))

    async def health(self, exchange: Exchange) -> None:
        health = await self._reports.health()
        warned = any(state != "ok" for state in health.warnings.values())
        body = {
            "status": "failing" if not health.ok else "degraded" if warned else "ok",
            "version": __version__,
            "engine": {
                "kind": health.kind,
                "version": health.version,
                "commits": "replicated" if health.replicated else "local",
            },
            "checks": health.list_checks(in_full=await self._is_operator(exchange, can_ask=health.ok)),
        }
        exchange.respond(200 if health.ok else 503, _encode(body), () if health.ok else (("retry-after", "1"),))

    async def _is_operator(self, exchange: Exchange, *, can_ask: bool) -> bool:
        """Return whether the token is an operator's. While the engine cannot be asked, its last answer counts."""
        if b"authorization" not in exchange.headers:
            return False
        identity = self._identities.find_last(exchange)
        if can_ask:
            try:
                identity = await self._identities.identify(exchange, asyncio.get_running_loop().time())
            except ServiceError:
                return False
        return identity is not None and Scope.OPERATOR in identity.scopes

    async def openapi(self, exchange: Exchange) -> None:
        await exchange.respond_in_pieces(self.document)

    async def docs(self, exchange: Exchange) -> None:
        await exchange.respond_page(page(), policy())

    @cached_property
    def document(self) -> bytes:
        """The document, made on the first request."""
        operations = [
            Operation(
                method,
                path,
                route.summary,
                None if route.scope is None else route.scope.value,
                route.guarded is not None,
                route.describes,
                route.group,
            )
            for (method, path), route in self._table.items()
        ]
        return write_document(f"Tuplegate: {self._plane} plane", self._text, operations)
