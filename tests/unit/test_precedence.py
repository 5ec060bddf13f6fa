"""Who gives way first, in every state of a connection."""

from itertools import product
from random import Random

import pytest

from tuplegate.http.sharing.precedence import Standing, Waiting

PLACES, SHARE = 100, 25

KNOWN = {
    Waiting.END: True,
    Waiting.FIRST_REQUEST: True,
    Waiting.NEXT_REQUEST: True,
    Waiting.BODY: False,
    Waiting.MESSAGES: False,
    Waiting.READER: False,
    Waiting.HANDLER: False,
}
"""Whether a connection of an organization within its share gives way. A new state is decided on here."""


@pytest.mark.parametrize("waiting", Waiting)
def test_a_stranger_gives_way_in_every_state(waiting: Waiting) -> None:
    for is_new, held in product((False, True), (1, PLACES)):
        assert Standing("address a", False, waiting, is_new, 0.0).gives_way(held, PLACES)


@pytest.mark.parametrize("waiting", Waiting)
def test_an_organization_gives_way_as_the_table_says(waiting: Waiting) -> None:
    standing = Standing("an organization", True, waiting, False, 0.0)
    assert standing.gives_way(SHARE, PLACES) is KNOWN[waiting]
    waits_for_client = waiting in (Waiting.BODY, Waiting.READER)
    assert standing.gives_way(SHARE + 1, PLACES) is (KNOWN[waiting] or waits_for_client)


@pytest.mark.parametrize("is_known", [False, True])
def test_of_one_owner_the_order_is_total(is_known: bool) -> None:
    """New ones last, then by state, then whoever has waited longest first. Of new strangers see below."""
    ordered = [
        Standing("a", is_known, waiting, is_new, since)
        for is_new, waiting, since in product((False, True), Waiting, (1.0, 2.0))
        if is_known or not is_new or waiting is not Waiting.HANDLER
    ]
    assert sorted(Random(7).sample(ordered, len(ordered)), key=lambda one: one.order) == ordered
    assert len({one.order for one in ordered}) == len(ordered)


def test_who_has_just_connected_does_not_go_before_others_of_its_address() -> None:
    """A flood whose connections all wait for a look-up does not push out the next client behind the same proxy."""
    flood = [Standing("a", False, Waiting.HANDLER, True, float(opened)) for opened in range(5)]
    arrived = Standing("a", False, Waiting.FIRST_REQUEST, True, 5.0)
    assert max(*flood, arrived, key=lambda one: one.order) is arrived


def test_the_states_are_in_the_order_in_which_they_lose_little() -> None:
    assert list(Waiting) == [
        Waiting.END,
        Waiting.FIRST_REQUEST,
        Waiting.NEXT_REQUEST,
        Waiting.BODY,
        Waiting.MESSAGES,
        Waiting.READER,
        Waiting.HANDLER,
    ]
