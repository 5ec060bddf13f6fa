"""Tells whether a client takes its data. A slow client may take its time, as long as it takes something."""

import asyncio
import fcntl
import socket
import struct
import sys
import termios
from contextlib import suppress
from typing import Final

_NOT_AT_ALL: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: the kernel drops what is unsent."""


class ClientProgress:
    """The progress of one client, judged once a second by the unsent part of all that was `written`. `taken_at` is the
    time at which it last took anything."""

    __slots__ = ("_taken", "_transport", "_unsent", "taken_at")

    def __init__(self, transport: asyncio.Transport, now: float) -> None:
        self._transport = transport
        self._taken = 0
        self.taken_at = now
        self._unsent = 0

    def has_taken_all(self, now: float, written: int) -> bool:
        """Return whether nothing waits for the client here."""
        if self._transport.get_write_buffer_size():
            return False
        self._taken, self.taken_at, self._unsent = written, now, 0
        return True

    def measure_stall_s(self, now: float, written: int) -> float:
        """Return the seconds since the client last took anything."""
        unsent = self._transport.get_write_buffer_size() + _held_by_kernel(self._transport)
        taken = written - unsent  # under TLS a little less, by what encryption adds to what is unsent
        if unsent < self._unsent or taken > self._taken:
            self._taken, self.taken_at = max(taken, self._taken), now
        self._unsent = unsent
        return now - self.taken_at


def _held_by_kernel(transport: asyncio.Transport) -> int:
    """Return the bytes that the kernel has taken and the client has not: often megabytes, so a slow reader shows here
    first."""
    try:
        number = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:  # not every system counts them
        return 0
    return int.from_bytes(number, sys.byteorder)


def cut_off(transport: asyncio.Transport) -> None:
    """End the connection at once, and drop what the kernel has not sent, which would stay for minutes otherwise."""
    sock = transport.get_extra_info("socket")
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NOT_AT_ALL)
    transport.abort()
