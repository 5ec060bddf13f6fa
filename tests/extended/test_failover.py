"""A short form of `make failover`: a switchover, then kill -9 of the leader. Needs etcd, and Patroni in .failover."""

import random
import sys

import pytest
from failover.cluster import NotInstalled, find_programs
from failover.trial import Trial, run

from tests.service import ENGINE

pytestmark = pytest.mark.skipif(bool(ENGINE), reason="it starts a cluster of its own")
TRANSACTIONS_MIN = 200


@pytest.mark.timeout(1200)
def test_nothing_is_lost_when_the_leader_changes() -> None:
    """Acknowledged writes stay, histories are serializable, outcomes are learned, and both nodes follow the leader."""
    try:
        find_programs()
    except NotInstalled as exc:
        pytest.skip(str(exc))
    seed = random.SystemRandom().randrange(2**32)
    trial = Trial(seed, ("switchover", "kill"), rounds=1, clients=4, calm_s=0, transactions_min=TRANSACTIONS_MIN)
    verdict = run(trial, lambda text: print(text, file=sys.stderr))
    print("\n".join(verdict.figures))
    assert [*verdict.wrong, *verdict.logged, *verdict.broken] == [], f"seed {seed}"
    assert verdict.counts["ok"] >= TRANSACTIONS_MIN, verdict.counts
