"""How the connections to the engine are shared out among workers."""

import pytest

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
