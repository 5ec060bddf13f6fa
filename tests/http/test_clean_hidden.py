"""A request leaves neither locks nor sequences behind where its text does not show that it used any.

The service here has one connection per database and scope, so the next request is sure to get the one before's.
"""

import pytest

from tests.http.test_clean_connection import HIDDEN_PLACES, connected, one
from tests.needs import needs
from tests.service import Sql

pytestmark = needs("postgresql")
__all__ = ["connected", "one"]  # fixtures

HELD = "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
LOCK = "pg_try_advisory_lock(1)::text"


def use_twice(one: Sql, use: str) -> None:
    """After what stored it the connection is cleaned with care; the engine says meanwhile whether that must go on."""
    for _ in range(2):
        one("select 1")
        one(use)


@pytest.mark.parametrize(("making", "use"), HIDDEN_PLACES.values(), ids=HIDDEN_PLACES.keys())
def test_a_lock_taken_where_the_text_does_not_show_it_is_given_back(one: Sql, making: list[str], use: str) -> None:
    """Otherwise it would be held for ever, by a connection that nobody uses."""
    for statement in making:
        one(statement.format(LOCK))
    use_twice(one, use)
    assert one.value(HELD) == 0


@pytest.mark.parametrize(
    ("making", "use"),
    [
        ([], "select operator(scratch.@@@) 1::bigint"),
        ([], "select 1 operator(scratch.@@@) any (array[1, 2])"),
        (["create view scratch.v as select operator(scratch.@@@) 1::bigint as x"], "select * from scratch.v"),
        (
            ["create table scratch.h (a int, b text default operator(scratch.@@@) 1::bigint)"],
            "insert into scratch.h (a) values (1)",
        ),
    ],
    ids=["one side", "two sides", "view", "default"],
)
def test_a_lock_taken_through_an_operator_is_given_back(one: Sql, making: list[str], use: str) -> None:
    """An operator gives a function of the engine's a name that the text does not show."""
    one("create operator scratch.@@@ (rightarg = bigint, function = pg_try_advisory_lock)")
    one("create operator scratch.@@@ (leftarg = int, rightarg = int, function = pg_try_advisory_lock)")
    for statement in making:
        one(statement)
    use_twice(one, use)
    assert one.value(HELD) == 0


@pytest.mark.parametrize(("making", "use"), HIDDEN_PLACES.values(), ids=HIDDEN_PLACES.keys())
def test_a_sequence_moved_where_the_text_does_not_show_it_is_forgotten(one: Sql, making: list[str], use: str) -> None:
    one("create sequence scratch.s")
    for statement in making:
        one(statement.format("nextval('scratch.s')::text"))
    use_twice(one, use)
    assert one.fails("select lastval()")["sqlstate"] == "55000"


def test_a_sequence_moved_through_an_operator_is_forgotten(one: Sql) -> None:
    one("create sequence scratch.s")
    one("create operator scratch.@@@ (rightarg = regclass, function = nextval)")
    use_twice(one, "select operator(scratch.@@@) 'scratch.s'::regclass")
    assert one.fails("select lastval()")["sqlstate"] == "55000"
