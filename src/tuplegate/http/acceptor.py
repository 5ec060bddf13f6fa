"""Takes connections from a socket that several workers listen on, so that each worker gets as many as the others.

The event loop's own server takes whatever waits, in one go: of 64 connections opened at once, one worker of four took
63, and kept them. Here a worker takes one at a time, and one that has more connections open than another leaves the
next to it for a moment. Sockets of their own (SO_REUSEPORT) would share more evenly than the loop's server too, but
what waits in the socket of a worker that has died would wait until it is back.
"""

import asyncio
import mmap
import socket
from collections.abc import Callable

_LEAVE_S = 0.002
"""So long is a connection left to workers that have fewer; then it is taken, in case that they are gone."""


class Balance:
    """How many connections each worker has open, in memory that they share: made before they are forked."""

    def __init__(self, workers: int) -> None:
        self.open = memoryview(mmap.mmap(-1, 8 * workers)).cast("Q")


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
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._later: asyncio.TimerHandle | None = None
        self._opening: set[asyncio.Task[object]] = set()
        self._loop.add_reader(sock, self._on_waiting)

    def close(self) -> None:
        """Takes no more; what is taken goes on."""
        if self._later is not None:
            self._later.cancel()
        else:
            self._loop.remove_reader(self._sock)

    def _on_waiting(self) -> None:
        if self._open[self._worker] + len(self._opening) > min(self._open):
            self._loop.remove_reader(self._sock)
            self._later = self._loop.call_later(_LEAVE_S, self._take_after_all)
        else:
            self._take()

    def _take_after_all(self) -> None:
        self._later = None
        self._loop.add_reader(self._sock, self._on_waiting)
        self._take()

    def _take(self) -> None:
        try:
            taken, _ = self._sock.accept()
        except OSError:
            return  # another worker has it, or it went; or there is no descriptor left, and it waits
        taken.setblocking(False)
        taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task: asyncio.Task[object] = self._loop.create_task(self._begin(taken))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _begin(self, taken: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, taken)
        except OSError:
            taken.close()  # it left before it was greeted
