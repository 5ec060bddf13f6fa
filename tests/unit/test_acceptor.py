"""Connections are taken while there are file descriptors for them, and wait otherwise."""

import asyncio
import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import structlog
import uvloop
from structlog.testing import capture_logs

from tests.waiting import eventually_async
from tuplegate.http import acceptor
from tuplegate.http.acceptor import Acceptor, Balance, choose_part

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


class Listening(socket.socket):
    """Counts how often it was asked for a connection."""

    asked = 0

    def accept(self) -> tuple[socket.socket, object]:
        self.asked += 1
        return super().accept()


@contextmanager
def listening() -> Iterator[Listening]:
    """A socket, and clients that wait in it."""
    with Listening() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        clients = [socket.create_connection(sock.getsockname()) for _ in range(5)]
        try:
            yield sock
        finally:
            for client in clients:
                client.close()


class Taken:
    """Counts the connections that were taken."""

    def __init__(self) -> None:
        self.count = 0
        self.transports: list[asyncio.BaseTransport] = []

    def __call__(self) -> asyncio.Protocol:
        taken = self

        class Protocol(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                taken.count += 1
                taken.transports.append(transport)

        return Protocol()

    def close(self) -> None:
        for transport in self.transports:
            transport.close()


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("workers", [1, 2])
def test_no_descriptor_is_left(
    loop: Callable[[], asyncio.AbstractEventLoop], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop does not spin, one line is logged, and all are taken once there are some again."""
    monkeypatch.setattr(acceptor, "_log", structlog.get_logger())
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def run(sock: Listening) -> None:
        taken = Taken()
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
        accepting = Acceptor(sock, taken, Balance(workers), 0)
        try:
            await asyncio.sleep(1)
            found = taken.count, sock.asked
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        await eventually_async(lambda: taken.count == 5)
        accepting.close()
        taken.close()
        await asyncio.sleep(0)
        assert found[0] == 0
        assert 1 <= found[1] < 5

    with listening() as sock, capture_logs() as logs, asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run(sock))
    assert len(logs) == 1


@pytest.mark.parametrize("loop", LOOPS)
def test_the_last_descriptors_are_not_for_connections(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """One is taken before it is seen that they are reached; the others wait until some are free."""

    async def run(sock: socket.socket) -> None:
        taken = Taken()
        lowest = os.dup(0)
        os.close(lowest)
        held = [os.dup(0) for _ in range(5)]
        accepting = Acceptor(sock, taken, Balance(1, lowest + 3), 0)
        await asyncio.sleep(0.5)
        assert taken.count == 1
        for descriptor in held:
            os.close(descriptor)
        await eventually_async(lambda: taken.count > 1)
        accepting.close()
        taken.close()
        await asyncio.sleep(0)

    with listening() as sock, asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run(sock))


def test_many_that_wait_are_taken_at_once() -> None:
    """A worker takes its part of a long queue in one go, and asks the socket no more often than that."""

    async def run(sock: Listening) -> None:
        taken = Taken()
        balance = Balance(2)
        balance.open[1] = 100  # the other worker has enough, and none of these is its part
        accepting = Acceptor(sock, taken, balance, 0)
        await eventually_async(lambda: taken.count == 5)
        accepting.close()
        taken.close()
        await asyncio.sleep(0)
        assert sock.asked <= 6

    with listening() as sock, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(sock))


@pytest.mark.parametrize("workers", [2, 3, 4, 16])
@pytest.mark.parametrize("waiting", [1, 5, 64, 1000])
def test_each_worker_takes_its_part(workers: int, waiting: int) -> None:
    """In any order, one after the other, they take all that wait, and each about as many as the others."""
    taken = [0] * workers
    left = waiting
    for worker in range(workers):
        part = min(left, max(0, choose_part(taken[worker], sum(taken), workers, left)))
        taken[worker] += part
        left -= part
    assert left == 0
    assert max(taken) <= -(-waiting // workers) * 9 / 8
    if waiting >= workers:
        ahead = choose_part(max(taken) + 1, sum(taken) + 1, workers, 1)
        assert ahead <= max(taken) // 8 + 1


def test_a_worker_that_is_ahead_leaves_the_next_to_others() -> None:
    assert choose_part(5, 8, 2, 1) <= 0
    assert choose_part(3, 8, 2, 1) == 2
