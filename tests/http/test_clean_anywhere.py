"""A request leaves nothing behind on its connection, on any engine: with the statements that an engine may refuse.

`test_clean_connection.py` and `test_clean_hidden.py` have what is PostgreSQL's own.
"""

import pytest

from tests.http.test_clean_connection import HIDDEN_PLACES, LEFTOVERS, connected, needs_code, one
from tests.service import Sql

__all__ = ["connected", "one"]  # fixtures

PROBE = """
select current_user, coalesce(current_setting('app.tenant', true), '') as custom,
       current_setting('search_path') as path, current_setting('statement_timeout') as timeout,
       current_setting('timezone') as timezone, current_setting('transaction_isolation') as isolation,
       current_setting('transaction_read_only') as read_only,
       current_setting('default_transaction_isolation') as default_isolation,
       current_setting('default_transaction_read_only') as default_read_only,
       current_setting('client_min_messages') as messages, current_setting('bytea_output') as bytea
"""


def test_nothing_is_left_behind(one: Sql) -> None:
    one("create table scratch.t (a int)")
    clean = one.rows(PROBE)
    for name, statement in LEFTOVERS.items():
        if not needs_code(statement):
            one.answer(statement)
            assert one.rows(PROBE) == clean, name


@pytest.mark.parametrize("code", ["set_config('app.tenant', 'acme', false)", "nextval('scratch.s')::text"])
@pytest.mark.parametrize(("making", "use"), HIDDEN_PLACES.values(), ids=HIDDEN_PLACES.keys())
def test_what_is_stored_leaves_nothing(one: Sql, making: list[str], use: str, code: str) -> None:
    """An engine that could not be cleaned after it does not store it."""
    one("create sequence scratch.s")
    clean = one.rows(PROBE)
    for statement in making:
        one.answer(statement.format(code))
    for _ in range(2):
        one("select 1")
        one.answer(use)
    assert one.rows(PROBE) == clean
    assert one.fails("select lastval()")["sqlstate"] == "55000"


@pytest.mark.parametrize(
    "statements",
    [
        ["explain analyze create table scratch.h (a int, b text default set_config('app.tenant', 'acme', false))"],
        [
            "prepare p as create table scratch.h (a int, b text default set_config('app.tenant', 'acme', false))",
            "execute p",
        ],
    ],
    ids=["explained", "prepared"],
)
def test_what_is_stored_in_other_ways_leaves_nothing(one: Sql, statements: list[str]) -> None:
    clean = one.rows(PROBE)
    one.client.post("/v1/transaction", json={"statements": statements})
    for _ in range(2):
        one("select 1")
        one.answer("insert into scratch.h (a) values (1)")
    assert one.rows(PROBE) == clean


def test_a_number_that_a_column_draws_is_nothing_to_refuse(one: Sql) -> None:
    one("create sequence scratch.numbers_of_the_function")
    one("create table scratch.of_a_view (a int default nextval('scratch.numbers_of_the_function'), b serial)")
    assert one.value("insert into scratch.of_a_view (a) values (default) returning a") == 1
    assert one.fails("select lastval()")["sqlstate"] == "55000"
