"""An HTTP/1.1 server on asyncio protocols.

Why not an ASGI server: its bookkeeping costs about a third of a whole request on the hot path (see docs/decisions). The
parts provide what a service on the open net needs: `message`, `framing` and `request_reader` parse requests,
`connection` runs them one after the other, `writing` and `stalls` watch what is sent, `memory` bounds what is held.
This module listens, keeps time and stops.

A handler is a coroutine that answers its Exchange. It is cancelled when its client leaves. See `eager` for the things
that it may not do.
"""

import asyncio
from collections.abc import Callable, KeysView
from typing import Any, Final

from tuplegate.background import keep, tick
from tuplegate.http.acceptor import Acceptor, Balance
from tuplegate.http.connection import Handler, HttpBounds, HttpConnection, SharedState
from tuplegate.http.cors import CorsPolicy
from tuplegate.http.exchange import Exchange
from tuplegate.http.parsing.message import FROM_CLIENTS, HeadLimits
from tuplegate.http.sharing.connection_turns import ConnectionTurns
from tuplegate.http.sharing.memory import Memory
from tuplegate.http.sharing.places import Places
from tuplegate.http.tls.certificates import TlsContext
from tuplegate.http.tls.transport import TlsTransport
from tuplegate.http.upgraded import UpgradedConnection

_TICK_S: Final = 1.0
_HEADS_AGE_S: Final = 60
_LATE_S: Final = 5.0
_END_S: Final = 2.0


class HttpServer:
    """Listens on one socket and passes every request to one handler, as soon as its head is there."""

    def __init__(
        self,
        handler: Handler,
        bounds: HttpBounds,
        memory: Memory,
        *,
        turns: ConnectionTurns | None = None,
        tls: TlsContext | None = None,
        cors: CorsPolicy | None = None,
        limits: HeadLimits = FROM_CLIENTS,
    ) -> None:
        """Servers on the same loop share the turns. `limits` are those of the heads of requests."""
        self._shared = SharedState(
            handler, bounds, memory, turns or ConnectionTurns(), cors, limits, with_tls=tls is not None
        )
        self._shared.on_change = self._publish_count
        self._shared.on_end = self._on_request_end
        self._shared.make_place = self._make_place
        self._places = Places(bounds.connections_max)
        self._tls = tls
        self._negotiating: dict[TlsTransport, float] = {}
        self._server: Acceptor | None = None
        self._open: memoryview | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._ended: asyncio.Future[None] | None = None

    @property
    def connections(self) -> KeysView[HttpConnection]:
        return self._shared.connections.keys()

    @property
    def upgraded(self) -> KeysView[UpgradedConnection]:
        """The connections that speak another protocol by now."""
        return self._shared.upgraded.keys()

    @property
    def open(self) -> int:
        """The number of connections, with any protocol."""
        return len(self._shared.connections) + len(self._shared.upgraded)

    async def start(self, sock: Any, balance: Balance | None = None, worker: int = 0) -> None:
        """Start to listen. `balance` is shared with other workers that listen on the same socket."""
        loop = asyncio.get_running_loop()
        self._shared.now = loop.time()
        balance = balance or Balance(1)
        self._open = balance.open[worker : worker + 1]
        self._publish_count()
        self._server = Acceptor(sock, self._protocol_factory(loop), balance, worker)
        self._ticker = keep("http", self._tick)

    def _protocol_factory(self, loop: asyncio.AbstractEventLoop) -> Callable[[], asyncio.Protocol]:
        tls, shared = self._tls, self._shared
        if tls is None:
            return lambda: HttpConnection(shared, loop)

        return lambda: TlsTransport(
            tls.choose,
            self._on_agreed,
            self._on_refused,
            memory=shared.memory,
            turns=shared.turns,
            on_opened=self._on_opened,
        )

    # Bound to the server, not to the newcomer, which would refer to itself otherwise.
    def _on_opened(self, newcomer: TlsTransport) -> None:
        has_place = self._make_place(newcomer.address)
        patience_s = self._shared.bounds.header_timeout_s if has_place else 0
        self._negotiating[newcomer] = asyncio.get_running_loop().time() + patience_s

    def _on_agreed(self, newcomer: TlsTransport) -> HttpConnection:
        self._negotiating.pop(newcomer, None)
        return HttpConnection(self._shared, asyncio.get_running_loop())

    def _on_refused(self, newcomer: TlsTransport, _: Exception) -> None:
        self._negotiating.pop(newcomer, None)

    def _make_place(self, address: str) -> bool:
        """Return whether another connection of this address may stay. If all places are taken, one is cleared if
        possible; several if connections that were refused still linger."""
        shared = self._shared
        while not shared.stopping:
            if self.open + len(self._negotiating) < shared.bounds.connections_max:
                return True
            leaving = self._places.find(address, lambda: [*shared.connections, *shared.upgraded, *self._negotiating])
            if leaving is None:
                break
            leaving.give_way()
            if isinstance(leaving, TlsTransport):
                self._negotiating.pop(leaving, None)
            elif isinstance(leaving, HttpConnection):
                shared.connections.pop(leaving, None)
            elif isinstance(leaving, UpgradedConnection):
                shared.upgraded.pop(leaving, None)
        return False

    async def stop(self, timeout_s: float, on_late: Callable[[], None]) -> None:
        """Take no more requests, and let the running ones finish within the time.

        `on_late` must bring the rest to an end; requests that still run after that are cut off, with an unknown
        outcome.
        """
        self._shared.stopping = True
        if self._server is not None:
            self._server.close()
        for newcomer in list(self._negotiating):
            newcomer.abort()
        for connection in list(self.connections):
            connection.stop_when_idle()
        for upgraded in list(self.upgraded):
            upgraded.stop()
        if self._is_busy and not await self._wait_until_idle(timeout_s):
            on_late()
        if self._is_busy and not await self._wait_until_idle(_LATE_S):
            for exchange in self._running():
                if exchange.run is not None:
                    exchange.run.cancel()
            for upgraded in list(self.upgraded):
                upgraded.cut_short()
            await self._wait_until_idle(_END_S)
        for connection in list(self.connections):
            connection.close()
        for upgraded in list(self.upgraded):
            upgraded.give_way()
        if self._ticker is not None:
            self._ticker.cancel()

    def _publish_count(self) -> None:
        if self._open is not None:
            self._open[0] = self.open

    @property
    def running(self) -> int:
        """The number of running requests."""
        return len(self._running())

    def _running(self) -> list[Exchange]:
        return [connection.current for connection in self.connections if connection.current is not None]

    @property
    def _is_busy(self) -> bool:
        return bool(self._running() or self.upgraded)

    async def _wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until no request runs, and nothing that was upgraded is left, at most this long. Return whether that is
        so."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._is_busy and (left := deadline - asyncio.get_running_loop().time()) > 0:
            self._ended = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._ended], timeout=left)
        return not self._is_busy

    def _on_request_end(self) -> None:
        """Wake `_wait_until_idle`: a request has ended while the server stops."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    async def _tick(self) -> None:
        """Once a second, renew the date and check which clients are too slow."""
        loop = asyncio.get_running_loop()
        ticks = 0
        while True:
            await tick(_TICK_S)
            ticks += 1
            self._check_connections(loop.time())
            if ticks % _HEADS_AGE_S == 0:
                self._shared.heads.age()

    def _check_connections(self, now: float) -> None:
        """Check all clients. A function, because a waiting coroutine would keep the last connection alive."""
        shared = self._shared
        shared.common.renew()
        shared.now = now
        self._places.forget()
        for connection in list(shared.connections):
            connection.check_time(now)
        for upgraded in list(shared.upgraded):
            upgraded.check_time(now)
        for newcomer, deadline in list(self._negotiating.items()):
            if now > deadline:
                newcomer.abort()
