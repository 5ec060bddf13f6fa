"""Walls that hold: the quick attacks of `make attack`, and a few rounds of hostile objects, against one service."""

from collections.abc import Iterator

import pytest
from attack.arena import Arena, open_arena, running_service
from attack.campaign import Verdict, try_attack, try_hostile
from attack.subjects import ATTACKS, Attack

from tests.service import needs_bundled

pytestmark = needs_bundled
SEEDS = (1, 2)


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    with running_service() as service, open_arena(service) as opened:
        yield opened


@pytest.mark.parametrize("attack", [pytest.param(each, id=each.sentence) for each in ATTACKS.values() if each.quick])
def test_attack(arena: Arena, attack: Attack) -> None:
    _holds(try_attack(arena, attack))


@pytest.mark.parametrize("seed", SEEDS)
def test_hostile_objects_of_the_seed_change_nothing(arena: Arena, seed: int) -> None:
    _holds(try_hostile(arena, seed))


def _holds(verdict: Verdict) -> None:
    print(verdict.figures)
    assert not verdict.wrong, "\n".join([*verdict.wrong, *verdict.sent])
