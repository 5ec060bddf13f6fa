"""What the guard makes of its numbers: pure arithmetic, without an engine."""

import asyncio
import time

import pytest

from tuplegate.engine.libpq.connections.commands import ConnectionLost
from tuplegate.engine.postgres.safety.guard import SerializableGuard
from tuplegate.engine.postgres.safety.tally import (
    LEASE_UNTIL,
    OTHERS_CEILING,
    OTHERS_FLOOR,
    OWN_CEILING,
    VIEW_UNTIL,
    Tally,
)
from tuplegate.engine.postgres.upkeep.lease import Others

SLOTS = 1000
SECOND_NS = 1_000_000_000
WAIT_S = 5


@pytest.fixture
def tally() -> Tally:
    return Tally(2)


@pytest.fixture
def shared() -> Tally:
    """With a view of the others and a lease of its own, both good for an hour."""
    made = Tally(2, shared=True)
    for place in (VIEW_UNTIL, LEASE_UNTIL):
        made.numbers[place] = time.monotonic_ns() + 3600 * SECOND_NS
    made.numbers[OWN_CEILING] = 100
    return made


def test_what_every_worker_begins_counts(tally: Tally) -> None:
    one, two = SerializableGuard(SLOTS, tally, 0), SerializableGuard(SLOTS, tally, 1)
    begun = one.begun
    two.count(750)
    assert not one.has_outlived(begun)
    one.count(1)
    assert one.has_outlived(begun)
    assert two.has_outlived(begun)
    assert not one.has_outlived(one.begun)


def test_what_others_may_have_begun_counts(shared: Tally) -> None:
    """From what they had begun at least when it began, to what they can have begun at most by now."""
    guard = SerializableGuard(SLOTS, shared, 0)
    shared.numbers[OTHERS_FLOOR], shared.numbers[OTHERS_CEILING] = 5000, 5600
    begun = guard.begun
    assert not guard.has_outlived(begun)
    shared.numbers[OTHERS_CEILING] = 5751
    assert guard.has_outlived(begun)


def test_blindness(shared: Tally) -> None:
    """Where the others were not heard of for a second, nothing is taken for granted."""
    guard = SerializableGuard(SLOTS, shared, 0)
    shared.numbers[VIEW_UNTIL] = time.monotonic_ns() - SECOND_NS // 100
    assert not guard.has_outlived(guard.begun)
    shared.numbers[VIEW_UNTIL] = time.monotonic_ns() - 2 * SECOND_NS
    assert guard.has_outlived(guard.begun)


def test_nothing_begins_beyond_the_ceiling_or_without_a_lease(shared: Tally) -> None:
    one, two = SerializableGuard(SLOTS, shared, 0), SerializableGuard(SLOTS, shared, 1)
    waits = []
    one.count(60)
    waits.append(two.must_wait)
    two.count(40)
    waits.append(one.must_wait)
    shared.numbers[OWN_CEILING] = 200
    waits.append(one.must_wait)
    shared.numbers[LEASE_UNTIL] = time.monotonic_ns() - 1
    waits.append(one.must_wait)
    assert waits == [False, True, False, True]


def test_alone_nobody_waits(tally: Tally) -> None:
    guard = SerializableGuard(SLOTS, tally, 0)
    guard.count(10**9)
    assert not guard.must_wait


def test_what_others_may_begin_unseen_is_taken_off(shared: Tally) -> None:
    guard = SerializableGuard(SLOTS, shared, 0)
    assert guard.safe == 750
    shared.numbers[OTHERS_FLOOR], shared.numbers[OTHERS_CEILING] = 5000, 5200
    assert guard.safe == 550


def test_seal_only_where_others_begin_transactions(tally: Tally, shared: Tally) -> None:
    counts = []
    for each in (Tally(1), tally, shared):
        seal = asyncio.run(SerializableGuard(SLOTS, each, 0).seal(0))
        assert seal is not None
        counts.append(len(seal))
    assert counts == [0, 1, 1]


def test_no_seal_for_what_has_outlived(tally: Tally) -> None:
    guard = SerializableGuard(SLOTS, tally, 0)
    guard.count(SLOTS)
    assert asyncio.run(guard.seal(0)) is None


def test_a_seal_is_not_waited_for_without_end(shared: Tally) -> None:
    """Where every view is old when it comes, as over a slow network, the commit is given up at its time."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(WAIT_S):
            keeping = asyncio.create_task(keep_old())
            await asyncio.sleep(0)
            with pytest.raises(ConnectionLost):
                await SerializableGuard(SLOTS, shared, 0).seal(0, loop.time() + 0.1)
            keeping.cancel()

    async def keep_old() -> None:
        while True:
            shared.numbers[VIEW_UNTIL] = time.monotonic_ns()
            await asyncio.sleep(0)

    asyncio.run(run())


# -- the others -----------------------------------------------------------------------------------------------------


def test_a_group_that_joins_and_ends() -> None:
    others = Others(7, SLOTS)
    others.update([("a", 0, 50, False)])
    assert (others.floor, others.ceiling, others.count) == (7, 57, 1)
    others.update([("a", 30, 80, False), ("b", 5, 10, False)])
    assert (others.floor, others.ceiling, others.count) == (42, 97, 2)
    others.update([("a", 30, 80, True), ("b", 5, 10, False)])
    assert (others.floor, others.ceiling, others.count) == (92, 97, 1), "it begins nothing beyond its ceiling"


def test_a_group_that_was_over_before_it_was_seen() -> None:
    others = Others(7, SLOTS)
    others.update([("a", 500, 900, True)])
    assert (others.floor, others.ceiling, others.count) == (7, 7, 0)


def test_a_group_that_is_over_stays_over() -> None:
    """Whatever it says later: who was silent for too long takes another name."""
    others = Others(0, SLOTS)
    others.update([("a", 30, 80, False)])
    others.update([("a", 30, 80, True)])
    others.update([("a", 60, 90, False)])
    assert (others.floor, others.ceiling) == (80, 80)
    others.update([])
    assert (others.floor, others.ceiling) == (80, 80)


def test_a_group_that_vanished_unseen() -> None:
    """What is open has missed an unknown number; what begins later has not."""
    others = Others(0, SLOTS)
    others.update([("a", 30, 80, False)])
    before = others.floor
    others.update([])
    assert others.ceiling - before > SLOTS
    assert others.floor == others.ceiling
