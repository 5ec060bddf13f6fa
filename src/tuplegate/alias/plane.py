"""The alias forwards data-plane routes, redirects control-plane routes, and judges nothing.

The data plane decides who is asking and whether the request makes sense; its answers, and refusals, are passed on
unchanged. The alias itself answers only with its banner, its health, redirects, and errors when it cannot reach the
data plane.
"""

import asyncio

import msgspec

from tuplegate import __version__
from tuplegate.admission.about import find_console
from tuplegate.admission.paths import PathTree, split_path
from tuplegate.alias.heads import WEBSOCKET, write_answer_headers, write_request_head
from tuplegate.http.errors import end_with_error, report_unexpected
from tuplegate.http.exchange import ClientGone, Exchange
from tuplegate.http.forwarding.answer_reader import AnswerReader
from tuplegate.http.forwarding.joined import JoinedConnection
from tuplegate.http.forwarding.upstream import UpstreamAddress, UpstreamConnection, UpstreamLost, UpstreamUnreachable
from tuplegate.http.origins import Origin, PageOrigins
from tuplegate.http.parsing.message import CHUNKED, Head
from tuplegate.http.websocket import asks_for_websocket, check_origin
from tuplegate.metrics.cells import PlaneCounts, count_answer
from tuplegate.protocol.errors import ServiceError

_encode = msgspec.json.Encoder().encode

_HEALTH = Head(b"GET /health HTTP/1.1\r\nHost: -\r\n\r\n")
_HEALTH_TIMEOUT_S = 5.0
_REDIRECT_HINT = "Most clients leave the token out where a redirect leads elsewhere. Send the request there itself."
# RFC 9110 §9.2.1: asking twice is the same as asking once.
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Alias:
    """Forwards requests to the data plane. `control_paths` are the paths that only the control plane has. Requests are
    counted by the way they are handled here: the data plane counts them by their routes."""

    def __init__(
        self,
        upstream: UpstreamAddress,
        control: Origin | None,
        control_paths: PathTree[None],
        own_headers: bytes,
        pages: PageOrigins,
        counts: PlaneCounts | None = None,
    ) -> None:
        self._counts = counts = counts or PlaneCounts("alias")
        self._answering = counts.cell("other", "answered")
        self._redirecting = counts.cell("other", "redirected")
        self._forwarding = counts.cell("other", "forwarded")
        self._upstream = upstream
        self._authority = upstream.origin.authority.encode()
        self._control = control
        self._control_paths = control_paths
        self._own_headers = own_headers
        self._pages = pages

    async def handle(self, exchange: Exchange) -> None:
        cell = self._answering
        try:
            if exchange.method == "CONNECT":
                raise ServiceError(
                    "method_not_allowed", "this is no proxy to other hosts", headers=(("allow", "GET, POST"),)
                )
            if exchange.method in ("GET", "HEAD") and exchange.path == "/":
                exchange.respond(200, self._banner())
            elif exchange.method in ("GET", "HEAD") and exchange.path == "/health":
                await self._health(exchange)
            elif self._control_paths.find(split_path(exchange.path)):
                cell = self._redirecting
                self._redirect(exchange)
            else:
                cell = self._forwarding
                await self._forward(exchange)
        except ServiceError as refusal:
            end_with_error(exchange, refusal)
        except UpstreamLost:
            exchange.keep_alive = False  # the client sees an answer without its end
        except ClientGone:
            pass
        except asyncio.CancelledError:
            raise
        except Exception as exc:  # noqa: BLE001 - whatever it is, the client gets an answer and the log the cause
            end_with_error(exchange, report_unexpected(exchange, exc))
        finally:
            count_answer(cell, exchange.status, exchange.started_ns)
            if exchange.error_code is not None:
                self._counts.count_error(exchange.error_code)

    # -- what the alias answers itself ----------------------------------------------------------------------------

    def _banner(self) -> bytes:
        return _encode(
            {
                "service": "tuplegate",
                "plane": "alias",
                "version": __version__,
                "description": "PostgreSQL over HTTPS: another address of the data plane",
                "forwards_to": str(self._upstream.origin),
                "redirects_to": None if self._control is None else str(self._control),
                "data_url": str(self._upstream.origin),
                "control_url": None if self._control is None else str(self._control),
                "endpoints": {
                    "GET /health": "Whether the data plane answers.",
                    "GET /": "This overview.",
                },
                "authentication": "Authorization: Bearer svc_k_…",
                "documentation": "/docs",
                "console": find_console(None if self._control is None else str(self._control)),
                "openapi": "/openapi.json",
            }
        )

    async def _health(self, exchange: Exchange) -> None:
        asking = asyncio.get_running_loop().create_task(self._ask_health())
        try:
            await asyncio.wait([asking], timeout=_HEALTH_TIMEOUT_S)
            found = asking.result() if asking.done() else "does not answer"
        finally:
            asking.cancel()
        healthy = found == "ok"
        body = {
            "status": "ok" if healthy else "failing",
            "version": __version__,
            "checks": {"data_plane": found},
        }
        exchange.respond(200 if healthy else 503, _encode(body), () if healthy else (("retry-after", "1"),))

    async def _ask_health(self) -> str:
        request = write_request_head(_HEALTH, self._authority)
        try:
            connection = await self._upstream.open()
        except UpstreamUnreachable as exc:
            return str(exc)
        try:
            connection.ask(request, b"", None, chunked=False, bodiless=False)
            answer = await connection.read_head()
            while await connection.read_body():
                pass
        except UpstreamLost as lost:
            return str(lost)
        finally:
            connection.end()
        return "ok" if answer.status == 200 else f"answers {answer.status}"

    def _redirect(self, exchange: Exchange) -> None:
        if self._control is None:
            raise ServiceError("not_found", "this route is the control plane's, whose address the alias does not know")
        location = f"{self._control}{exchange.head.origin_form.decode()}"
        exchange.respond(307, _encode({"location": location, "hint": _REDIRECT_HINT}), (("location", location),))

    # -- forwarding -----------------------------------------------------------------------------------------------

    async def _forward(self, exchange: Exchange) -> None:
        to_websocket = exchange.method == "GET" and asks_for_websocket(exchange.head)
        if to_websocket:
            check_origin(exchange, self._pages)
        request = self._write_head(exchange.head, to_websocket=to_websocket)
        connection, answer = await self._send(exchange, request, may_switch=to_websocket)
        if answer.status == 101:
            headers = write_answer_headers(answer, self._own_headers) + WEBSOCKET
            exchange.switch_protocols(headers, lambda handed: JoinedConnection(handed, connection))
            return
        try:
            await self._pass_on(exchange, connection, answer)
        finally:
            connection.release()

    def _write_head(self, head: Head, *, to_websocket: bool) -> bytes:
        """Write the head to send on. It is cached with the one that arrived, which clients send again and again."""
        noted = head.noted
        if isinstance(noted, bytes):
            return noted
        head.noted = text = write_request_head(head, self._authority, to_websocket=to_websocket)
        return text

    async def _send(
        self, exchange: Exchange, request: bytes, *, may_switch: bool
    ) -> tuple[UpstreamConnection, AnswerReader]:
        """Send the request; return the connection, and the beginning of its answer."""
        while True:
            connection, used_before = await self._find_connection(exchange)
            answer: AnswerReader | None = None
            call = connection.ask(
                request,
                exchange.body,
                exchange.incoming,
                chunked=exchange.head.length == CHUNKED,
                bodiless=exchange.method == "HEAD",
                may_switch=may_switch,
                on_continue=exchange.send_continue if exchange.head.expects_continue else None,
            )
            try:
                answer = await connection.read_head()
            except UpstreamLost as exc:
                # The other side may have closed a connection just while it was used again.
                if not (
                    used_before and call.got_nothing and exchange.method in _SAFE_METHODS and _has_no_body(exchange)
                ):
                    raise _lost(exchange, exc, sent_all=call.sent_all) from exc
            finally:
                if answer is None:
                    connection.release()
            if answer is not None:
                return connection, answer

    async def _find_connection(self, exchange: Exchange) -> tuple[UpstreamConnection, bool]:
        """Return the connection that belongs to the client's connection, and whether it was used before."""
        companion = exchange.outgoing.companion
        if isinstance(companion, UpstreamConnection):
            if self._upstream.is_fresh(companion):
                return companion, True
            companion.end()
        try:
            connection = await self._upstream.open()
        except UpstreamUnreachable as exc:
            message = f"the alias has no connection to the data plane: {exc}"
            raise ServiceError("data_plane_unavailable", message) from exc
        exchange.outgoing.accompany(connection)
        return connection, False

    async def _pass_on(self, exchange: Exchange, connection: UpstreamConnection, answer: AnswerReader) -> None:
        sized = answer.length is not None or exchange.method == "HEAD" or answer.status in (204, 304)
        headers = write_answer_headers(answer, self._own_headers)
        exchange.pass_on(answer.status, headers, sized=sized, first=connection.take_body())
        while data := await connection.read_body():
            await exchange.write(data)
        exchange.finish()


def _has_no_body(exchange: Exchange) -> bool:
    """Return whether there is no body that would have to be sent again."""
    return exchange.head.length == 0


def _lost(exchange: Exchange, exc: UpstreamLost, *, sent_all: bool) -> ServiceError:
    if exchange.method in _SAFE_METHODS or not sent_all:
        return ServiceError("data_plane_unavailable", f"the data plane was asked, but {exc}")
    return ServiceError("outcome_unknown", f"the data plane was asked, but {exc}; the request may have been applied")
