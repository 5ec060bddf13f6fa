"""What is held for clients: a bound in all, and one for each owner."""

import pytest

from tuplegate.http.memory import Memory
from tuplegate.protocol.errors import ServiceError


def test_an_owner_has_a_fourth_and_the_others_do_not_notice() -> None:
    memory = Memory(400)
    memory.take("one", 100)
    with pytest.raises(ServiceError) as refused:
        memory.take("one", 1)
    assert refused.value.body.code == "busy"
    memory.take("two", 100)
    memory.give_back("one", 60)
    memory.take("one", 60)


def test_all_together_have_a_bound() -> None:
    memory = Memory(400)
    for owner in "abcd":
        memory.take(owner, 100)
    with pytest.raises(ServiceError):
        memory.take("e", 1)
    memory.give_back("a", 100)
    memory.take("e", 100)


def test_what_is_there_already_counts_and_stops_what_comes() -> None:
    """An answer that was made is not thrown away, but its owner gets no other before it was taken."""
    memory = Memory(400)
    assert not memory.is_spent("one")
    memory.charge("one", 150)
    assert memory.is_spent("one")
    assert not memory.is_spent("two")
    memory.charge("two", 300)
    assert memory.is_spent("three"), "all of it is used"
    memory.give_back("two", 300)
    memory.give_back("one", 150)
    assert not memory.is_spent("one")
    assert memory.used == 0
