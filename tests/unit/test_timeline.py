"""What `make failover` draws from its probes: times without service, and whether health told the truth."""

from failover.timeline import Span, lies, longest_gap, merged

STEADY = [n / 10 for n in range(1000)]
"""Served every tenth of a second, for 100 seconds."""


def without(began: float, ended: float) -> list[float]:
    return [at for at in STEADY if not began < at < ended]


def test_the_longest_gap_of_a_window() -> None:
    """Only what touches the window counts, and the whole of it."""
    served = [at for at in without(10, 12) if not 50 < at < 57]
    assert longest_gap(served, Span(0, 40)) == Span(10, 12)
    assert longest_gap(served, Span(11, 40)) == Span(10, 12)
    assert longest_gap(served, Span(30, 60)) == Span(50, 57)


def test_a_gap_that_does_not_end() -> None:
    """Who is never served again, or was never served, is without service until the window ends."""
    assert longest_gap([1.0, 2.0], Span(1.5, 30)) == Span(2.0, 30)
    assert longest_gap([], Span(5, 30)) == Span(5, 30)


def test_any_of_several() -> None:
    assert merged([[1.0, 4.0], [2.0], []]) == [1.0, 2.0, 4.0]


def test_health_that_says_ok_too_long() -> None:
    """Five seconds after the last write it must say something else."""
    writes = without(10, 30)
    assert lies([(14.9, "ok"), (16.0, "degraded"), (20.0, "failing"), (25.0, "nothing")], writes, []) == []
    assert len(lies([(16.0, "ok"), (27.0, "ok")], writes, [])) == 2


def test_health_that_knows_before_the_probes() -> None:
    """A probe needs a moment to notice that writes are possible again."""
    assert lies([(29.0, "ok")], without(10, 30), []) == []


def test_health_that_does_not_come_back() -> None:
    """Five seconds after writes are possible again it must answer and not be failing."""
    writes = without(10, 30)
    assert lies([(34.9, "failing"), (34.9, "nothing"), (36.0, "ok"), (36.0, "degraded")], writes, []) == []
    assert len(lies([(36.0, "failing"), (36.0, "nothing")], writes, [])) == 2


def test_a_node_that_is_down_says_nothing() -> None:
    assert lies([(36.0, "nothing")], STEADY, [Span(35, 37)]) == []
    assert len(lies([(38.0, "nothing")], STEADY, [Span(35, 37)])) == 1


def test_what_nobody_knows_is_no_lie() -> None:
    """Before the first and after the last write there is nothing to compare with."""
    assert lies([(0.5, "failing"), (9.0, "ok")], [1.0, 1.1], []) == []
