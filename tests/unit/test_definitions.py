"""Versions of changed definitions, as workers that share them see them: without an engine."""

import pytest

from tuplegate.engine.libpq.pools.definitions import Definitions, Versions
from tuplegate.engine.libpq.values.types import TypeRegistry
from tuplegate.engine.postgres.safety.database_state import DatabaseState


@pytest.fixture
def versions() -> Versions:
    return Versions(2, is_alone=True)


def new_state(versions: Versions, worker: int, database: str = "one") -> DatabaseState:
    return DatabaseState(TypeRegistry({}), Definitions(versions, worker, database))


def ask(state: DatabaseState) -> None:
    """Have the engine answer that there is no code."""
    state.answer(state.ask(), has_code=False, has_lasting_code=False, now=1.0)


def test_a_change_is_seen_by_every_worker(versions: Versions) -> None:
    here, there, elsewhere = new_state(versions, 0), new_state(versions, 1), new_state(versions, 1, "two")
    for state in (here, there, elsewhere):
        ask(state)
        assert not state.has_code
    before, untouched = here.version, elsewhere.version
    there.note_change()
    for state in (here, elsewhere):
        state.refresh()
    assert here.has_code
    assert here.version != before
    assert here.must_ask(0.0)
    assert (elsewhere.has_code, elsewhere.version) == (False, untouched)


def test_no_answer_counts_while_another_worker_changes_something(versions: Versions) -> None:
    here, there = new_state(versions, 0), new_state(versions, 1)
    there.begin_doubt()
    asked = here.ask()
    ask(here)
    assert here.has_code
    there.end_doubt()
    here.answer(asked, has_code=False, has_lasting_code=False, now=1.0)
    assert here.has_code, "it was asked before the change was done"
    ask(here)
    assert not here.has_code


def test_the_changes_of_a_dead_worker_end_with_its_successor(versions: Versions) -> None:
    here, dead = new_state(versions, 0), new_state(versions, 1)
    dead.begin_doubt()
    asked = here.ask()
    versions.take_over(1)
    here.answer(asked, has_code=False, has_lasting_code=False, now=1.0)
    assert here.has_code, "it was asked while nobody knew what became of the change"
    ask(here)
    assert not here.has_code


def test_nothing_is_kept_where_others_change_definitions(versions: Versions) -> None:
    state = new_state(versions, 0)
    found = [(state.may_keep, state.version)]
    versions.note_others(are_there=True)
    state.refresh()
    found.append((state.may_keep, state.version))
    versions.note_others(are_there=False)
    ask(state)
    found.append((state.may_keep, state.version))
    assert [may_keep for may_keep, _ in found] == [True, False, True]
    assert found[0][1] != found[1][1], "what was kept until then is stale"


def test_nothing_is_kept_of_what_is_replayed(versions: Versions) -> None:
    state = DatabaseState(TypeRegistry({}), Definitions(versions, 0, "one", are_replayed=True))
    ask(state)
    assert not state.may_keep
