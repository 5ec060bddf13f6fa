"""What has come over a connection and is not consumed: how much of it is read, by turns, and who is charged for it."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from tuplegate.http.sharing.connection_turns import ConnectionTurns, Turn
from tuplegate.http.sharing.intake import Intake
from tuplegate.http.sharing.memory import Holding, Memory
from tuplegate.protocol.errors import ServiceError

OWNER = "org_1"


class FakeTransport(asyncio.Transport):
    """Notes whether it is read from."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = True

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        assert self.reads
        self.reads = False

    def resume_reading(self) -> None:
        assert not self.reads
        self.reads = True


class FakeTurns(ConnectionTurns):
    """Gives turns when it is told to, and says whether the pass is late."""

    def __init__(self) -> None:
        super().__init__()
        self.late = False
        self.asked: list[Turn] = []

    def is_late(self, owner: str) -> bool:
        return self.late

    def ask(self, owner: str, act: Callable[[], None]) -> Turn:
        self.asked.append(Turn(act))
        return self.asked[-1]

    def give_turn(self) -> None:
        act = self.asked.pop(0).act
        if act is not None:
            act()


class Eater:
    """Consumes up to `at_once` bytes a turn, and holds all of them while it `keeps`."""

    def __init__(self, at_once: int) -> None:
        self.owner = OWNER
        self.held_bytes = 0
        self.is_full = False
        self.at_once = at_once
        self.eaten = b""
        self.keeps = False
        self.refused: ServiceError | None = None
        self.intake: Intake

    def consume_some(self) -> bool:
        if self.is_full:
            return False
        taken = self.intake.unread.take(self.at_once)
        self.eaten += taken
        self.held_bytes += len(taken) * self.keeps
        return self.intake.unread.size > 0

    def note_no_room(self, error: ServiceError) -> None:
        self.refused = error


class Scene:
    def __init__(self, at_once: int, memory_bytes: int = 2**20) -> None:
        self.transport = FakeTransport()
        self.turns = FakeTurns()
        self.memory = Memory(memory_bytes)
        self.eater = Eater(at_once)
        self.intake = self.eater.intake = Intake(
            cast(asyncio.Transport, self.transport), self.turns, Holding(self.memory, OWNER), self.eater
        )


@contextmanager
def scene(at_once: int, memory_bytes: int = 2**20) -> Iterator[Scene]:
    """In the end nothing is charged to anybody."""
    made = Scene(at_once, memory_bytes)
    yield made
    made.intake.end()
    assert made.memory.used == 0


def test_what_is_consumed_at_once_is_neither_held_nor_charged() -> None:
    with scene(1000) as at:
        for _ in range(3):
            at.intake.feed(b"x" * 100)
        assert (len(at.eater.eaten), at.memory.used, at.transport.reads, at.turns.asked) == (300, 0, True, [])


def test_a_turn_takes_a_part_and_nothing_is_read_before_the_last() -> None:
    with scene(100) as at:
        at.intake.feed(bytes(range(250)))
        assert (len(at.eater.eaten), at.transport.reads) == (100, False)
        at.turns.give_turn()
        assert (len(at.eater.eaten), at.transport.reads) == (200, False)
        at.turns.give_turn()
        assert (at.eater.eaten, at.transport.reads, at.turns.asked) == (bytes(range(250)), True, [])
        assert at.memory.used == 0


def test_a_turn_that_is_put_off_pauses_reading_and_is_charged() -> None:
    with scene(1000) as at:
        at.turns.late = True
        at.intake.feed(b"x" * 700)
        assert (at.eater.eaten, at.transport.reads, at.memory.used) == (b"", False, 700)
        at.intake.advance()  # whoever asks again gets no second turn
        assert len(at.turns.asked) == 1
        at.turns.give_turn()
        assert (len(at.eater.eaten), at.transport.reads, at.memory.used) == (700, True, 0)


def test_a_full_reader_is_sent_nothing_more() -> None:
    with scene(1000) as at:
        at.eater.is_full = True
        at.intake.feed(b"x" * 10)
        assert (at.transport.reads, at.memory.used) == (False, 10)
        at.eater.is_full = False
        at.intake.advance()
        assert (at.eater.eaten, at.transport.reads) == (b"x" * 10, True)


def test_memory_is_charged_for_what_it_is_taken_by() -> None:
    """What was consumed of a piece takes memory until it is given up; and what the reader keeps counts, too."""
    with scene(90) as at:
        at.intake.feed(b"x" * 100)
        assert at.memory.used == len(at.intake.unread.data) == 10
    with scene(10) as at:
        at.intake.feed(b"x" * 100)
        assert at.memory.used == len(at.intake.unread.data) == 100
    with scene(100) as at:
        at.eater.keeps = True
        at.intake.feed(b"x" * 100)
        assert at.memory.used == 100


def test_what_there_is_no_room_for_is_dropped() -> None:
    with scene(10, memory_bytes=400) as at:
        at.intake.feed(b"x" * 200)
        assert at.eater.refused is not None
        assert at.eater.refused.body.code == "busy"
        assert (at.intake.unread.size, at.memory.used) == (0, 0)


def test_after_the_end_what_comes_is_read_and_dropped() -> None:
    with scene(10) as at:
        at.intake.feed(b"x" * 100)
        at.intake.end()
        assert (at.transport.reads, at.memory.used) == (True, 0)
        at.intake.feed(b"y" * 100)
        at.turns.give_turn()
        assert (at.eater.eaten, at.intake.unread.size) == (b"x" * 10, 0)


def test_a_successor_gets_the_rest_in_its_own_turn() -> None:
    with scene(10) as at:
        at.intake.feed(b"x" * 10 + b"y" * 10)
        after = Eater(100)
        after.intake = at.intake
        at.intake.pass_to(after)
        assert after.eaten == b""
        at.turns.give_turn()
        assert (at.eater.eaten, after.eaten, at.transport.reads) == (b"x" * 10, b"y" * 10, True)
