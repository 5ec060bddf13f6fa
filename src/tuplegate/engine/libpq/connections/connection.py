"""One connection to a PostgreSQL server, driven on the event loop through libpq's pipeline mode.

Contract: commands are sent in segments, each closed by a Sync. A segment's future resolves when the server is ready
again, so an error of the commit itself is part of it: read the results of a segment to the end. Several segments may be
under way; they are answered in order. A lost connection fails every segment under way with `ConnectionLost`; so does a
commit for which the server says that a standby may not have it. COPY to or from the client cannot be left in pipeline
mode, so it costs the connection.

This module has no statements and no policy of its own: the layers above decide what to send, when to reset and what an
error means.
"""

import asyncio
import fcntl
import select
import sys
import termios
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Self

from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

from tuplegate.direct_future import DirectFuture
from tuplegate.engine.libpq.connections.commands import (
    Command,
    ConnectionLost,
    CopyStarted,
    Meter,
    OnRows,
    RowsTooWide,
    Segment,
)
from tuplegate.engine.libpq.connections.connecting import cancel, finish_connecting, join_lines
from tuplegate.engine.libpq.connections.server_errors import (
    TOGETHER_MAX,
    TOO_WIDE,
    count_texts,
    is_last_word,
    to_notice,
)
from tuplegate.engine.libpq.connections.unread_rows import LITTLE, Stock
from tuplegate.engine.port import Notice
from tuplegate.resident import resident_bytes

# As plain numbers: comparing with a member of an enumeration takes three times as long.
_SYNC: Final = int(pq.ExecStatus.PIPELINE_SYNC)
_CHUNK: Final = int(pq.ExecStatus.TUPLES_CHUNK)
_COPY: Final = frozenset(map(int, (pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_BOTH)))
_BAD: Final = int(pq.ConnStatus.BAD)
_ABORTED: Final = int(pq.PipelineStatus.ABORTED)
_ERROR: Final = int(pq.ExecStatus.FATAL_ERROR)
_FUNCTION: Final = pq.DiagnosticField.SOURCE_FUNCTION
_WAIT_FOR_STANDBY: Final = b"SyncRepWaitForLSN"
"""The server's function that warns if the wait for a standby was cut short. The server reports the commit as done."""
_NOTICES_MAX: Final = 100

CHUNK_ROWS: Final = 100
"""Rows that libpq gathers before it hands them over: about as many as the server sends at once. They are encoded while
the server makes the next ones, and a result that is dropped takes no memory."""

_SWOLLEN: Final = 8 * 2**20
"""libpq keeps the memory that a message once took: after such a large message, a connection is not used again."""
_READ_MIN: Final = 8 * 2**10
"""Bytes that libpq reads at once, if they are there."""
_READS_FREE: Final = 4
"""The number of reads without a result after which incoming bytes are counted."""
HELD_MAX: Final = 512 * 2**20
"""Bytes that may arrive without a result: those of a single row."""
_IN_VAIN_S: Final = 1.0
_READ_S: Final = 0.2
"""The processor time for reads that bring no result: for all of them, and for one."""
_BEYOND: Final = 2
"""The number of answers that a segment may have beside one for each command: one is an error of the commit."""
NONSENSE: Final = "the engine's answer is not one to what was asked"


_OPEN: dict[int, "Connection"] = {}
_SOCKETS: Final = select.poll()
"""The sockets of all open connections, to poll them at once."""


def _forget(descriptor: int) -> None:
    if _OPEN.pop(descriptor, None) is not None:
        _SOCKETS.unregister(descriptor)


def look_at_broken() -> None:
    """Wake connections whose socket is broken. The loop stops watching a socket that has an error, and a unix socket
    has one when its peer closes with unread data: a caller that waits for an answer would wait for ever."""
    for descriptor, _ in _SOCKETS.poll(0) if _OPEN else ():
        if descriptor in _OPEN:
            # Not from here: the waiting caller is resumed within the call, and a task may have called this.
            _OPEN[descriptor].look_soon()


# size: the segments under way, the reader and the held bytes are one state, which every event of the socket changes.
class Connection:
    """One connection; the module's docstring has its contract. `on_lost` is the pool's."""

    def __init__(self, pgconn: PGconn, loop: asyncio.AbstractEventLoop) -> None:
        self.pgconn = pgconn
        self._loop = loop
        self._fd = pgconn.socket
        self.backend = pgconn.backend_pid
        self._segments: list[Segment] = []  # an empty deque takes ten times the room
        self._writing = False
        self._reading = True
        self._held_up = False
        """The receiver of the rows wants no more for now."""
        self._lacks_room = False
        self._drains = False
        self._reads_in_vain = 0
        self._in_vain_s = 0.0
        self._gathered = self._grown = 0
        """Bytes that libpq holds of a result, as far as counted, and by how much they made the process grow."""
        self.is_heavy = False
        """It holds much memory, or has: it must be checked before its next use."""
        self.is_swollen = False
        """It takes much memory even when it is idle."""
        self.collected = 0
        """Bytes of rows that their receiver has kept."""
        self.stock: Stock | None = None
        self._last_notices: list[Notice] = []
        self._is_replicated = True
        self.server = ""
        """The start time of the server, which identifies it; empty until somebody has asked."""
        self.meter = Meter()
        self.closed = False
        self.cut_off = False
        """It was closed before everything that was sent had been answered."""
        self.on_lost: Callable[[], None] | None = None
        pgconn.nonblocking = 1
        pgconn.enter_pipeline_mode()
        pgconn.notice_handler = self._on_notice
        loop.add_reader(self._fd, self._on_readable)
        _OPEN[self._fd] = self
        _SOCKETS.register(self._fd, 0)

    @classmethod
    async def open(cls, conninfo: str, timeout: float) -> Self:
        """Connect without blocking the loop. Raises ConnectionLost with the server's own words."""
        return await asyncio.get_running_loop().create_task(cls._open(conninfo, timeout))

    @classmethod
    async def _open(cls, conninfo: str, timeout: float) -> Self:
        loop = asyncio.get_running_loop()
        pgconn = pq.PGconn.connect_start(conninfo.encode())
        try:
            async with asyncio.timeout(timeout):
                await finish_connecting(pgconn, loop)
        except TimeoutError:
            pgconn.finish()
            raise ConnectionLost(f"no answer from the engine within {timeout:g} s") from None
        except BaseException:
            pgconn.finish()
            raise
        return cls(pgconn, loop)

    @property
    def is_paused(self) -> bool:
        return not self._reading

    def send(self, commands: Sequence[Command], on_rows: OnRows | None = None) -> DirectFuture[list[PGresult]]:
        """Queue one segment; `flush` puts it on the wire. The reply has every result except chunks of rows."""
        if self.closed:
            raise ConnectionLost("the connection is closed")
        if self._gathered and not self._segments:
            self._gathered = self._grown = 0
            self._in_vain_s = 0.0
        self._last_notices = []
        begun = 0
        for command in commands:
            if command.begins:
                begun += 1
        if begun:
            self.meter.count(begun)
        try:
            self._write(commands)
        except Exception as exc:
            # A part of it may be on the wire already.
            self._lose(exc)
            raise ConnectionLost(join_lines(str(exc))) from exc
        reply: DirectFuture[list[PGresult]] = DirectFuture(self._loop)
        segment = Segment(reply, commands, on_rows)
        self._segments.append(segment)
        if on_rows is not None and len(self._segments) == 1:
            self._ask_for_chunks(segment)
        return reply

    def _write(self, commands: Sequence[Command]) -> None:
        pgconn = self.pgconn
        for command in commands:
            if command.portal:
                pgconn.send_describe_portal(command.portal)
            elif command.name is None:
                pgconn.send_query_params(command.sql, command.params, command.types or None)
            elif command.describe:
                pgconn.send_describe_prepared(command.name)
            elif command.sql:
                pgconn.send_prepare(command.name, command.sql, command.types or None)
            else:
                pgconn.send_query_prepared(command.name, command.params)
        pgconn.pipeline_sync()

    async def run(self, *commands: Command) -> list[PGresult]:
        """Send one segment and wait for it."""
        future = self.send(commands)
        self.flush()
        return await future

    async def wait_for_answers(self) -> None:
        """Wait until all segments under way are answered."""
        await self.run()

    def flush(self) -> None:
        try:
            pending = self.pgconn.flush()
        except Exception as exc:  # noqa: BLE001 - the driver's errors here all mean the same: the socket is gone
            self._lose(exc)
            return
        if pending and not self._writing:
            self._writing = True
            self._loop.add_writer(self._fd, self._on_writable)
            if _count_bytes(self._segments) > _SWOLLEN:
                self.is_heavy = self.is_swollen = True

    def pause(self) -> None:
        """Stop reading, so that the server blocks on a reader that is too slow."""
        self._held_up = True
        self._stop_reading()

    def resume(self) -> None:
        self._held_up = False
        self._read_on()

    def note_room(self) -> None:
        """Continue to read: there is room again."""
        self._lacks_room = False
        self._read_on()

    def drain(self) -> None:
        """Continue to read regardless of the held bytes, so that the running statement can end."""
        self._drains = self.is_heavy = True
        self.note_room()

    def _stop_reading(self) -> None:
        if self._reading and not self.closed:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def _read_on(self) -> None:
        if not (self._reading or self._held_up or self._lacks_room or self.closed):
            self._reading = True
            self._loop.add_reader(self._fd, self._on_readable)
            self._loop.call_soon(self._on_readable)  # what libpq holds already makes the socket no more readable

    def let_go(self) -> None:
        """Forget the bytes that arrived; from now on their receivers account for them."""
        self.collected = self._gathered = self._grown = 0
        self.is_heavy = self.is_swollen
        self._drains = False
        if self.stock is not None:
            self.stock.may_hold(0)

    async def cancel(self) -> None:
        """Ask the server to cancel the statement on this connection; return when the server has received that. The
        caller bounds the time."""
        if not self.closed:
            await cancel(self.pgconn, self._loop)

    def give_away(self) -> None:
        """Stop reading and writing: other code speaks to the server from now on. This object still cancels and
        closes."""
        assert not self._segments, "nothing is under way"
        self._stop_reading()
        _forget(self._fd)

    def close(self, reason: str = "the connection was closed") -> None:
        self._lose(ConnectionLost(reason))

    @property
    def has_notices(self) -> bool:
        return bool(self._last_notices)

    def take_notices(self) -> list[Notice]:
        """Return the notices of the segment that was answered last."""
        notices, self._last_notices = self._last_notices, []
        return notices

    def look_soon(self) -> None:
        self._loop.call_soon(self.look)

    def look(self) -> None:
        """Read once from a socket that the loop no longer watches: see `look_at_broken`."""
        self._on_readable()
        if not self.closed and not self.is_paused:
            self._lose(ConnectionLost("the engine is gone"))

    def _on_notice(self, result: PGresult) -> None:
        if result.error_field(_FUNCTION) == _WAIT_FOR_STANDBY:
            self._is_replicated = False
        self._note_taken(count_texts(result))
        if not self._segments:
            return
        segment = self._segments[0]
        if segment.notices is None:
            segment.notices = []
        if len(segment.notices) < _NOTICES_MAX and segment.notices_left > 0:
            notice = to_notice(result)  # the result is freed on return
            segment.notices_left -= len(notice.message) + len(notice.detail or "") + len(notice.hint or "")
            segment.notices.append(notice)

    def _on_writable(self) -> None:
        try:
            pending = self.pgconn.flush()
        except Exception as exc:  # noqa: BLE001 - as in flush
            self._lose(exc)
            return
        if not pending:
            self._writing = False
            self._loop.remove_writer(self._fd)

    def _on_readable(self) -> None:
        if self.closed or not self._reading:
            return
        finished: list[Segment] = []
        self._read(finished)
        if self._gathered + self.collected > LITTLE:
            self._weigh()
        for segment in finished:
            self._last_notices = segment.notices or []
            if segment.reply.done():
                continue
            if segment.failure is not None:
                segment.reply.set_exception(segment.failure)
            else:
                segment.reply.set_result(segment.results)

    def _read(self, finished: list[Segment]) -> None:
        """Read what the server has sent, until a receiver wants no more."""
        pgconn = self.pgconn
        segments = self._segments
        try:
            self._reads_in_vain += 1
            if self._reads_in_vain > _READS_FREE:
                self._read_counted()
            else:
                pgconn.consume_input()
            while segments and not pgconn.is_busy():
                self._reads_in_vain = 0
                self._in_vain_s = 0.0
                result = pgconn.get_result()
                segment = segments[0]
                if result is None:
                    segment.ended += 1
                    if segment.ended < len(segment.commands):
                        self._ask_for_chunks(segment)
                    elif segment.ended > len(segment.commands) + _BEYOND:
                        self._lose(ConnectionLost(NONSENSE))
                        return
                    continue
                status = result.status
                if status == _SYNC:
                    if not self._is_replicated:
                        self._lose(ConnectionLost("the wait for a standby to have it was cut short"))
                        return
                    finished.append(segments.pop(0))
                    if segments:
                        self._ask_for_chunks(segments[0])
                elif status == _CHUNK:
                    self._gathered = self._grown = 0
                    segment.take(result)
                    if not self._reading:  # on_rows has had enough
                        return
                elif status in _COPY:
                    self._lose(CopyStarted())
                    return
                else:
                    if len(segment.results) >= len(segment.commands) + _BEYOND:
                        self._lose(ConnectionLost(NONSENSE))
                        return
                    segment.results.append(result)
                    if status == _ERROR and is_last_word(result):
                        self._lose(ConnectionLost("the engine ended the connection"))
                        return
            self._drop_notifications()
        except Exception as exc:  # noqa: BLE001 - every failure of the driver here ends the connection
            self._lose(exc)
            return
        if pgconn.status == _BAD:
            self._lose(ConnectionLost("the engine closed the connection"))

    def _drop_notifications(self) -> None:
        """Drop notifications, which the driver would keep. Nobody reads them, and they can be many."""
        while (notification := self.pgconn.notifies()) is not None:
            self._note_taken(len(notification.extra))

    def _note_taken(self, size: int) -> None:
        """Note that libpq holds this much less of the input, and that the reads were useful."""
        self._in_vain_s = 0.0
        self._gathered = max(0, self._gathered - size)
        self._grown = max(0, self._grown - size)

    def _read_counted(self) -> None:
        """Read from a server that has sent much without a result, and measure the time and memory: a hostile server can
        send messages without an end that yield no result, or that take longer the more there are."""
        began = time.thread_time()
        waiting = _bytes_waiting(self._fd)
        self.pgconn.consume_input()
        # How much was read of the bytes that arrived meanwhile is unknown, but their rows are copied to new memory.
        self._gathered += max(waiting - _bytes_waiting(self._fd), min(waiting, _READ_MIN))
        size_before = resident_bytes()
        is_busy = self.pgconn.is_busy()
        self._grown += max(0, resident_bytes() - size_before)
        self._gathered = max(self._gathered, self._grown)
        if not is_busy and self._segments:
            return
        self._drop_notifications()
        took_s = time.thread_time() - began
        self._in_vain_s += took_s
        if took_s > _READ_S or self._in_vain_s > _IN_VAIN_S:
            raise ConnectionLost(NONSENSE)
        if self._gathered > (HELD_MAX if self._segments and self._segments[0].is_single else TOGETHER_MAX):
            raise RowsTooWide(TOO_WIDE)

    def _weigh(self) -> None:
        """Weigh the held bytes after a read that leaves much in memory: stop reading or close the connection beyond the
        bounds."""
        if self.closed:
            return
        self.is_heavy = True
        self.is_swollen = self.is_swollen or self._gathered > _SWOLLEN
        if self._gathered > TOGETHER_MAX and self._segments and self._segments[0].is_gathering:
            self._lose(RowsTooWide(TOO_WIDE))
        elif self.stock is not None and not self.stock.may_hold(self._gathered + self.collected) and not self._drains:
            self._lacks_room = True
            self._stop_reading()

    def _ask_for_chunks(self, segment: Segment) -> None:
        """Tell libpq how to hand over the rows of the next command."""
        if segment.on_rows is None or not segment.commands:
            return
        rows = segment.commands[segment.ended].chunk_rows
        if rows and self.pgconn.pipeline_status != _ABORTED:  # what follows an error has no rows
            self.pgconn.set_chunked_rows_mode(rows)

    def _lose(self, cause: Exception) -> None:
        if self.closed:
            return
        self.closed = True
        _forget(self._fd)
        if self._reading:
            self._loop.remove_reader(self._fd)
        if self._writing:
            self._loop.remove_writer(self._fd)
        self.pgconn.notice_handler = None  # the two would hold each other, and could not be freed at once
        self.pgconn.finish()
        self.let_go()
        self.stock = None
        self.cut_off = bool(self._segments)
        for segment in self._segments:
            self._loop.call_soon(_fail, segment.reply, _make_failure(cause, segment))
        self._segments.clear()
        on_lost, self.on_lost = self.on_lost, None
        if on_lost is not None:
            on_lost()


def _bytes_waiting(descriptor: int) -> int:
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"), sys.byteorder)


def _count_bytes(segments: Iterable[Segment]) -> int:
    """Return the bytes of all texts and parameters."""
    return sum(
        len(command.sql) + sum(len(value or b"") for value in command.params or ())
        for segment in segments
        for command in segment.commands
    )


def _fail(reply: DirectFuture[list[PGresult]], failure: Exception) -> None:
    if not reply.done():
        reply.set_exception(failure)


def _make_failure(cause: Exception, segment: Segment) -> Exception:
    if isinstance(cause, CopyStarted):
        return CopyStarted()
    kind = RowsTooWide if isinstance(cause, RowsTooWide) else ConnectionLost
    lost = kind(join_lines(str(cause)))
    lost.results = segment.results
    return lost
