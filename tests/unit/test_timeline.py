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


def said(word: str, began: float, ended: float) -> list[tuple[float, str]]:
    """What health says every quarter of a second."""
    return [(began + n / 4, word) for n in range(int((ended - began) * 4))]


def test_health_that_says_ok_too_long() -> None:
    """Within five seconds after the last write it must say something else; it may also not answer."""
    writes = without(10, 30)
    for word in ("degraded", "failing", "nothing"):
        assert lies([*said("ok", 0, 14), *said(word, 14, 29), *said("ok", 29, 40)], writes, []) == []
    assert lies([*said("ok", 0, 16), *said("failing", 16, 30)], writes, [])
    assert len(lies(said("ok", 0, 40), writes, [])) == 3


def test_health_that_does_not_come_back() -> None:
    """Within five seconds after writes are possible again it must answer, and not be failing."""
    writes = without(10, 30)
    for word in ("failing", "nothing"):
        assert lies([*said(word, 20, 34), *said("ok", 34, 60)], writes, []) == []
        assert lies([*said(word, 20, 36), *said("ok", 36, 60)], writes, [])
    assert lies(said("degraded", 20, 60), writes, []) == []


def test_a_node_that_is_down_says_nothing() -> None:
    assert lies(said("nothing", 20, 40), STEADY, [Span(19, 41)]) == []
    assert lies(said("nothing", 20, 40), STEADY, [Span(19, 31)])


def test_what_nobody_knows_is_no_lie() -> None:
    """Before the first and after the last write there is nothing to compare with."""
    assert lies([*said("failing", 0, 20), *said("ok", 30, 60)], [20.0, 20.1], []) == []
