"""How long a process has stood still, as its supervisor sees it."""

from tuplegate.standstill import StandstillClock


def test_a_sign_that_changes_is_life() -> None:
    vigil = StandstillClock(0.0)
    assert [vigil.look(sign, at) for at, sign in enumerate([1, 2, 3])] == [0, 0, 0]


def test_a_sign_that_stays_adds_up() -> None:
    vigil = StandstillClock(0.0)
    assert [vigil.look(7, at / 4) for at in range(5)] == [0, 0.25, 0.5, 0.75, 1.0]


def test_a_look_that_comes_late_counts_little() -> None:
    """The one who looks could not run either."""
    vigil = StandstillClock(0.0)
    vigil.look(7, 0.25)
    assert vigil.look(7, 3600.0) == 1.0
    assert vigil.look(8, 3600.25) == 0.0
