"""The bytes of a connection over TLS, read and written by the OpenSSL library with which libpq has opened it.

libpq has checked the server as its URL demands, and keeps the TLS state. libpq's `PQsslStruct` returns that state, and
the functions of OpenSSL are found by way of libpq, so they are those that libpq uses itself. Everything happens on the
event loop, so libpq never touches the state meanwhile. Once libpq has closed the connection, the state is gone and is
not touched any more.
"""

import asyncio
import ctypes
import os
import sys
from collections import deque
from typing import Any, Final

from psycopg import pq
from psycopg.pq.abc import PGconn

_READ_BYTES: Final = 64 * 1024
_WANT_READ: Final = 2
_WANT_WRITE: Final = 3
_WRITE_BYTES_MAX: Final = 2**20
"""The bound on one call: a larger one blocks the loop for long, and its size is a C int."""


class _OpenSsl:
    """The functions of OpenSSL that are needed. Raises AttributeError if libpq does not give access to them."""

    def __init__(self) -> None:
        # The calls never wait, so the interpreter's lock is not released for them.
        library = ctypes.PyDLL(sys.modules[pq.PGconn.__module__].__file__)
        pointer, integer = ctypes.c_void_p, ctypes.c_int
        self.find_state = _declare(library.PQsslStruct, pointer, pointer, ctypes.c_char_p)
        self.read = _declare(library.SSL_read, integer, pointer, pointer, integer)
        self.write = _declare(library.SSL_write, integer, pointer, ctypes.c_char_p, integer)
        self.get_error = _declare(library.SSL_get_error, integer, pointer, integer)
        self.clear_errors = _declare(library.ERR_clear_error, None)
        self.buffer = ctypes.create_string_buffer(_READ_BYTES)


def _declare(function: Any, returns: Any, *takes: Any) -> Any:
    function.restype, function.argtypes = returns, takes
    return function


def _find_pointer(pgconn: PGconn) -> int | None:
    """Return the address of libpq's own record of the connection; None once it is closed."""
    return getattr(pgconn, "pgconn_ptr", None)


_found: _OpenSsl | None = None


def _find_openssl() -> _OpenSsl:
    global _found  # noqa: PLW0603 - loaded once, by who needs it first
    if _found is None:
        _found = _OpenSsl()
    return _found


class TlsTransport(asyncio.Transport):
    """A transport of asyncio over the TLS of a connection. The socket stays libpq's: `abort` leaves it open.

    Readiness is watched on a copy of the descriptor, which stays valid when libpq closes its own.
    """

    def __init__(self, pgconn: PGconn, protocol: asyncio.Protocol) -> None:
        """Raise AttributeError or OSError if libpq's OpenSSL cannot be reached."""
        super().__init__()
        self._openssl = _find_openssl()
        state = self._openssl.find_state(_find_pointer(pgconn), b"OpenSSL")
        if state is None:
            raise AttributeError("libpq has no OpenSSL")
        self._state = state
        self._pgconn = pgconn
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._descriptor = os.dup(pgconn.socket)
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._high = _READ_BYTES
        self._is_behind = self._is_paused = self._is_over = self._writes_when_readable = False
        self._reads_when_writable = False
        protocol.connection_made(self)
        self._loop.add_reader(self._descriptor, self._on_readable)
        self._loop.call_soon(self._on_readable)  # what OpenSSL has read already makes no socket readable

    # -- reading --------------------------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        if not self._is_paused and not self._is_over:
            self._is_paused = True
            self._loop.remove_reader(self._descriptor)

    def resume_reading(self) -> None:
        if self._is_paused and not self._is_over:
            self._is_paused = False
            self._loop.add_reader(self._descriptor, self._on_readable)
            self._loop.call_soon(self._on_readable)

    def _on_readable(self) -> None:
        if self._writes_when_readable:
            self._writes_when_readable = False
            self._write_on()
        if not self._is_paused:
            self._read()

    def _read(self) -> None:
        """Give the available data to the protocol. Data that OpenSSL holds beyond one turn are read in the next."""
        for _ in range(4):
            if self._is_gone():
                return
            count = self._call(self._openssl.read, self._openssl.buffer, _READ_BYTES)
            if count <= 0:
                if self._see(count) == _WANT_WRITE:
                    self._reads_when_writable = True
                    self._loop.add_writer(self._descriptor, self._on_writable)
                return
            self._protocol.data_received(ctypes.string_at(self._openssl.buffer, count))
            if self._is_paused or self._is_over:
                return
        self._loop.call_soon(self._on_readable)

    # -- writing --------------------------------------------------------------------------------------------------

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _READ_BYTES if high is None else high

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_over or not data:
            return
        is_first = not self._unsent
        for start in range(0, len(data), _WRITE_BYTES_MAX):
            self._unsent.append(bytes(data[start : start + _WRITE_BYTES_MAX]))
        self._unsent_bytes += len(data)
        if is_first:
            self._write_on()
        if self._unsent_bytes > self._high and not self._is_behind and not self._is_over:
            self._is_behind = True
            self._protocol.pause_writing()

    def _on_writable(self) -> None:
        self._loop.remove_writer(self._descriptor)
        if self._reads_when_writable:
            self._reads_when_writable = False
            if not self._is_paused:
                self._read()
        self._write_on()

    def _write_on(self) -> None:
        # A write that was put off is repeated unchanged, as OpenSSL demands.
        while self._unsent:
            if self._is_gone():
                return
            piece = self._unsent[0]
            count = self._call(self._openssl.write, piece, len(piece))
            if count <= 0:
                wants = self._see(count)
                if wants == _WANT_WRITE:
                    self._loop.add_writer(self._descriptor, self._on_writable)
                elif wants == _WANT_READ:
                    self._writes_when_readable = True
                return
            self._unsent.popleft()
            self._unsent_bytes -= len(piece)
        if self._is_behind and not self._is_over:
            self._is_behind = False
            self._protocol.resume_writing()

    # -- the end --------------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._is_over

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        self._end(None)

    def _call(self, function: Any, *arguments: Any) -> int:
        self._openssl.clear_errors()
        return int(function(self._state, *arguments))

    def _see(self, count: int) -> int:
        """Return the readiness that OpenSSL waits for. End the transport if the connection has ended or is broken."""
        wants = int(self._openssl.get_error(self._state, count))
        if wants not in (_WANT_READ, _WANT_WRITE):
            self._end(None)
        return wants

    def _is_gone(self) -> bool:
        """Return whether libpq has closed the connection, and with it the TLS state; then end the transport."""
        if not self._is_over and _find_pointer(self._pgconn) is None:
            self._end(ConnectionResetError("the connection was closed"))
        return self._is_over

    def _end(self, exc: Exception | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._loop.remove_reader(self._descriptor)
        self._loop.remove_writer(self._descriptor)
        os.close(self._descriptor)
        self._unsent.clear()
        self._unsent_bytes = 0
        self._loop.call_soon(self._protocol.connection_lost, exc)
