"""One client's connection: reads, runs and answers its requests one after the other.

A request begins when its head is there. The next one is not looked at before the answer was written and taken; bytes
that arrive meanwhile stay in the socket, except for one piece.

There is no recursion: only `consume_some` begins a request or moves a body on, and all other code asks its Intake to
continue. In one pass of the loop it takes a few short steps. Then other connections have their turn, and nothing is
read before its next one.
"""

# size: the reason stands above the class of a connection, and the shared state refers to that class.

import asyncio
import secrets
import select
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Final, cast

from tuplegate.eager import EagerRun
from tuplegate.http.body import IncomingBody
from tuplegate.http.cors import CorsPolicy
from tuplegate.http.errors import respond_error
from tuplegate.http.exchange import Exchange
from tuplegate.http.parsing.message import Head, HeadCache, HeadLimits
from tuplegate.http.parsing.request_reader import END, RequestReader
from tuplegate.http.sharing.connection_turns import ConnectionTurns
from tuplegate.http.sharing.intake import Intake
from tuplegate.http.sharing.memory import Holding, Memory, stranger_at
from tuplegate.http.sharing.precedence import Standing, Waiting
from tuplegate.http.sharing.stalls import ClientProgress, cut_off
from tuplegate.http.upgraded import ClientConnection, Handed, Upgrade, UpgradedConnection
from tuplegate.http.writing import CommonHeaders, Outgoing, do_nothing
from tuplegate.protocol.errors import ServiceError

Handler = Callable[[Exchange], Coroutine[Any, Any, None]]

_LINGER_S: Final = 2.0
_STEPS_MAX: Final = 8
"""Requests begun, or pieces of a body read, in one pass of the loop."""
_GONE_LOOK_S: Final = [0.05, 0.05, 0.2, 0.5]
"""Pauses between looks at a client that sends no more."""
_NO_REQUEST: Final = Head(b"GET / HTTP/1.1\r\nHost: -\r\n\r\n")


@dataclass(frozen=True, slots=True)
class HttpBounds:
    connections_max: int
    header_timeout_s: float
    body_timeout_s: float
    keep_alive_s: float
    reader_timeout_s: float


class RequestIds:
    def __init__(self) -> None:
        self._prefix = b"req_" + secrets.token_hex(4).encode()
        self._number = 0

    def next(self) -> bytes:
        self._number += 1
        return b"%b%08x" % (self._prefix, self._number)


class SharedState:
    """The state that the connections of a server share."""

    def __init__(
        self,
        handler: Handler,
        bounds: HttpBounds,
        memory: Memory,
        turns: ConnectionTurns,
        cors: CorsPolicy | None,
        limits: HeadLimits,
        *,
        with_tls: bool,
    ) -> None:
        self.handler = handler
        self.bounds = bounds
        self.memory = memory
        self.turns = turns
        self.cors = cors
        self.heads = HeadCache(limits)
        self.ids = RequestIds()
        self.common = CommonHeaders(with_tls=with_tls)
        self.connections: dict[HttpConnection, None] = {}
        """In the order in which they were opened."""
        self.upgraded: dict[UpgradedConnection, None] = {}
        """Those that speak another protocol by now."""
        self.stopping = False
        self.now = 0.0
        """By the loop's clock; a second old at most."""
        self.on_change: Callable[[], None] = do_nothing
        """Called when a connection was opened or closed."""
        self.on_end: Callable[[], None] = do_nothing
        """Called when a request has ended while the server stops."""
        self.make_place: Callable[[str], bool] = _accept_all
        """Clears a place for another connection of this address if necessary, and returns whether there is one."""

    def note_upgraded_lost(self, connection: UpgradedConnection) -> None:
        self.upgraded.pop(connection, None)
        self.on_change()
        if self.stopping:
            self.on_end()


# size: the life of a connection is one state machine. Its parts (reader, body, writing, memory, progress) are classes
# of their own; what is left are the transitions, which share their state.
class HttpConnection(ClientConnection):
    def __init__(self, shared: SharedState, loop: asyncio.AbstractEventLoop) -> None:
        self._shared = shared
        self._loop = loop
        self._body_held_back = False
        """The handler wants no more of the current body just now."""
        self._closing = False
        """Nothing more is read from it, except its end."""
        self._sends_no_more = False
        self._look: asyncio.TimerHandle | None = None
        """The next look at a client that sends no more."""
        self._deadline: float | None = None
        self._is_idle = True
        """Nothing of the next request has arrived yet."""
        self.current: Exchange | None = None
        """The current request."""

    # -- the transport --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        shared = self._shared
        self._transport = cast(asyncio.Transport, transport)
        address = stranger_at(transport)
        holding = Holding(shared.memory, address, self._transport)
        self._intake = Intake(self._transport, shared.turns, holding, self)
        self._reader = RequestReader(shared.heads, self._intake.unread)
        self._out = Outgoing(self._transport, shared.common, shared.memory, address, self._intake.advance)
        self._opened_at = self._loop.time()
        self._progress = ClientProgress(self._transport, self._opened_at)
        self._expect_request(shared.bounds.header_timeout_s)
        if not shared.make_place(self._out.address):
            self._refuse(ServiceError("busy", "too many connections are open"))
        shared.connections[self] = None
        shared.on_change()

    def connection_lost(self, exc: Exception | None) -> None:
        shared = self._shared
        shared.connections.pop(self, None)
        shared.on_change()
        self._closing = True
        self._intake.end()
        if self._look is not None:
            self._look.cancel()
        exchange = self.current
        # Cancelled before `note_lost` resumes it: otherwise the first wait of its clean-up would be cancelled.
        if exchange is not None and exchange.run is not None:
            exchange.run.cancel()
        self._out.note_lost()

    def data_received(self, data: bytes) -> None:
        self._intake.feed(data)

    def eof_received(self) -> bool:
        """The client sends no more. It may have left, or wait for the answers to its requests."""
        self._sends_no_more = True
        exchange = self.current
        if self._closing:
            return False
        if exchange is None:
            self._intake.ask_turn()
            self._intake.listen()
            return self._intake.unread.size > 0
        if exchange.incoming is not None and not exchange.incoming.complete:
            exchange.keep_alive = False
            exchange.incoming.fail(ServiceError("malformed_request", "the client closed before its body had come"))
        else:
            self._look_for_client(0)
        return True

    def pause_reading(self) -> None:
        self._body_held_back = True
        self._intake.listen()

    def resume_reading(self) -> None:
        self._body_held_back = False
        self._intake.listen()

    held_bytes = 0
    """See `IntakeReader`: a body that has arrived is charged where it is collected."""

    @property
    def is_full(self) -> bool:
        """Return whether unread bytes must be handled before more are read. A connection with nothing unread is always
        read from, to notice its end."""
        exchange = self.current
        if exchange is None:
            return self._out.is_behind and self._intake.unread.size > 0
        if self._body_held_back:
            return True
        incoming = exchange.incoming
        takes = incoming is not None and incoming.is_wanted and not (incoming.complete or incoming.failed)
        return not takes and self._intake.unread.size > 0

    # -- requests -------------------------------------------------------------------------------------------------

    def consume_some(self) -> bool:
        """Begin requests and move bodies on. See `IntakeReader`."""
        try:
            for _ in range(_STEPS_MAX):
                if self._closing:
                    return False
                exchange = self.current
                if exchange is None:
                    if self._out.is_behind or not self._begin_next():
                        return False
                elif exchange.incoming is None or not exchange.incoming.is_wanted or not self._move_body(exchange):
                    return False
        except ServiceError as error:
            self._refuse(error)
            return False
        return True

    def _begin_next(self) -> bool:
        """Begin the next request; return whether there was one. Raises the error of one that is malformed."""
        shared, reader = self._shared, self._reader
        head = reader.next()
        if head is None:
            if self._sends_no_more:
                self.close()
            elif self._is_idle and self._intake.unread.size:
                self._is_idle = False
                self._deadline = self._loop.time() + shared.bounds.header_timeout_s
            return False
        assert isinstance(head, Head)
        exchange = Exchange(self._out, shared.ids.next(), head)
        exchange.chunked = head.is_http_1_1
        exchange.keep_alive = head.keep_alive and not shared.stopping
        if shared.cors is not None and b"origin" in head.headers:
            exchange.extra_headers = shared.cors.answer_headers(head.headers[b"origin"], head.headers.get(b"host"))
        event = reader.next()
        if isinstance(event, bytes):
            exchange.body = event
            event = reader.next() if reader.has_whole_body else None
        if event is not END:
            exchange.incoming = IncomingBody(
                exchange.body, head.length, self, shared.memory, self._out.owner, self._transport
            )
            exchange.body = b""
        self._deadline = None
        self.current = exchange
        exchange.started_ns = perf_counter_ns()
        exchange.run = EagerRun(shared.handler(exchange), self._done)
        exchange.run.resume()
        if self._sends_no_more and self._look is None:
            self._look_for_client(0)
        return True

    def want_body(self) -> None:
        """Deliver the body of the current request from now on."""
        self._deadline = self._loop.time() + self._shared.bounds.body_timeout_s
        self._is_idle = False
        self._body_held_back = False
        if not self._intake.is_consuming:
            self._intake.ask_turn()
            self._intake.listen()

    def _move_body(self, exchange: Exchange) -> bool:
        """Pass on bytes of the body that have arrived; return whether there were any."""
        incoming = exchange.incoming
        assert incoming is not None
        if incoming.complete or incoming.failed:
            return False
        try:
            event = self._reader.next()
            if isinstance(event, bytes):
                incoming.feed(event)
        except ServiceError as error:
            exchange.keep_alive = False
            incoming.fail(error)
            return False
        if event is END:
            self._deadline = None
            incoming.end()
        return event is not None

    def _done(self, cancelled: bool) -> None:
        exchange, self.current = self.current, None
        assert exchange is not None
        self._body_held_back = False
        if exchange.incoming is not None:
            exchange.incoming.release()
        shared = self._shared
        if cancelled and not self._out.is_lost and not exchange.answered:
            exchange.keep_alive = False
            respond_error(exchange, _cut_off(exchange))
        if shared.stopping:
            shared.on_end()
        if self._closing:
            return
        if not exchange.keep_alive or not exchange.answered or shared.stopping:
            if exchange.upgrade is None or shared.stopping or self._sends_no_more:
                self._linger()
            else:
                self._hand_over(exchange.upgrade)
            return
        self._expect_request(shared.bounds.keep_alive_s)
        if self._intake.is_consuming:
            return
        if self._intake.unread.size or self._sends_no_more:
            self._intake.ask_turn()
        self._intake.listen()

    def _hand_over(self, upgrade: Upgrade) -> None:
        """Hand the transport, and the bytes that have arrived, to a successor. Nothing is done here any more."""
        shared, transport = self._shared, self._transport
        self._closing = True
        handed = Handed(
            transport,
            self._out,
            self._progress,
            self._intake,
            shared.bounds.reader_timeout_s,
            self._opened_at,
            shared.note_upgraded_lost,
        )
        successor = upgrade(handed)
        shared.connections.pop(self, None)
        shared.upgraded[successor] = None
        transport.set_protocol(successor)
        successor.begin()

    def _refuse(self, error: ServiceError) -> None:
        """Answer bytes that are no request, or will not be read, and close the connection."""
        if self._closing:
            return
        exchange = Exchange(self._out, self._shared.ids.next(), _NO_REQUEST)
        exchange.keep_alive = False
        respond_error(exchange, error)
        self._linger()

    # -- memory ---------------------------------------------------------------------------------------------------

    def note_no_room(self, error: ServiceError) -> None:
        """Refuse a client that holds too much memory. Its connection is not read from any more."""
        exchange = self.current
        if exchange is None:
            self._refuse(error)
            return
        exchange.keep_alive = False
        if exchange.incoming is not None and not exchange.incoming.complete:
            exchange.incoming.fail(error)

    # -- time and the end -----------------------------------------------------------------------------------------

    def check_time(self, now: float) -> None:
        """Close the connection if the client is too slow. Called once a second."""
        self._out.charge_again()
        if not self._progress.has_taken_all(now, self._out.written):
            if self._progress.measure_stall_s(now, self._out.written) > self._shared.bounds.reader_timeout_s:
                cut_off(self._transport)
            elif self._deadline is not None and self.current is None:
                self._deadline = max(self._deadline, now + _LINGER_S)
            return
        if self._intake.is_paused and not self._transport.is_closing() and self._is_broken():
            self._transport.abort()
            return
        if self._deadline is None or now <= self._deadline:
            return
        if self._closing or self._is_idle:
            self._transport.abort()
            return
        self._deadline = None
        late = ServiceError("request_timeout", "the request did not arrive in time")
        if self.current is None:
            self._refuse(late)
        elif self.current.incoming is not None:
            self.current.keep_alive = False
            self.current.incoming.fail(late)

    def _expect_request(self, timeout_s: float) -> None:
        """Wait for a request. If nothing of one arrives, the connection is closed without an answer."""
        self._deadline = self._shared.now + timeout_s
        self._is_idle = True

    def standing(self) -> Standing | None:
        """See `Places`."""
        return self._stand(*self._find_waiting()) if self in self._shared.connections else None

    def _find_waiting(self) -> tuple[Waiting, float]:
        """Return the state that the connection waits in, and the time since which it does."""
        bounds, deadline, exchange = self._shared.bounds, self._deadline, self.current
        if self._transport.get_write_buffer_size():
            return Waiting.READER, self._progress.taken_at
        if self._closing:
            return Waiting.END, self._opened_at if deadline is None else deadline
        if exchange is not None:
            if deadline is None:
                return Waiting.HANDLER, exchange.started_ns
            return Waiting.BODY, deadline - bounds.body_timeout_s
        if deadline is None or self._out.written == 0:
            return Waiting.FIRST_REQUEST, self._opened_at
        return Waiting.NEXT_REQUEST, deadline - (bounds.keep_alive_s if self._is_idle else bounds.header_timeout_s)

    def stop_when_idle(self) -> None:
        """Close it, unless a request runs. One whose body is still arriving has not begun, and is refused."""
        exchange = self.current
        if exchange is None:
            self.close()
        elif exchange.incoming is not None and not (exchange.incoming.complete or exchange.incoming.failed):
            exchange.keep_alive = False
            exchange.incoming.fail(_not_run())

    def give_way(self) -> None:
        """Close the connection to make room for another. Untaken output of its client does not delay that."""
        if self._transport.get_write_buffer_size():
            self._closing = True
            cut_off(self._transport)
        else:
            self.close()

    def close(self) -> None:
        self._closing = True
        self._intake.end()
        self._transport.close()

    def _linger(self) -> None:
        """Close after the client could read the answer: closing with unread input would reset the connection."""
        self._closing = True
        self._intake.end()
        self._deadline = self._loop.time() + _LINGER_S
        if self._transport.is_closing():
            return
        if self._sends_no_more or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._transport.write_eof()

    def _look_for_client(self, times: int) -> None:
        """Check again and again whether a client that sends no more is still there. Only a write can tell: the network
        answers it with an error if the client has left. If nothing can be written, the client counts as gone after the
        first looks: another client may need the memory of its request."""
        self._look = None
        if self._closing or self.current is None or self._transport.is_closing():
            return
        if self._is_broken() or (times == len(_GONE_LOOK_S) and not self.current.can_show_life):
            self._transport.abort()
            return
        if times % len(_GONE_LOOK_S) == 1:
            self.current.show_life()
        pause = _GONE_LOOK_S[times] if times < len(_GONE_LOOK_S) else 1.0
        self._look = self._loop.call_later(pause, self._look_for_client, times + 1)

    def _is_broken(self) -> bool:
        sock = self._transport.get_extra_info("socket")
        look = select.poll()
        look.register(sock.fileno(), 0)
        return bool(look.poll(0))


def _accept_all(_: str) -> bool:
    return True


def _not_run() -> ServiceError:
    return ServiceError("shutting_down", "the service is stopping; the request was not run")


def _cut_off(exchange: Exchange) -> ServiceError:
    """Return the error for a request whose handler was cancelled."""
    if exchange.incoming is not None and not exchange.incoming.complete:
        return _not_run()
    return ServiceError("outcome_unknown", "the service had to stop; it may have been applied")
