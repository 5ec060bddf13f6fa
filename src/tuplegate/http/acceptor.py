"""Takes connections from a socket that several workers listen on, so that each worker gets as many as the others.

The event loop's own server takes all waiting connections at once: of 64 connections opened together, one worker of four
took 63 and kept them. Here a worker asks the kernel how many wait, and takes as many as it needs for its part of all
open and waiting ones. A worker that has more already leaves them to the others for a moment. A socket for each worker
(SO_REUSEPORT) would also share more evenly than the loop's server, but connections that wait in the socket of a dead
worker would wait until it is back.

When no file descriptor is left, connections wait in the socket. The socket stays readable meanwhile, so the worker
stops listening to it for a moment: the loop would do nothing else.
"""

import asyncio
import errno
import mmap
import os
import socket
import struct
from collections.abc import Callable

import structlog

from tuplegate.eager import EagerRun

_log = structlog.get_logger()

_LEAVE_S = 0.002
"""How long a connection is left to workers that have fewer. Then it is taken: they may be gone."""

_AT_ONCE = 64
"""The number of connections that a worker takes at once, at most."""

_QUEUE = struct.Struct("@24xI")
"""The place of the number of waiting connections in TCP_INFO of a listening socket: `tcpi_unacked` (Linux)."""

_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_REST_S, _REST_S_MAX = 0.1, 1.0
_EPISODE_S = 10.0
"""A shortage that comes this long after the last one is logged again."""


class Balance:
    """The number of open connections of each worker, in shared memory that is made before the fork.

    A descriptor of `files_max` or above means that a worker has hardly any left.
    """

    def __init__(self, workers: int, files_max: int = 2**31) -> None:
        self.open = memoryview(mmap.mmap(-1, 8 * workers)).cast("Q")
        self.files_max = files_max


class Acceptor:
    """Takes connections for one worker. `worker` is its place in the balance; the acceptor's owner keeps the number
    there."""

    def __init__(
        self,
        sock: socket.socket,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        balance: Balance,
        worker: int,
    ) -> None:
        self._sock = sock
        self._make_protocol = make_protocol
        self._open = balance.open
        self._files_max = balance.files_max
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._later: asyncio.TimerHandle | None = None
        self._opening = 0
        """Connections that were taken and are not counted as open yet."""
        self._rest_s = _REST_S
        self._short_at = -_EPISODE_S
        sock.setblocking(False)
        self._loop.add_reader(sock, self._on_waiting)

    def close(self) -> None:
        """Take no more connections; existing ones stay open."""
        if self._later is not None:
            self._later.cancel()
        else:
            self._loop.remove_reader(self._sock)

    def _on_waiting(self) -> None:
        part = _AT_ONCE
        if len(self._open) > 1:
            taken = self._open[self._worker] + self._opening
            part = choose_part(taken, sum(self._open) + self._opening, len(self._open), self._count_waiting())
        if part <= 0:
            self._listen_later(_LEAVE_S, self._take_after_all)
            return
        for _ in range(min(part, _AT_ONCE)):
            if not self._take():
                break

    def _count_waiting(self) -> int:
        """Return the number of connections that wait in the socket, at least one."""
        try:
            info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _QUEUE.size)
        except (OSError, AttributeError):  # a Unix socket, or another system
            return 1
        return max(1, *_QUEUE.unpack(info)) if len(info) == _QUEUE.size else 1

    def _listen_later(self, seconds: float, then: Callable[[], None]) -> None:
        self._loop.remove_reader(self._sock)
        self._later = self._loop.call_later(seconds, then)

    def _take_after_all(self) -> None:
        self._listen()
        self._take()

    def _listen(self) -> None:
        self._later = None
        self._loop.add_reader(self._sock, self._on_waiting)

    def _take(self) -> bool:
        """Take one connection. Return whether there was one, and more may be taken."""
        try:
            taken, _ = self._sock.accept()
        except OSError as exc:
            if exc.errno in _SHORTAGES:
                self._rest()
            return False  # another worker took it, or the client left
        taken.setblocking(False)
        if taken.family != socket.AF_UNIX:
            taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._opening += 1
        EagerRun(self._begin(taken), self._on_begun).resume()
        if taken.fileno() < self._files_max:
            return True
        self._rest()
        return False

    def _rest(self) -> None:
        """Leave connections in the socket, for longer each time."""
        now = self._loop.time()
        if now - self._short_at < _EPISODE_S:
            self._rest_s = min(2 * self._rest_s, _REST_S_MAX)
        else:
            self._rest_s = _REST_S
            _log.warning("no file descriptors are left for more connections; they wait", open=self._open[self._worker])
        self._short_at = now
        self._listen_later(self._rest_s, self._listen_if_possible)

    def _listen_if_possible(self) -> None:
        if self._is_short():
            self._rest()
        else:
            self._listen()

    def _is_short(self) -> bool:
        """Return whether the next descriptor is one of the last, which are not for connections."""
        try:
            lowest = os.dup(self._sock.fileno())
        except OSError:
            return True
        os.close(lowest)
        return lowest >= self._files_max

    async def _begin(self, taken: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, taken)
        except OSError:
            taken.close()  # the client has left already

    def _on_begun(self, _cancelled: bool) -> None:
        self._opening -= 1


def choose_part(taken: int, open_by_all: int, workers: int, waiting: int) -> int:
    """Return the number of waiting connections that a worker takes, given those that it has: its part of all, or less
    than one if it has more already. An eighth more than that is still its part."""
    part = -(-(open_by_all + waiting) // workers)
    return part + part // 8 - taken
