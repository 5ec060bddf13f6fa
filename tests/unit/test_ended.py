"""What became of open transactions is remembered for each organization, whatever others do."""

from tuplegate.data_plane.interactive.ended import Answer, Ended, EndedTransactions
from tuplegate.engine import port


def ended(size: int) -> Ended:
    return Ended("key", port.Outcome.COMMITTED, 1, Answer(200, bytes(size)))


def measure(found: Ended | None) -> int:
    """Return the size of the answer that is remembered."""
    assert found is not None
    assert found.outcome is port.Outcome.COMMITTED
    assert found.answer is not None
    return len(found.answer.body)


def test_nobody_is_forgotten_because_of_others() -> None:
    known = EndedTransactions()
    known.put("org_a", "first", ended(1000))
    for number in range(5000):
        known.put("org_b", f"b{number}", ended(1 << 20))
    assert measure(known.find("org_a", "first")) == 1000
    assert measure(known.find("org_b", "b4999")) == 1 << 20
    late = known.find("org_b", "b4100")
    assert late is not None
    assert (late.outcome, late.answer) == (port.Outcome.COMMITTED, None)
    assert known.find("org_b", "b0") is None
    assert known.find("org_b", "first") is None


def test_the_fullest_gives_way() -> None:
    known = EndedTransactions()
    known.put("org_a", "first", ended(1000))
    for organization in range(40):
        for number in range(4):
            known.put(f"org_{organization}", f"{number}", ended(1 << 20))
    answers = [
        found.answer
        for organization in range(40)
        for number in range(4)
        if (found := known.find(f"org_{organization}", f"{number}")) is not None
    ]
    assert len(answers) == 160
    assert sum(len(answer.body) for answer in answers if answer is not None) <= 64 << 20
    assert measure(known.find("org_a", "first")) == 1000


def test_a_new_answer_takes_the_place_of_the_old() -> None:
    known = EndedTransactions()
    for size in (10, 20):
        known.put("org_a", "first", ended(size))
    assert measure(known.find("org_a", "first")) == 20
