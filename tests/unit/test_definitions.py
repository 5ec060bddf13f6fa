"""Marks of changed definitions, as workers that share them see them: without an engine."""

import pytest

from tuplegate.engine.libpq.commands import Command
from tuplegate.engine.libpq.types import TypeRegistry
from tuplegate.engine.postgres.safety.database_state import DatabaseState
from tuplegate.engine.postgres.safety.definitions import Definitions, Marks


@pytest.fixture
def marks() -> Marks:
    return Marks(2, is_alone=True)


def new_state(marks: Marks, worker: int, database: str = "one") -> DatabaseState:
    return DatabaseState(TypeRegistry({}), Command(b""), Definitions(marks, worker, database))


def ask(state: DatabaseState) -> None:
    """Have the engine answer that there is no code."""
    state.answer(state.ask(), has_code=False, has_lasting_code=False, now=1.0)


def test_a_change_is_seen_by_every_worker(marks: Marks) -> None:
    here, there, elsewhere = new_state(marks, 0), new_state(marks, 1), new_state(marks, 1, "two")
    for state in (here, there, elsewhere):
        ask(state)
        assert not state.has_code
    before, untouched = here.mark, elsewhere.mark
    there.note_change()
    for state in (here, elsewhere):
        state.refresh()
    assert here.has_code
    assert here.mark != before
    assert here.must_ask(0.0)
    assert (elsewhere.has_code, elsewhere.mark) == (False, untouched)


def test_no_answer_counts_while_another_worker_changes_something(marks: Marks) -> None:
    here, there = new_state(marks, 0), new_state(marks, 1)
    there.begin_doubt()
    asked = here.ask()
    ask(here)
    assert here.has_code
    there.end_doubt()
    here.answer(asked, has_code=False, has_lasting_code=False, now=1.0)
    assert here.has_code, "it was asked before the change was done"
    ask(here)
    assert not here.has_code


def test_the_changes_of_a_dead_worker_end_with_its_successor(marks: Marks) -> None:
    here, dead = new_state(marks, 0), new_state(marks, 1)
    dead.begin_doubt()
    asked = here.ask()
    marks.take_over(1)
    here.answer(asked, has_code=False, has_lasting_code=False, now=1.0)
    assert here.has_code, "it was asked while nobody knew what became of the change"
    ask(here)
    assert not here.has_code


def test_nothing_is_kept_where_others_change_definitions(marks: Marks) -> None:
    state = new_state(marks, 0)
    assert state.may_keep
    before = state.mark
    marks.note_others(are_there=True)
    state.refresh()
    assert not state.may_keep
    assert state.mark != before, "what was kept until then is stale"
    marks.note_others(are_there=False)
    ask(state)
    assert state.may_keep


def test_nothing_is_kept_of_what_is_replayed(marks: Marks) -> None:
    state = DatabaseState(TypeRegistry({}), Command(b""), Definitions(marks, 0, "one", are_replayed=True))
    ask(state)
    assert not state.may_keep
