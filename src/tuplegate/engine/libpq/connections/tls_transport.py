"""The bytes of a connection over TLS, read and written by the OpenSSL with which libpq has made it.

libpq has checked the server as its URL wants, and keeps the state of TLS. Its function `PQsslStruct` gives that state
to those who call OpenSSL themselves. The state is opaque here. Memory stays whole as long as two things hold:

- The functions are those of the OpenSSL that has made the state: `_find_functions` and `_check` see to it.
- libpq has not freed the state. It is asked for the state before each call, and nothing here keeps it. Everything
  happens on the event loop, so libpq does nothing meanwhile.
"""

import asyncio
import ctypes
import os
import sys
from collections import deque
from functools import cache
from typing import Any, Final

from psycopg import pq
from psycopg.pq.abc import PGconn

_READ_BYTES: Final = 64 * 1024
_WANT_READ: Final = 2
_WANT_WRITE: Final = 3
_POINTER, _INTEGER, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
_FUNCTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "PQsslStruct": (_POINTER, _POINTER, _TEXT),
    "PQsslAttribute": (_TEXT, _POINTER, _TEXT),
    "SSL_read": (_INTEGER, _POINTER, _POINTER, _INTEGER),
    "SSL_write": (_INTEGER, _POINTER, _TEXT, _INTEGER),
    "SSL_get_error": (_INTEGER, _POINTER, _INTEGER),
    "SSL_get_version": (_TEXT, _POINTER),
    "SSL_get_current_cipher": (_POINTER, _POINTER),
    "SSL_CIPHER_get_name": (_TEXT, _POINTER),
    "ERR_clear_error": (None,),
}
"""What each returns, and takes."""
_WRITE_BYTES_MAX: Final = 2**20
"""The bound on one call: a larger one blocks the loop for long, and its size is a C int."""
_buffer: Final = ctypes.create_string_buffer(_READ_BYTES)
"""What is read at once; nothing stays in it."""


class NoAccess(Exception):
    """The state of TLS is inside of libpq, and does not show."""


@cache
def _find_functions() -> dict[str, Any]:
    """Return the functions of libpq and of its OpenSSL. Raises NoAccess where libpq itself may call others.

    Those that are found come from psycopg's library and the libraries that it needs. libpq's own calls go to what the
    program, or a library that was loaded for all, shows under the same name, if anything does.
    """
    found = {}
    try:
        # Not released for the calls, which never wait: the interpreter's lock.
        library, for_all = ctypes.PyDLL(sys.modules[pq.PGconn.__module__].__file__), ctypes.PyDLL(None)
        for name, (returns, *takes) in _FUNCTIONS.items():
            function = found[name] = library[name]
            if _address(getattr(for_all, name, function)) != _address(function):
                raise NoAccess(f"this process has another OpenSSL, which shows {name} to all")
            function.restype, function.argtypes = returns, takes
    except (AttributeError, OSError) as exc:
        raise NoAccess(f"psycopg's library does not show its OpenSSL: {exc}") from exc
    return found


def _address(function: Any) -> int | None:
    return ctypes.cast(function, _POINTER).value


class TlsTransport(asyncio.Transport):
    """A transport of asyncio over the TLS of a connection. The socket stays libpq's: `abort` leaves it open.

    Readiness is watched on a copy of the descriptor, which stays valid when libpq closes its own.
    """

    def __init__(self, pgconn: PGconn, protocol: asyncio.Protocol) -> None:
        """Raise NoAccess where libpq's OpenSSL cannot be reached."""
        super().__init__()
        self._functions = _find_functions()
        self._pgconn = pgconn
        self._check()
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

    def _check(self) -> None:
        """Raise NoAccess where libpq has no OpenSSL, or says other things of the connection than the functions that
        were found: then they are not its own."""
        call, state, pointer = self._functions, self._find_state(), self._find_pointer()
        if state is None:
            raise NoAccess("libpq has no OpenSSL")
        told = tuple(call["PQsslAttribute"](pointer, name) for name in (b"protocol", b"cipher"))
        cipher = call["SSL_CIPHER_get_name"](call["SSL_get_current_cipher"](state))
        found = (call["SSL_get_version"](state), cipher)
        if found != told:
            raise NoAccess(f"libpq has another OpenSSL: it says {told} where that says {found}")

    def _find_state(self) -> int | None:
        """Return the state of TLS; None once libpq has freed it, with the connection or before."""
        pointer = self._find_pointer()
        return None if pointer is None else self._functions["PQsslStruct"](pointer, b"OpenSSL")

    def _find_pointer(self) -> int | None:
        """Return the address of libpq's own record of the connection; None once it is closed."""
        return getattr(self._pgconn, "pgconn_ptr", None)

    def _call(self, name: str, *arguments: Any) -> int:
        """Return how many bytes have gone; or what OpenSSL waits for, below zero; or 0 where the connection is over."""
        if self._is_over:
            return 0
        state = self._find_state()
        if state is None:
            self._end(ConnectionResetError("the connection was closed"))
            return 0
        self._functions["ERR_clear_error"]()
        count = int(self._functions[name](state, *arguments))
        if count > 0:
            return count
        wants = int(self._functions["SSL_get_error"](state, count))
        if wants in (_WANT_READ, _WANT_WRITE):
            return -wants
        self._end(None)
        return 0

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
            count = self._call("SSL_read", _buffer, _READ_BYTES)
            if count == -_WANT_WRITE:
                self._reads_when_writable = True
                self._loop.add_writer(self._descriptor, self._on_writable)
            if count <= 0:
                return
            self._protocol.data_received(ctypes.string_at(_buffer, count))
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
        # A write that was put off is repeated as it was, which OpenSSL demands.
        while self._unsent:
            piece = self._unsent[0]
            count = self._call("SSL_write", piece, len(piece))
            if count == -_WANT_WRITE:
                self._loop.add_writer(self._descriptor, self._on_writable)
            elif count == -_WANT_READ:
                self._writes_when_readable = True
            if count <= 0:
                return
            if count < len(piece):
                self._unsent[0] = piece[count:]
            else:
                self._unsent.popleft()
            self._unsent_bytes -= count
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
