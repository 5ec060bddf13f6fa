"""Who is held back when the engine's tables of locks fill up."""

from tuplegate.engine.postgres.safety.locks import Held, judge

CAPACITY = 1000


def test_nobody_is_held_back_while_there_is_room() -> None:
    verdict = judge([Held("a", 1, False, 500), Held("b", 2, True, 500)], {1: 0.0, 2: 0.0}, CAPACITY)
    assert (verdict.crowded, verdict.ended, verdict.outlived) == (set(), set(), None)


def test_whoever_holds_most_is_ended_first() -> None:
    """The others are left alone, though together they hold something too."""
    held = [Held("a", 1, False, 490), Held("b", 2, False, 100), Held("c", 3, False, 20)]
    verdict = judge(held, {1: 5.0, 2: 0.0, 3: 0.0}, CAPACITY)
    assert (verdict.crowded, verdict.ended, verdict.outlived) == ({"a"}, {1}, None)


def test_several_who_fill_it_together_are_all_held_back() -> None:
    held = [Held(name, process, False, 300) for process, name in enumerate("abcd")]
    verdict = judge([*held, Held("z", 9, False, 10)], {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0, 9: 0.0}, CAPACITY)
    assert len(verdict.crowded) == 3
    assert "z" not in verdict.crowded
    assert 9 not in verdict.ended


def test_what_holds_little_is_not_ended_with_its_neighbours() -> None:
    """Its database is held back, but a statement with a few locks would free nothing."""
    verdict = judge([Held("a", 1, False, 600), Held("a", 2, False, 3)], {1: 0.0, 2: 0.0}, CAPACITY)
    assert (verdict.crowded, verdict.ended) == ({"a"}, {1})


def test_locks_that_were_left_behind_only_hold_back() -> None:
    """Those of transactions that are over: nobody who holds them can be ended."""
    held = [Held("a", process, True, 2) for process in range(300)]
    verdict = judge(held, {1: 7.0, 1000: 3.0}, CAPACITY)
    assert (verdict.crowded, verdict.ended, verdict.outlived) == ({"a"}, set(), None)


def test_the_oldest_is_ended_where_that_is_not_enough() -> None:
    """It is what keeps them; whose it is does not matter any more."""
    held = [Held("a", process, True, 3) for process in range(300)]
    assert judge(held, {1: 7.0, 1000: 3.0}, CAPACITY).outlived == 1000
    assert judge(held, {}, CAPACITY).outlived is None


def test_processes_of_other_workers_are_theirs_to_end() -> None:
    verdict = judge([Held("a", 1, False, 900)], {}, CAPACITY)
    assert (verdict.crowded, verdict.ended) == ({"a"}, set())
