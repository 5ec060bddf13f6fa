"""Hands a request over to the worker that holds its transaction, and passes the answer on.

Among the workers of one machine it goes over a socket that only they can open; to another machine over that machine's
own address, whose workers hand it on among themselves. The holder checks the token once more, but counts the request
against no quota: a MAC proves that the request was counted where it arrived.
"""

import hmac
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from tuplegate.background import within
from tuplegate.http.exchange import Exchange
from tuplegate.http.forwarding.answer_reader import AnswerReader
from tuplegate.http.forwarding.upstream import UpstreamAddress, UpstreamConnection, UpstreamLost, UpstreamUnreachable
from tuplegate.http.origins import Origin, parse_origin
from tuplegate.http.parsing.message import CHUNKED

HEADER: Final = b"tuplegate-handed-over"
NODE_BITS: Final = 48
_WORKER_BITS: Final = 8
_IDLE_S: Final = 20.0
_STATE_S: Final = 5.0
_PATHS_MAX: Final = 1_000
"""Paths whose MACs are remembered, once a fellow has sent them."""
# Headers that each hop writes anew, or that concern the first connection only.
_NOT_PASSED_ON: Final = frozenset({
    b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
    b"content-length", b"expect", b"host", b"origin", HEADER,
})  # fmt: skip
_NOT_PASSED_BACK: Final = re.compile(
    rb"\r\n(?:connection|keep-alive|transfer-encoding|ratelimit)[^\r]*+", re.IGNORECASE
)


class HolderGone(Exception):
    """The holder of the transaction is gone."""


class HolderSilent(Exception):
    """The holder did not answer, though it is not known to be gone: the request may have been carried out."""


@dataclass(frozen=True, slots=True)
class Doors:
    """The sockets of all workers of this machine, by path, over which they hand requests over to each other.

    `node` is the number of this machine, which no other has.
    """

    node: int
    sockets: Mapping[str, socket.socket]


class Holder:
    """A worker of a machine that serves this installation; `node` is the machine's number."""

    def __init__(self, node: int, worker: int) -> None:
        self.node = node
        self.worker = worker

    @property
    def number(self) -> int:
        return self.node << _WORKER_BITS | self.worker

    @classmethod
    def read(cls, number: int) -> "Holder":
        return cls(*divmod(number, 1 << _WORKER_BITS))


class _PassedHead:
    """The head of a request as it goes on to an address; kept with the head that arrived."""

    def __init__(self, address: UpstreamAddress, text: bytes) -> None:
        self.address = address
        self.text = text


FindNode = Callable[[int], Awaitable[str | None]]
"""Returns the address of another machine by its number, "" if that is unknown; None if the machine is gone."""


class Handover:
    """Hands requests over to other workers. `own` is this worker, `fellows` the sockets of all workers of this machine,
    by number."""

    def __init__(self, own: Holder, fellows: Sequence[str], find_node: FindNode, secret: bytes) -> None:
        self.own = own
        self._find_node = find_node
        self._secret = secret
        self._fellows = [UpstreamAddress(Origin("http", "localhost", 80), None, _IDLE_S, path) for path in fellows]
        self._nodes: dict[str, UpstreamAddress] = {}
        self._macs: dict[str, bytes] = {}
        """By path."""

    def vouches(self, exchange: Exchange) -> bool:
        """Return whether another worker has handed the request over, and so counted it."""
        given = exchange.headers.get(HEADER)
        if given is None:
            return False
        path = exchange.path
        known = self._macs.get(path)
        if known is not None:
            return hmac.compare_digest(given, known)
        mac = self._vouch(path)
        if not hmac.compare_digest(given, mac):
            return False
        if len(self._macs) >= _PATHS_MAX:
            self._macs.clear()
        self._macs[path] = mac
        return True

    def _vouch(self, path: str) -> bytes:
        return hmac.digest(self._secret, f"handed over/{path}".encode(), "sha256").hex().encode()

    async def pass_on(self, exchange: Exchange, holder: Holder) -> None:
        """Ask the holder, and pass its answer on. Raises HolderGone and HolderSilent while nothing was passed on."""
        address = self._find_fellow(holder) or await self._find_address(holder)
        connection = _find_companion(exchange, address) or await self._connect(exchange, address)
        bodiless = exchange.method == "HEAD"
        try:
            connection.ask(self._pass_head(exchange, address), exchange.body, None, chunked=False, bodiless=bodiless)
            answer = await connection.read_head()
            sized = answer.length is not None or bodiless
            headers = _write_headers(exchange, answer)
            exchange.pass_on(answer.status, headers, sized=sized, first=connection.take_body())
            while not connection.has_given_all:
                data = await connection.read_body()
                if data:
                    await exchange.write(data)
            exchange.finish()
        except UpstreamLost as lost:
            if not exchange.answered:
                raise HolderSilent from lost
            exchange.keep_alive = False  # the client sees an answer without its end
        finally:
            connection.release()

    async def tell_fellow(self, worker: int, path: str, line: bytes) -> None:
        """Tell another worker of this machine something, by a header line; a worker that is not there hears nothing."""
        if not 0 <= worker < len(self._fellows):
            return
        address = self._fellows[worker]
        head = b"GET %b HTTP/1.1\r\nhost: %b\r\n%b%b: %b\r\n\r\n" % (
            path.encode(), address.origin.authority.encode(), line, HEADER, self._vouch(path)
        )  # fmt: skip
        try:
            await within(_STATE_S, self._tell(address, head))
        except (TimeoutError, UpstreamLost, UpstreamUnreachable):
            pass

    async def _tell(self, address: UpstreamAddress, head: bytes) -> None:
        connection = await address.open()
        try:
            connection.ask(head, b"", None, chunked=False, bodiless=False)
            await connection.read_head()
        finally:
            connection.end()

    def _find_fellow(self, holder: Holder) -> UpstreamAddress | None:
        """Return the address of another worker of this machine; None if the holder is on another machine."""
        if holder.node != self.own.node:
            return None
        if holder.worker >= len(self._fellows) or holder.worker == self.own.worker:
            raise HolderGone
        return self._fellows[holder.worker]

    async def _find_address(self, holder: Holder) -> UpstreamAddress:
        """Return the address of another machine."""
        url = await self._find_node(holder.node)
        if url is None:
            raise HolderGone
        if not url:
            raise HolderSilent
        known = self._nodes.get(url)
        if known is None:
            origin = parse_origin(url)
            tls = ssl.create_default_context if origin.scheme == "https" else None
            known = self._nodes[url] = UpstreamAddress(origin, tls, _IDLE_S)
        return known

    async def _connect(self, exchange: Exchange, address: UpstreamAddress) -> UpstreamConnection:
        companion = exchange.outgoing.companion
        if companion is not None:
            companion.end()
        try:
            connection = await address.open()
        except UpstreamUnreachable as exc:
            raise HolderSilent from exc
        exchange.outgoing.accompany(connection)
        return connection

    def _pass_head(self, exchange: Exchange, address: UpstreamAddress) -> bytes:
        head = exchange.head
        noted = head.noted
        if isinstance(noted, _PassedHead) and noted.address is address:
            return noted.text
        text = self._write_head(exchange, address, exchange.method, exchange.path, len(exchange.body))
        if head.length != CHUNKED:  # else the length of the body is not the head's
            head.noted = _PassedHead(address, text)
        return text

    async def ask_state(self, exchange: Exchange, holder: Holder) -> str | None:
        """Return the state of the transaction as the holder tells it; None if it does not answer in time."""
        try:
            return await within(
                _STATE_S, self._ask_state(exchange, self._find_fellow(holder) or await self._find_address(holder))
            )
        except HolderGone:
            return "aborted"
        except (TimeoutError, HolderSilent, UpstreamLost, UpstreamUnreachable):
            return None

    async def _ask_state(self, exchange: Exchange, address: UpstreamAddress) -> str | None:
        path = f"/v1/transaction/{exchange.path_values['id']}"
        connection = await address.open()
        try:
            head = self._write_head(exchange, address, "GET", path, 0)
            connection.ask(head, b"", None, chunked=False, bodiless=False)
            answer = await connection.read_head()
            body = b""
            while data := await connection.read_body():
                body += data
        finally:
            connection.end()
        return str(msgspec.json.decode(body).get("state")) if answer.status == 200 else None

    def _write_head(
        self, exchange: Exchange, address: UpstreamAddress, method: str, path: str, body_bytes: int
    ) -> bytes:
        lines = [
            b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (method.encode(), path.encode(), address.origin.authority.encode())
        ]
        lines += [b"%b: %b\r\n" % pair for pair in exchange.headers.items() if pair[0] not in _NOT_PASSED_ON]
        if method != "GET" or body_bytes:  # without it, a body would be read as the next request
            lines.append(b"content-length: %d\r\n" % body_bytes)
        lines.append(b"%b: %b\r\n\r\n" % (HEADER, self._vouch(path)))
        return b"".join(lines)


def _find_companion(exchange: Exchange, address: UpstreamAddress) -> UpstreamConnection | None:
    """Return the connection of the client's last request, if it can take another one to that address."""
    companion = exchange.outgoing.companion
    return companion if isinstance(companion, UpstreamConnection) and address.is_fresh(companion) else None


def _write_headers(exchange: Exchange, answer: AnswerReader) -> bytes:
    """Return the headers of the answer; those about this connection and its quota are this worker's own."""
    lines = answer.lines
    if answer.length is None or answer.tells_connection:
        lines = _NOT_PASSED_BACK.sub(b"", lines)
    return exchange.extra_headers + (lines[2:] + b"\r\n" if lines else b"")
