"""Whether a client takes what is sent to it. One that is behind may take its time, as long as it takes something."""

import asyncio
import fcntl
import socket
import struct
import sys
import termios
from contextlib import suppress
from typing import Final

_NOT_AT_ALL: Final = struct.pack("ii", 1, 0)
"""How long the kernel goes on trying to send."""


class ClientProgress:
    """The client of one connection, seen by what is left unsent of all that was `written`. Looked at once a second."""

    __slots__ = ("_taken", "_taken_at", "_transport", "_unsent")

    def __init__(self, transport: asyncio.Transport, now: float) -> None:
        self._transport = transport
        self._taken = 0
        self._taken_at = now
        self._unsent = 0

    def has_taken_all(self, now: float, written: int) -> bool:
        """Whether nothing waits for it here."""
        if self._transport.get_write_buffer_size():
            return False
        self._taken, self._taken_at, self._unsent = written, now, 0
        return True

    def measure_stall_s(self, now: float, written: int) -> float:
        """Seconds since it last took anything."""
        unsent = self._transport.get_write_buffer_size() + _held_by_kernel(self._transport)
        taken = written - unsent  # under TLS a little less, by what encryption adds to what is unsent
        if unsent < self._unsent or taken > self._taken:
            self._taken, self._taken_at = max(taken, self._taken), now
        self._unsent = unsent
        return now - self._taken_at


def _held_by_kernel(transport: asyncio.Transport) -> int:
    """Bytes that the kernel has taken and the client has not: megabytes, so a slow reader shows here first."""
    try:
        number = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:  # not every system counts them
        return 0
    return int.from_bytes(number, sys.byteorder)


def cut_off(transport: asyncio.Transport) -> None:
    """Ends the connection at once, and with it what the kernel has not sent: that would stay for minutes otherwise."""
    sock = transport.get_extra_info("socket")
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NOT_AT_ALL)
    transport.abort()
