"""The checker of histories finds each anomaly in a history made for it, and nothing in clean ones."""

import random

import pytest

from tests.histories import Append, Outcome, Read, Transaction, Values, check, names

OK, FAIL, INFO = Outcome.OK, Outcome.FAIL, Outcome.INFO


def a(key: str, value: int) -> Append:
    return Append(key, value)


def r(key: str, *values: int) -> Read:
    return Read(key, values)


def history(*transactions: tuple[Outcome, tuple[Append | Read, ...]]) -> list[Transaction]:
    return [Transaction(id, outcome, ops) for id, (outcome, ops) in enumerate(transactions)]


def test_clean() -> None:
    """Reads and appends one after the other are clean, strictly too."""
    clean = [
        Transaction(0, OK, (r("x"), a("x", 1), r("x", 1)), 0, 1),
        Transaction(1, OK, (r("x", 1), a("y", 1), a("x", 2)), 2, 3),
        Transaction(2, FAIL, (a("x", 3),), 2, 3),
        Transaction(3, OK, (a("x", 4), r("x", 1, 2, 4), r("y", 1)), 4, 5),
        Transaction(4, INFO, (a("x", 5),), 4, 9),
        Transaction(5, INFO, (a("x", 6), a("y", 6)), 6, 9),
    ]
    assert check(clean, {"x": (1, 2, 4, 6), "y": (1, 6)}, real_time=True) == []


def test_random_serial_histories_are_clean() -> None:
    """Whatever a serial execution does, nothing is found."""
    for seed in range(30):
        rng = random.Random(seed)
        lists: dict[str, Values] = {}
        made = []
        for id in range(200):
            outcome = rng.choice([OK, OK, OK, FAIL, INFO])
            applied = outcome is OK or (outcome is INFO and rng.random() < 0.5)
            mine = dict(lists)
            ops: list[Append | Read] = []
            for place in range(rng.randint(1, 5)):
                key = rng.choice("xyz")
                if rng.random() < 0.5:
                    ops.append(Read(key, mine.get(key, ())))
                else:
                    value = id * 10 + place
                    ops.append(Append(key, value))
                    mine[key] = (*mine.get(key, ()), value)
            lists = mine if applied else lists
            made.append(Transaction(id, outcome, tuple(ops), id, id + 0.5))
        assert check(made, lists, real_time=True) == [], seed


ANOMALIES: dict[str, tuple[list[Transaction], dict[str, Values]]] = {
    "G0": (
        history((OK, (a("x", 1), a("y", 1))), (OK, (a("x", 2), a("y", 2)))),
        {"x": (1, 2), "y": (2, 1)},
    ),
    "G1a": (history((FAIL, (a("x", 1),)), (OK, (r("x", 1),))), {"x": ()}),
    "G1b": (history((OK, (a("x", 1), a("x", 2))), (OK, (r("x", 1),))), {"x": (1, 2)}),
    "G1c": (history((OK, (a("x", 1), r("y", 2))), (OK, (a("y", 2), r("x", 1)))), {"x": (1,), "y": (2,)}),
    "G-single": (
        history((OK, (a("x", 1), a("y", 1))), (OK, (r("x"), r("y", 1)))),
        {"x": (1,), "y": (1,)},
    ),
    "G2": (
        history((OK, (r("x"), a("y", 1))), (OK, (r("y"), a("x", 2)))),
        {"x": (2,), "y": (1,)},
    ),
    "lost-update": (history((OK, (r("x"), a("x", 1))), (OK, (r("x"), a("x", 2)))), {"x": (1, 2)}),
    "lost-append": (history((OK, (a("x", 1),)), (OK, (a("x", 2),))), {"x": (2,)}),
    "half-applied": (history((INFO, (a("x", 1), a("y", 1)))), {"x": (1,), "y": ()}),
    "duplicate": (history((OK, (a("x", 1),))), {"x": (1, 1)}),
    "garbage": (history((OK, (r("x", 7),))), {"x": (7,)}),
    "incompatible-order": (
        history((OK, (a("x", 1),)), (OK, (a("x", 2),)), (OK, (r("x", 1),)), (OK, (r("x", 2, 1),))),
        {"x": (2, 1)},
    ),
    "internal": (history((OK, (a("x", 1), r("x")))), {"x": (1,)}),
}


@pytest.mark.parametrize("name", ANOMALIES)
def test_each_anomaly(name: str) -> None:
    """A history that holds an anomaly is found to hold it."""
    transactions, final = ANOMALIES[name]
    assert name in names(check(transactions, final))


@pytest.mark.parametrize("name", ["G0", "G1c", "G-single", "G2"])
def test_cycles_are_told_apart(name: str) -> None:
    """Each cycle has its own name and no other."""
    transactions, final = ANOMALIES[name]
    assert names(check(transactions, final)) & {"G0", "G1c", "G-single", "G2"} == {name}


def test_aborted_at_the_end() -> None:
    """An aborted append that nobody read but that is there at the end is found."""
    assert "G1a" in names(check(history((FAIL, (a("x", 1),))), {"x": (1,)}))


def test_a_read_that_changes_inside() -> None:
    """Two reads in one transaction that differ are found."""
    transactions = history((OK, (a("x", 1),)), (OK, (r("x"), r("x", 1))))
    assert "internal" in names(check(transactions, {"x": (1,)}))


def test_longer_cycles() -> None:
    """A cycle over three transactions and three keys is found, and in the length it has."""
    transactions = history((OK, (r("x"), a("y", 1))), (OK, (r("y"), a("z", 2))), (OK, (r("z"), a("x", 3))))
    found = check(transactions, {"x": (3,), "y": (1,), "z": (2,)})
    assert names(found) == {"G2"}
    assert set(found[0].transactions) == {0, 1, 2}


def test_read_only_anomaly() -> None:
    """A reader that alone makes two writers unserializable is part of a cycle."""
    transactions = history(
        (OK, (r("x"), r("y"), a("x", 1))),  # withdraws, on what it found before the deposit
        (OK, (r("y"), a("y", 2))),  # deposits
        (OK, (r("x"), r("y", 2))),  # sees the deposit, not the withdrawal
    )
    final: dict[str, Values] = {"x": (1,), "y": (2,)}
    assert names(check(transactions, final)) == {"G2"}
    assert check(transactions[:2], final) == []


def test_info_counts_once_it_is_seen() -> None:
    """An unknown outcome whose write was read takes part in cycles."""
    transactions = history((INFO, (a("x", 1), a("y", 1))), (OK, (r("x"), r("y", 1))))
    assert "G-single" in names(check(transactions, {"x": (1,), "y": (1,)}))


def test_real_time() -> None:
    """A read of the past is serializable, and found only with real-time edges."""
    transactions = [Transaction(0, OK, (a("x", 1),), 0, 1), Transaction(1, OK, (r("x"),), 2, 3)]
    assert check(transactions, {"x": (1,)}) == []
    assert names(check(transactions, {"x": (1,)}, real_time=True)) == {"G-single-real-time"}
    together = [Transaction(0, OK, (a("x", 1),), 0, 1), Transaction(1, OK, (r("x"),), 0.5, 3)]
    assert check(together, {"x": (1,)}, real_time=True) == []


def test_real_time_through_others() -> None:
    """Real-time order is found across transactions that lie between."""
    transactions = [
        Transaction(0, OK, (a("x", 1),), 0, 1),
        Transaction(1, OK, (a("y", 1),), 2, 3),
        Transaction(2, OK, (a("z", 1),), 4, 5),
        Transaction(3, OK, (r("x"),), 6, 7),
    ]
    found = names(check(transactions, {"x": (1,), "y": (1,), "z": (1,)}, real_time=True))
    assert found == {"G-single-real-time"}
