"""How the connections to the engine are shared out among workers."""

import pytest

from tuplegate.engine.libpq.pools.places import Places
from tuplegate.engine.opening import share_connections

KEPT, KEPT_PER_WORKER, KEPT_TO_FOLLOW = 6, 4, 4


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_all_workers_together_stay_within_the_bound(workers: int, follows: bool) -> None:
    """With what the service keeps for itself, wherever two are left for each worker."""
    own = KEPT + workers * (KEPT_PER_WORKER + KEPT_TO_FOLLOW * follows)
    for connections in range(own + 2 * workers, 200):
        shared = workers * share_connections(connections, workers, follows=follows)
        assert connections - workers < own + shared <= connections


def test_a_worker_has_two_in_any_case() -> None:
    assert share_connections(10, 4, follows=True) == 2


class _Room:
    """Places of which connections are idle, by owner."""

    def __init__(self, places: int, of_one_max: int) -> None:
        self.places = Places(places, of_one_max, self._close)
        self.idle: list[str] = []

    def _close(self, idle_since: float, owner: str | None) -> None:
        for found in self.idle:
            if owner is None or found == owner:
                self.idle.remove(found)
                self.places.give_back(found)
                return


def test_one_owner_leaves_room_for_the_others() -> None:
    """It has as many as it may have, and then only the places of its own that are idle."""
    room = _Room(5, 3)
    one, other = room.places.of("one"), room.places.of("other")
    assert [one.take() for _ in range(4)] == [True, True, True, False]
    assert [other.take() for _ in range(3)] == [True, True, False]
    room.idle = ["other", "one"]
    assert one.take()
    assert room.idle == ["other"], "an owner that has all of its places takes none of another's"


def test_a_place_goes_to_whoever_may_have_it() -> None:
    """Whoever asked first is passed over while its owner has as many as it may have."""
    room = _Room(3, 2)
    one, other = room.places.of("one"), room.places.of("other")
    assert one.take()
    assert one.take()
    assert other.take()
    asked: list[str] = []
    one.ask(lambda: asked.append("one"))
    assert one.is_wanted
    assert not other.is_wanted, "nobody may use it"
    other.give_back()
    assert asked == []
    one.give_back()
    assert asked == ["one"]
