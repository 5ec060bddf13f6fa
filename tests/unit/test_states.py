"""The tables of lives are whole: every state can be reached, and what ends stays so."""

import pytest

from tuplegate.access.states import DATABASE, KEY, LIVES, SESSION, IllegalTransition, Life


@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.name)
def test_every_state_can_be_reached(life: Life) -> None:
    """From the first one."""
    reached = {life.first}
    for _ in life.states:
        reached |= {after for (state, _), after in life.transitions.items() if state in reached}
    assert reached == set(life.states)


@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.name)
def test_what_is_not_in_the_table_cannot_happen(life: Life) -> None:
    """For every pair of a state and an event."""
    events = {event for _, event in life.transitions}
    for state in life.states:
        for event in events:
            if (state, event) in life.transitions:
                assert life.after(state, event) == life.transitions[state, event]
            else:
                with pytest.raises(IllegalTransition):
                    life.after(state, event)


@pytest.mark.parametrize(
    ("life", "end"), [(SESSION, "destroyed"), (SESSION, "expired"), (KEY, "revoked"), (DATABASE, "gone")]
)
def test_an_end_is_an_end(life: Life, end: str) -> None:
    """Nothing leads out of it."""
    assert [event for (state, event) in life.transitions if state == end] == []
