"""What is held for clients: a bound in all, and one for each owner."""

import pytest

from tuplegate.http.sharing.memory import STRANGER, Holding, Memory
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
    memory = Memory(6400)
    for owner in "abcd":
        memory.take(owner, 1600)
    with pytest.raises(ServiceError):
        memory.take("e", 101)
    memory.take("e", 100)  # little enough not to be the reason
    memory.give_back("a", 1600)
    memory.take("e", 1400)


def test_strangers_leave_half_of_it_to_those_who_have_a_key() -> None:
    """From however many addresses they come, and whatever others hold."""
    memory = Memory(6400)
    for number in range(32):
        memory.take(f"{STRANGER}10.0.0.{number}", 100)
    with pytest.raises(ServiceError):
        memory.take(f"{STRANGER}10.0.0.99", 1)
    memory.take("one", 1600)
    memory.take("two", 1600)
    memory.give_back(f"{STRANGER}10.0.0.7", 100)
    with pytest.raises(ServiceError):
        memory.take(f"{STRANGER}10.0.0.7", 101)


def test_what_is_there_already_counts_and_stops_what_comes() -> None:
    """An answer that was made is not thrown away, but its owner gets no other before it was taken."""
    memory = Memory(400)
    assert not memory.is_spent("one")
    memory.charge("one", 150)
    assert memory.is_spent("one")
    assert not memory.is_spent("two")
    memory.charge("two", 300)
    assert not memory.is_spent("three"), "it holds nothing"
    memory.charge("three", 50)
    assert memory.is_spent("three"), "all of it is used, and it holds a part of that"
    memory.give_back("three", 50)
    memory.give_back("two", 300)
    memory.give_back("one", 150)
    assert not memory.is_spent("one")
    assert memory.used == 0


def test_a_holding_that_may_not_grow_stays_as_it_was() -> None:
    memory = Memory(400)
    holding = Holding(memory, "one")
    holding.resize(80)
    with pytest.raises(ServiceError):
        holding.resize(101)
    assert (holding.size, memory.used) == (80, 80)
    holding.resize(100)
    holding.resize(30)
    assert (holding.size, memory.used) == (30, 30)
    holding.resize(0)
    assert memory.used == 0


def test_a_holding_that_is_recorded_goes_to_its_new_owner() -> None:
    """An answer is held for an address first, and for an organization once that is known."""
    memory = Memory(400)
    holding = Holding(memory, f"{STRANGER}10.0.0.1")
    holding.record(f"{STRANGER}10.0.0.1", 40)
    holding.record("one", 150)
    assert (holding.size, memory.used) == (150, 150)
    assert memory.is_spent("one")
    memory.take(f"{STRANGER}10.0.0.1", 100)
    holding.resize(0)
    assert memory.used == 100
