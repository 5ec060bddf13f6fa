"""The rule that excuses reads of commits that an operator has let through, and nothing else."""

import dataclasses

import pytest
from failover.taken_back import CutWaits, TakenBack
from failover.timeline import Span

from tests.histories import Append, Outcome, Read, Transaction, check
from tests.list_append.sayings import Lack, Snapshot

FINAL = {"x": (1,)}
CUT = CutWaits(Span(10.0, 20.0), cancelled=1)
KEPT = Transaction(1, Outcome.OK, (Append("x", 1),), 1.0, 2.0)
UNKNOWN = Transaction(2, Outcome.INFO, (Append("x", 2),), 11.0)
READ = Transaction(3, Outcome.OK, (Read("x", (1, 2)),), 12.0, 13.0)


def wrong(*history: Transaction, cut: CutWaits = CUT) -> bool:
    taken = TakenBack(history, FINAL, [cut])
    return bool(check(taken.right_history(), FINAL, real_time=True) or taken.excess)


def test_a_cancelled_wait_is_excused() -> None:
    """Who has read it, in any way, was not shown anything that was promised to stay."""
    taken = TakenBack([KEPT, UNKNOWN, READ], FINAL, [CUT])
    assert check(taken.right_history(), FINAL) == []
    [snapshot] = taken.right_snapshots([Snapshot({"x": (1, 2)}, "", 12.0, 13.0)])
    assert snapshot.lists == {"x": (1,)}
    lacks = [Lack({"x": [2]}, ""), Lack({"x": [1, 2]}, "")]
    assert taken.right_lacks(lacks) == [Lack({"x": [1]}, "")]
    assert (taken.shown, taken.reads, taken.excess) == ({("x", 2): 2}, 2, None)


@pytest.mark.parametrize(
    "history",
    [
        pytest.param([KEPT, dataclasses.replace(UNKNOWN, outcome=Outcome.OK, ended=12.0), READ], id="acknowledged"),
        pytest.param([KEPT, dataclasses.replace(UNKNOWN, outcome=Outcome.FAIL), READ], id="told as failed"),
        pytest.param([KEPT, UNKNOWN, dataclasses.replace(READ, began=21.0, ended=22.0)], id="read afterwards"),
        pytest.param([KEPT, UNKNOWN, dataclasses.replace(READ, began=8.0, ended=9.0)], id="read before"),
        pytest.param([KEPT, UNKNOWN, dataclasses.replace(READ, ops=(Read("x", (2,)),))], id="without what stays"),
        pytest.param([KEPT, UNKNOWN, dataclasses.replace(READ, ops=(Read("x", (1, 2, 3)),))], id="with another's"),
        pytest.param(
            [KEPT, UNKNOWN, dataclasses.replace(READ, ops=(Append("x", 3), Read("x", (1, 2, 3))))], id="written upon"
        ),
    ],
)
def test_nothing_else_is_excused(history: list[Transaction]) -> None:
    assert not wrong(KEPT, UNKNOWN, READ)
    assert wrong(*history)


def test_more_than_was_cancelled_is_not_excused() -> None:
    second = dataclasses.replace(UNKNOWN, id=4, ops=(Append("x", 4),))
    read = dataclasses.replace(READ, ops=(Read("x", (1, 2, 4)),))
    assert wrong(KEPT, UNKNOWN, second, read)
    assert not wrong(KEPT, UNKNOWN, second, read, cut=dataclasses.replace(CUT, cancelled=2))


def test_without_cancelled_waits_nothing_is_excused() -> None:
    taken = TakenBack([KEPT, UNKNOWN, READ], FINAL, [])
    assert taken.right_history() == [KEPT, UNKNOWN, READ]
