"""Takes connections from a socket that several workers listen on, so that each worker gets as many as the others.

The event loop's own server takes whatever waits, in one go: of 64 connections opened at once, one worker of four took
63, and kept them. Here a worker takes one at a time, and one that has more connections open than another leaves the
next to it for a moment. Sockets of their own (SO_REUSEPORT) would share more evenly than the loop's server too, but
what waits in the socket of a worker that has died would wait until it is back.

Where there is no file descriptor left, connections wait in the socket. It stays readable meanwhile, so it is not
listened to for a moment: the loop would do nothing else.
"""

import asyncio
import errno
import mmap
import os
import socket
from collections.abc import Callable

import structlog

_log = structlog.get_logger()

_LEAVE_S = 0.002
"""So long is a connection left to workers that have fewer; then it is taken, in case that they are gone."""


_AT_ONCE = 64
"""So many does a worker without fellows take in one go."""

_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_REST_S, _REST_S_MAX = 0.1, 1.0
_EPISODE_S = 10.0
"""A shortage that comes so long after the last one is logged again."""


class Balance:
    """How many connections each worker has open, in memory that they share: made before they are forked.

    A descriptor of `files_max` or above says that a worker has hardly any left.
    """

    def __init__(self, workers: int, files_max: int = 2**31) -> None:
        self.open = memoryview(mmap.mmap(-1, 8 * workers)).cast("Q")
        self.files_max = files_max


class Acceptor:
    """`worker` is this one's place in the balance; whoever owns the acceptor keeps the number there."""

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
        self._opening: set[asyncio.Task[object]] = set()
        self._rest_s = _REST_S
        self._short_at = -_EPISODE_S
        sock.setblocking(False)
        self._loop.add_reader(sock, self._on_waiting)

    def close(self) -> None:
        """Takes no more; what is taken goes on."""
        if self._later is not None:
            self._later.cancel()
        else:
            self._loop.remove_reader(self._sock)

    def _on_waiting(self) -> None:
        if len(self._open) == 1:
            for _ in range(_AT_ONCE):
                if not self._take():
                    break
        elif self._open[self._worker] + len(self._opening) > min(self._open):
            self._listen_later(_LEAVE_S, self._take_after_all)
        else:
            self._take()

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
        """Return whether there was one, and more may be taken."""
        try:
            taken, _ = self._sock.accept()
        except OSError as exc:
            if exc.errno in _SHORTAGES:
                self._rest()
            return False  # another worker has it, or it went
        taken.setblocking(False)
        taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task: asyncio.Task[object] = self._loop.create_task(self._begin(taken))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        if taken.fileno() < self._files_max:
            return True
        self._rest()
        return False

    def _rest(self) -> None:
        """Leave connections where they wait, for longer each time."""
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
            taken.close()  # it left before it was greeted
