"""What the benchmarks conclude from what they measured."""

from pathlib import Path

import pytest
from bench.growth import Line
from bench.peers import bars
from bench.peers.bars import Against
from bench.peers.engine import Limit
from bench.peers.processes import Memory
from bench.peers.rounds import Case, Results, Sample
from bench.peers.servers import D1, FastApi, Server, Sqld, Tuplegate
from bench.peers.workloads import Workload

SERVERS: list[Server] = [kind(Path(), Path()) for kind in (Tuplegate, Sqld, D1, FastApi)]


def _results(workload: Workload, rates: dict[str, list[float]], errors: int = 0) -> Results:
    results = Results(rounds=len(rates[Tuplegate.name]))
    for name, values in rates.items():
        results.limits[Limit.EXTENDED] = [1.0 for _ in values]
        results.samples[Case(name, workload, 32)] = [Sample(rate, errors, 1.0, 1.0, Memory(1, 0)) for rate in values]
    return results


def _ratio(results: Results, against: Against) -> bars.Ratio:
    return next(ratio for ratio in bars.ratios(results, SERVERS) if ratio.bar.against is against)


def test_a_ratio_is_against_the_best_peer_of_its_round_and_its_median_is_judged() -> None:
    """One bad round does not fail a run, and one good round does not save it."""
    rates = {"tuplegate": [400.0, 400.0, 100.0], "sqld": [100.0, 50.0, 100.0], "d1": [10.0, 100.0, 10.0]}
    ratio = _ratio(_results(Workload.POINT, rates), Against.PEERS)
    assert ratio.values == [4, 4, 1]
    assert ratio.other == "sqld"
    assert ratio.passed
    rates["tuplegate"] = [400.0, 100.0, 100.0]
    assert _ratio(_results(Workload.POINT, rates), Against.PEERS).passed is False


def test_transactions_are_judged_against_peers_that_flush_their_commits() -> None:
    """Against a peer that does not wait for the disk the ratio is only printed."""
    results = _results(Workload.TRANSACTION, {"tuplegate": [200.0], "sqld": [1000.0], "d1": [100.0]})
    assert _ratio(results, Against.DURABLE).values == [2]
    assert _ratio(results, Against.DURABLE).passed
    assert _ratio(results, Against.PEERS).values == [0.2]
    assert _ratio(results, Against.PEERS).passed is None


def test_a_peer_that_did_nothing_is_not_compared_and_the_service_that_did_nothing_fails() -> None:
    """Neither divides by zero."""
    idle_peer = _results(Workload.POINT, {"tuplegate": [9.0], "sqld": [0.0], "d1": [1.0]})
    assert _ratio(idle_peer, Against.PEERS).values == [9]
    no_peer = _results(Workload.POINT, {"tuplegate": [9.0], "sqld": [0.0]})
    assert not [ratio for ratio in bars.ratios(no_peer, SERVERS) if ratio.bar.against is Against.PEERS]
    nothing = _ratio(_results(Workload.POINT, {"tuplegate": [0.0], "sqld": [1.0]}), Against.PEERS)
    assert nothing.passed is False


def test_errors_are_those_of_the_service() -> None:
    """A peer's errors lower its rate; they are not ours."""
    results = _results(Workload.POINT, {"sqld": [1.0], "tuplegate": [1.0]}, errors=3)
    assert bars.errors(results) == 3


@pytest.mark.parametrize(
    ("linear", "costs", "passed"),
    [
        (True, [1.0, 10.0, 100.0], True),
        (True, [1.0, 1.0, 14.0], True),
        (True, [1.0, 10.0, 200.0], False),
        (False, [1.0, 1.2, 1.1], True),
        (False, [1.0, 2.0, 4.0], False),
    ],
)
def test_a_cost_may_grow_as_its_cause_does_or_not_at_all(linear: bool, costs: list[float], passed: bool) -> None:
    """Between any two sizes, not only from the first to the last."""
    line = Line("rows", "some", linear, [dict(zip([1, 10, 100], costs, strict=True))])
    assert line.passed is passed


def test_what_is_compared_comes_from_one_turn() -> None:
    """A machine that is slower for a whole turn makes no difference; one that is for a part of it counts for one."""
    steady, slow, odd = {1: 1.0, 10: 10.0}, {1: 3.0, 10: 30.0}, {1: 1.0, 10: 40.0}
    assert Line("rows", "some", True, [steady, slow, slow]).worst == 1.0
    assert Line("rows", "some", True, [steady, odd, slow]).worst == 1.0
    assert Line("rows", "some", True, [steady, odd, odd]).worst == 4.0
    assert Line("rows", "some", True, [steady, odd, slow]).points == [(1, 1.0), (10, 30.0)]


def test_a_request_has_no_unfilled_place_but_the_mark() -> None:
    """The word that stands for a number has become the mark, everywhere."""
    for server in SERVERS:
        for workload in Workload:
            request = server.request(workload)
            assert request is None or "random number" not in request.text
