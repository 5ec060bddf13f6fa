"""`GET /v2`: opens the WebSocket, answers the start-up, checks the key, and joins the client to the engine."""

import asyncio
from functools import partial
from typing import Final

import structlog

from tuplegate.access.scopes import Scope
from tuplegate.admission.identity import Identity, IdentityCache
from tuplegate.background import attempt
from tuplegate.catalog.journal import Journal
from tuplegate.catalog.metadata import Actor
from tuplegate.data_plane.interactive.handover import Handover
from tuplegate.data_plane.wire.connection.connection import WireConnection, write_greeting, write_last_word
from tuplegate.data_plane.wire.messages import WireError, write_key_data
from tuplegate.data_plane.wire.sessions import WireSessions
from tuplegate.data_plane.wire.startup import CancelRequest, Startup, read_wishes
from tuplegate.data_plane.wire.startup_reader import StartupReader
from tuplegate.data_plane.wire.wire_errors import to_wire_error
from tuplegate.engine import port
from tuplegate.http.exchange import Counts, Exchange
from tuplegate.http.origins import PageOrigins
from tuplegate.http.sharing.memory import STRANGER
from tuplegate.http.websocket import WebSocketBounds, WebSocketConnection, check_upgrade
from tuplegate.protocol.errors import ServiceError

_log: Final = structlog.get_logger()

PATH: Final = "/v2"
_CANCEL_HEADER: Final = b"tuplegate-wire-cancel"
_STARTUP_S: Final = 10.0
_TIMEOUT_MS_MAX: Final = 86_400_000
_STOPPING: Final = "the service is stopping"


class WireRoutes:
    """The route of the wire protocol. `handover` leads to the other workers of this machine: a request to cancel can
    arrive at any of them. `pages` may open connections from browsers."""

    def __init__(
        self,
        wires: port.Wires,
        identities: IdentityCache,
        sessions: WireSessions,
        handover: Handover,
        journal: Journal,
        message_bytes_max: int,
        pages: PageOrigins,
    ) -> None:
        self._wires = wires
        self._identities = identities
        self._sessions = sessions
        self._handover = handover
        self._journal = journal
        self._bytes_max = message_bytes_max
        self._pages = pages
        self._websocket_bounds = WebSocketBounds(message_bytes_max, message_bytes_max)

    async def open(self, exchange: Exchange) -> None:
        """Answer with 101; or cancel a statement, if another worker asks for that."""
        cancel = exchange.headers.get(_CANCEL_HEADER)
        if cancel is not None and self._handover.vouches(exchange):
            number, _, secret = cancel.partition(b":")
            self._sessions.do_later(self._sessions.cancel(int(number), bytes.fromhex(secret.decode())))
            exchange.respond(204, b"")
            return
        headers = check_upgrade(exchange, self._pages) + b"x-request-id: %b\r\n" % exchange.request_id.encode()
        serve = partial(self._serve, exchange.request_id)
        exchange.switch_protocols(headers, lambda handed: WebSocketConnection(handed, self._websocket_bounds, serve))

    async def _serve(self, request_id: str, websocket: WebSocketConnection) -> None:
        """Serve one client until it leaves. In any case it is told the reason for the end."""
        try:
            try:
                await self._serve_client(request_id, websocket)
            except (ServiceError, port.EngineFailure) as failure:
                raise to_wire_error(failure) from failure
            except TimeoutError:
                message = f"the start-up took longer than {_STARTUP_S:g} seconds"
                raise WireError("57014", message) from None
        except WireError as last:
            websocket.send_now(write_last_word(last))

    async def _serve_client(self, request_id: str, websocket: WebSocketConnection) -> None:
        reader = StartupReader(websocket)
        async with asyncio.timeout(_STARTUP_S) as limit:
            first = await reader.read_first()
            if isinstance(first, CancelRequest):
                await self._cancel(first)
                return
            read_wishes(first.parameters, _TIMEOUT_MS_MAX)  # what nobody may have is refused before the key is known
            token = await reader.ask_password(first)
            identity, target, usage = await self._admit(websocket, token, first.parameters.get("database") or None)
            bounds = identity.allowance.statement
            assert bounds.limit is not None, "a client's work has a limit"
            wishes = read_wishes(first.parameters, bounds.limit.most_ms)
            bounds = bounds.narrow(wishes.timeout_ms, None)
            give_back = self._sessions.take_seat(identity.principal.organization)
            try:
                opening = self._wires.wire(target, wishes.settings, wishes.application, bounds)
                async with opening as opened:
                    limit.reschedule(None)
                    counts, bytes_max = self._sessions.counts, self._bytes_max
                    connection = WireConnection(
                        websocket, opened, bounds, identity, target, usage, token, counts, bytes_max
                    )
                    await self._run(request_id, websocket, connection, opened.greeting, first, reader.take_rest())
            finally:
                give_back()

    async def _admit(
        self, websocket: WebSocketConnection, token: bytes, database: str | None
    ) -> tuple[Identity, port.Target, Counts]:
        """Identify the client and its database, as for any request. The connection counts as one."""
        now = asyncio.get_running_loop().time()
        identity = await self._identities.identify_token(token, websocket.address, now)
        if Scope.READ not in identity.scopes:
            raise ServiceError("forbidden", "this route needs the scope read, which the token lacks")
        quota = identity.quota
        if quota is not None and not quota.take(now) and not await quota.take_more(now):
            raise quota.refusal(now)
        target, usage = await self._identities.find_named(identity, None if database is None else database.encode())
        usage.requests += 1
        websocket.belong_to(identity.principal.organization)
        return identity, target, usage

    async def _run(
        self,
        request_id: str,
        websocket: WebSocketConnection,
        connection: WireConnection,
        greeting: bytes,
        startup: Startup,
        first: bytes,
    ) -> None:
        number, secret = self._sessions.add(connection, startup.minor)
        address = websocket.address.removeprefix(STRANGER) or None
        principal = connection.identity.principal
        actor = Actor(principal.organization, principal.key, principal.session, request_id, address)
        websocket.on_stop = lambda: connection.end(WireError("57P01", _STOPPING), at_once=False)
        if websocket.is_stopping:
            websocket.on_stop()
        try:
            await self._note(actor, "wire.open", connection.target)
            await websocket.send(write_greeting(greeting, write_key_data(number, secret)))
            await connection.run(first)
        finally:
            self._sessions.remove(number)
            self._sessions.do_later(self._note(actor, "wire.close", connection.target))

    async def _note(self, actor: Actor, action: str, target: port.Target) -> None:
        async def note() -> None:
            try:
                await self._journal.note(actor, action, target.id)
            except port.EngineFailure as failure:
                _log.warning("the audit was not recorded", action=action, database=target.id, reason=str(failure))

        await attempt("audit", note)

    async def _cancel(self, wish: CancelRequest) -> None:
        worker = self._sessions.find_worker(wish.process)
        if worker == self._handover.own.worker:
            await self._sessions.cancel(wish.process, wish.secret)
            return
        line = b"%b: %d:%b\r\n" % (_CANCEL_HEADER, wish.process, wish.secret.hex().encode())
        await self._handover.tell_fellow(worker, PATH, line)
