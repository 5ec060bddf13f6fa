"""Leases on a real engine: whatever groups do, each knows a bound of what the others begin."""

import asyncio
import random
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
from psycopg import pq

from tests.service import new_data_dir, remove
from tuplegate.engine.postgres.preparation.foundation import make_metadata_database
from tuplegate.engine.postgres.safety.guard import SEAL_BROKEN, SerializableGuard
from tuplegate.engine.postgres.safety.tally import LEASE_UNTIL, OTHERS_CEILING, VIEW_UNTIL, Tally
from tuplegate.engine.postgres.service.admin import AdminConnector
from tuplegate.engine.postgres.upkeep.lease import Lease
from tuplegate.settings import Settings
from tuplegate.supervisor.engine_server import open_bundled

SLOTS = 2000
ALLOWANCE = 60
SECONDS = 4.0


@pytest.fixture(scope="module")
def connector() -> Iterator[AdminConnector]:
    data_dir = new_data_dir()
    with open_bundled(Settings(data_dir=data_dir)) as bundled:
        made = AdminConnector(bundled.conninfo)
        asyncio.run(make_metadata_database(made))
        yield made
    remove(data_dir)


class Group:
    """A service process group: it begins as many transactions as it may, in small bursts."""

    def __init__(self, connector: AdminConnector) -> None:
        self.tally = Tally(1, shared=True)
        self.guard = SerializableGuard(SLOTS, self.tally, 0)
        self.lease = Lease(connector, self.tally, SLOTS, ALLOWANCE)
        self.waited = 0

    async def live(self, seconds: float, rng: random.Random) -> None:
        loop = asyncio.get_running_loop()
        async with self.lease:
            until = loop.time() + seconds
            while loop.time() < until:
                if self.guard.must_wait:
                    self.waited += 1
                else:
                    self.guard.count(rng.randrange(1, ALLOWANCE // 2))
                await asyncio.sleep(rng.random() * 0.01)


def test_the_bound_holds(connector: AdminConnector) -> None:
    """At any moment at which a group's view is valid, the others have begun no more than it reckons with."""
    rng = random.Random(8)
    groups = [Group(connector) for _ in range(4)]
    checked = 0

    async def watch(own: Group, life: "asyncio.Future[Any]") -> None:
        nonlocal checked
        marks: list[tuple[int, int]] = []
        while not life.done():
            others = sum(group.tally.begun for group in groups if group is not own)
            if own.tally.numbers[LEASE_UNTIL]:
                marks.append((own.guard.begun - own.tally.begun, others))
                marks = marks[-200:]
            if own.tally.numbers[VIEW_UNTIL] > asyncio.get_running_loop().time() * 1e9:
                for floor, then in marks:
                    assert own.tally.numbers[OTHERS_CEILING] - floor >= others - then
                    checked += 1
            await asyncio.sleep(0.003)

    async def live() -> None:
        lives = asyncio.gather(
            groups[0].live(SECONDS, rng),
            groups[1].live(SECONDS, rng),
            _later(1.0, groups[2].live(SECONDS / 4, rng)),
            _later(1.5, groups[3].live(SECONDS / 4, rng)),
        )
        await asyncio.gather(lives, *(watch(group, lives) for group in groups))

    asyncio.run(live())
    assert checked > 1000
    assert all(group.tally.begun > 100 for group in groups), "everybody gets on"
    assert groups[0].waited + groups[1].waited > 0, "and is held back at times"


def test_a_group_knows_of_another_before_that_one_begins(connector: AdminConnector) -> None:
    """So it keeps nothing of what the other one could change."""

    def is_alone(group: Group) -> bool:
        return group.tally.versions.is_alone

    async def live() -> None:
        first, second = Group(connector), Group(connector)
        assert not is_alone(first), "nobody knows yet"
        async with first.lease:
            assert is_alone(first)
            for group in (second, Group(connector)):
                async with group.lease:
                    assert not is_alone(first)
                    assert not is_alone(group)
            assert not is_alone(first), "a statement of theirs may still be under way"

    asyncio.run(live())


async def _later(seconds: float, work: Coroutine[Any, Any, None]) -> None:
    await asyncio.sleep(seconds)
    await work


def test_a_commit_that_comes_late_fails(connector: AdminConnector) -> None:
    """What goes in front of a commit lets it pass now, and stops it after its time."""

    async def ask(until: bytes | None) -> tuple[bytes | None, bytes | None]:
        [command] = await SerializableGuard(SLOTS, Tally(2), 0).seal(0) or []
        command.params = command.params if until is None else [until]
        connection = await connector.connect("postgres")
        [result] = await connection.run(command)
        connection.close()
        return result.get_value(0, 0), result.error_field(pq.DiagnosticField.SQLSTATE)

    assert asyncio.run(ask(None)) == (b"1", None)
    assert asyncio.run(ask(b"1000000000.5")) == (None, SEAL_BROKEN.encode())
