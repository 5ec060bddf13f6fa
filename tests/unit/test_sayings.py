"""The rules that hold a service to what it has said and shown."""

from tests.histories import Append, Outcome, Read, Transaction, names
from tests.list_append.sayings import Sayings, Shown, Snapshot, check_snapshots


def test_a_final_word_stays() -> None:
    """What is not final may change; committed and aborted may not, whoever says it."""
    sayings = Sayings()
    for state in ("in_progress", "open", "committed", "in_progress", "committed"):
        sayings.note("a", state, "node 0")
    assert sayings.wrong == []
    sayings.note("a", "aborted", "node 1")
    assert sayings.wrong == ["a was said to be committed by node 0, and then aborted by node 1"]


def test_what_was_shown_is_shown_again() -> None:
    """A snapshot has the client's own acknowledged appends and all that it has read, and goes on from there."""
    shown = Shown()
    shown.note(Transaction(1, Outcome.OK, (Append("x", 1), Read("y", (7, 8)))))
    shown.note(Transaction(2, Outcome.INFO, (Append("x", 2),)))
    assert shown.find_missing({"x": (1,), "y": (7, 8, 9)}) == {}
    assert shown.find_missing({"x": (), "y": (7, 8)}) == {"x": [1], "y": [9]}
    assert shown.find_missing({"z": ()}) == {}


def test_snapshots_are_moments() -> None:
    """Every snapshot is a beginning of the lists, has nothing that was aborted, and each transaction whole or not."""
    history = [
        Transaction(1, Outcome.OK, (Append("x", 1), Append("y", 1))),
        Transaction(2, Outcome.FAIL, (Append("x", 2),)),
        Transaction(3, Outcome.INFO, (Append("x", 3),)),
    ]
    final = {"x": (1, 3), "y": (1,)}

    def found(**lists: tuple[int, ...]) -> set[str]:
        return names(check_snapshots(history, final, [Snapshot(lists, "a replica")]))

    assert found(x=(), y=()) == found(x=(1,)) == found(x=(1, 3), y=(1,)) == found(z=()) == set()
    assert found(x=(1,), y=()) == {"snapshot-part"}
    assert found(x=(3, 1), y=(1,)) == {"snapshot-order"}
    assert "snapshot-G1a" in found(x=(1, 2), y=(1,))
