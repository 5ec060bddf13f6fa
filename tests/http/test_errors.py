"""What went wrong, in the words of the contract: 400 for what is no statement, 200 for what the engine refused."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.cases import each_of
from tests.needs import by_words, needs
from tests.service import Service, Sql

UNASKED_S = 25.0
"""Before the service ends by itself what names no time limit."""


@pytest.fixture(scope="module")
def sql(service: Service) -> Iterator[Sql]:
    """One client for the whole module: making one costs more than most of these tests."""
    with service.client() as client:
        yield Sql(client)


@pytest.fixture(autouse=True)
def scratch(sql: Sql) -> Iterator[None]:
    """A schema of its own for every test."""
    sql("drop schema if exists scratch cascade")
    sql("create schema scratch")
    yield
    sql("drop schema scratch cascade")


def refused(sql: Sql, statement: str, **more: Any) -> dict[str, Any]:
    """The error of an answer that must be 400."""
    answer = sql.answer(statement, **more)
    body = answer.json()
    assert answer.status_code == 400, body
    assert body["success"] is False
    assert body["request_id"] == answer.headers["X-Request-Id"]
    error: dict[str, Any] = body["error"]
    return error


# -- 400 ---------------------------------------------------------------------------------------------------------


@each_of(
    ("statement", "position"),
    [
        ("selec 1", 1),
        ("select 1 from", 14),
        ("select 'é€😀', 1 from", 21),
        ("-- é\nselect )", 13),
        ("insert into", 12),
        ("select 'open", 8),
        ("select set_config('a.b', 'c', false) frm x y", 42),
        pytest.param("do $$ begin", 4, marks=needs("do_block")),
    ],
)
def test_a_parse_error_is_400_with_its_position(sql: Sql, statement: str, position: int) -> None:
    """Positions count characters from 1, whatever each takes in UTF-8, and whichever way the statement would run."""
    error = refused(sql, statement)
    assert error["code"] == "parse_error"
    assert error["sqlstate"] == "42601"
    assert error["position"] == position


@each_of(
    "statement",
    [
        "select 1; select 2",
        "select 1; commit",
        "select set_config('a.b', 'c', false); select 2",
        "create table scratch.t (a int); drop table scratch.t",
        pytest.param("do $$ begin null; end $$; select 1", marks=needs("do_block")),
        "(select 1); (select 2)",
        "/*+ STREAM */ select 1; select 2",
    ],
)
def test_two_statements_are_400(sql: Sql, statement: str) -> None:
    """Exactly one statement is taken, and neither of two is run."""
    error = refused(sql, statement)
    assert error["code"] == "multiple_statements"
    assert sql.value("select to_regclass('scratch.t') is null") is True


@each_of(
    "statement",
    [
        "BEGIN", "begin work", "START TRANSACTION", "COMMIT", "commit and chain", "END", "ROLLBACK", "ABORT", "abort;",
        "SAVEPOINT a", "RELEASE SAVEPOINT a", "RELEASE a", "ROLLBACK TO SAVEPOINT a",
        "PREPARE TRANSACTION 'x'", "prepare/**/transaction 'x'", "COMMIT PREPARED 'x'", "ROLLBACK PREPARED 'x'",
        ";COMMIT", " ; ; COMMIT", "/* /* */ */ ;; ROLLBACK", "\x0bBEGIN", "\fBEGIN", "-- comment\nCOMMIT",
        "-- c\rCOMMIT", "/* ' */ COMMIT", "COMMIT--", "commit/**/", "CoMmIt", "/*+ STREAM */ commit",
        "SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "set\x0btransaction read write",
        "SET/**/TRANSACTION READ WRITE", "SET LOCAL TRANSACTION READ WRITE", "set -- c\n transaction snapshot 'x'",
        "SET transaction_isolation = 'read committed'", "SET LOCAL transaction_isolation TO 'read committed'",
        "SET SESSION transaction_isolation='read committed'", "SET transaction_isolation='read committed'",
        'SET "transaction_read_only" = off', 'SET "Transaction_Read_Only"=off', 'set"transaction_read_only"=off',
        'SET "transaction_read_only"TO off', "SET LOCAL\"transaction_isolation\"='read committed'",
        "SET SESSION\"transaction_isolation\"='read committed'", "set local/**/transaction_deferrable = on",
        "SET U&\"transaction\\005fisolation\" = 'read committed'", 'RESET transaction_isolation',
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
        "set session/**/characteristics as transaction read only",
        "SET client_encoding = 'latin1'", "SET CLIENT_ENCODING TO latin1", 'SET "client_encoding"=latin1',
        'SET "client_encoding"TO latin1', "SET NAMES 'latin1'", "set names'latin1'", "SET LOCAL client_encoding=latin1",
        "RESET client_encoding", 'SET U&"client_encoding" = latin1',
    ],
)  # fmt: skip
def test_transaction_control_is_400_in_every_disguise(sql: Sql, statement: str) -> None:
    """The service controls the transaction and the wire; the hint shows where several statements go."""
    error = refused(sql, statement)
    assert error["code"] == "transaction_control"
    assert "/v1/transaction" in error["hint"]


@each_of(
    "statement",
    [
        "PREPARE x AS select 1",
        "prepare transactions as select 1",
        "SET timezone TO 'UTC'",
        "SET LOCAL timezone = 'UTC'",
        "SET default_transaction_isolation = 'serializable'",
        "SET SESSION AUTHORIZATION DEFAULT",
        "SET scratch.transaction_isolation = 'x'",
        "RESET ALL",
        "SHOW transaction_isolation",
        "select 1 as commit",
        "select 'begin'",
        'select 1 as "rollback"',
        "select 'BEGIN; COMMIT'",
        "with commit as (select 1) select * from commit",
        "values ('commit')",
        "select $$ commit $$",
        "select 1 -- ; commit",
        "select 1; -- commit",
        "/* commit */ select 1",
        ";select 1;;",
        "deallocate all",
        "discard all",
    ],
)
def test_harmless_neighbours_of_transaction_control_are_accepted(sql: Sql, statement: str) -> None:
    """Only a statement that controls the transaction is refused, not one that mentions it."""
    sql(statement)


@pytest.mark.parametrize(
    "statement", ["copy scratch.t from stdin", "copy scratch.t to stdout", "COPY (select 1) TO STDOUT"]
)
def test_copy_is_refused_again_and_again_without_harm(service: Service, sql: Sql, statement: str) -> None:
    """More often than the pool has connections, while another request runs undisturbed."""
    sql("create table scratch.t (a int)")
    with ThreadPoolExecutor(1) as threads, service.client() as other:
        slow = threads.submit(Sql(other).value, "select 7 from pg_sleep(0.7)")
        for _ in range(20):
            error = refused(sql, statement)
            assert error["code"] == "copy_not_supported"
            assert error["hint"]
        assert slow.result() == 7
    assert sql.value("select count(*) from scratch.t") == 0


def test_copy_as_a_stream_is_refused(sql: Sql) -> None:
    """Whether or not the stream has begun, it ends with the refusal."""
    text = sql.answer("/*+ STREAM */ copy (select 1) to stdout").text
    assert '"code":"copy_not_supported"' in text
    assert "event: done" not in text


# -- 200 and no success ------------------------------------------------------------------------------------------


def test_a_failure_of_the_engine_has_the_shape_of_an_answer(sql: Sql) -> None:
    """Empty columns and rows, timings, and the whole error with the request's id."""
    answer = sql.answer("select 1/0")
    body = answer.json()
    assert answer.status_code == 200
    assert body["success"] is False
    assert (body["columns"], body["rows"], body["affected_rows"]) == ([], [], 0)
    assert 0 < body["timings"]["exec_us"] <= body["timings"]["total_us"]
    assert body["request_id"] == answer.headers["X-Request-Id"]
    assert body["error"]["sqlstate"] == "22012"
    assert body["error"]["message"] == "division by zero"
    assert set(body["error"]) == {
        "code", "message", "sqlstate", "position", "hint", "detail", "statement", "retryable"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("statement", "sqlstate", "position"),
    [
        pytest.param("select * from scratch.nowhere", "42P01", 15, marks=needs("positions")),
        pytest.param("select 'é', nothing", "42703", 13, marks=needs("positions")),
        pytest.param("select nosuch(1)", "42883", 8, marks=needs("positions")),
        *by_words(
            [
                ("select to_tsquery('a b')", "42601", None),
                ("select jsonb_path_query('1', ('$' || '.')::jsonpath)", "42601", None),
                ("do $$ begin execute 'selec 1'; end $$", "42601", None),
                ("select set_config('a.b', 'c', false), 1/0", "22012", None),
                ("create table scratch.one (a int)", "42P07", None),
                ("drop role postgres", "42501", None),
                ("select pg_read_file('/etc/passwd')", "42501", None),
            ]
        ),
    ],
)
def test_what_the_engine_refuses_is_200_with_its_sqlstate(
    sql: Sql, statement: str, sqlstate: str, position: int | None
) -> None:
    """Also where the engine says 42601 of something that is not the statement's own text."""
    sql("create table scratch.one (a int)")
    answer = sql.answer(statement)
    body = answer.json()
    assert answer.status_code == 200, body
    assert body["success"] is False
    assert body["error"]["sqlstate"] == sqlstate
    assert body["error"]["position"] == position


@pytest.mark.parametrize(
    "statement",
    [
        "select set_config('client_encoding', 'latin1', false), 'é' as v",
        "select scratch.latin1(), 'é' as v",
        "select scratch.latin1(), 'é' as v from generate_series(1, 3)",
        "insert into scratch.one values (1) returning scratch.latin1(), 'é' as v",
    ],
)
@needs("client_encodings", "function_plpgsql")
def test_a_change_of_the_wires_encoding_does_not_cost_the_answer(sql: Sql, statement: str) -> None:
    """A function can do what SET may not; the answer is still definite, and its text is right if there is any."""
    sql("create table scratch.one (a int)")
    change = "perform set_config('client_encoding', 'latin1', false)"
    sql(f"create function scratch.latin1() returns int language plpgsql as $$ begin {change}; return 1; end $$")
    answer = sql.answer(statement)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    values = {row["v"] for row in body["rows"]}
    assert values == {"é"} or (not values and (not body["success"] or body["truncated"])), body


@each_of(
    ("statement", "sqlstate"),
    [
        ("(select 1/0)", "22012"),
        ("select 1/0, set_config('a.b', 'c', false)", "22012"),
        pytest.param("values (setseed(0.5), 'x'::int)", "22P02", marks=needs("setseed")),
        pytest.param("select set_config('role', 'nobody_at_all', false)", "22023", marks=needs("role_codes")),
    ],
)
def test_an_error_is_the_statements_own(sql: Sql, read_sql: Sql, statement: str, sqlstate: str) -> None:
    """However the service runs a statement, for whichever key, what it reports is not an error of its own making."""
    assert sql.fails(statement)["sqlstate"] == sqlstate
    assert read_sql.fails(statement)["sqlstate"] == sqlstate


def test_a_unique_violation_says_which_value(sql: Sql) -> None:
    """Detail comes from the engine."""
    sql("create table scratch.u (a int primary key)")
    sql("insert into scratch.u values (1)")
    error = sql.fails("insert into scratch.u values (1)")
    assert error["code"] == "sql_error"
    assert error["sqlstate"] == "23505"
    assert error["detail"] == "Key (a)=(1) already exists."


@needs("do_block")
def test_a_hint_of_the_engine_is_passed_on(sql: Sql) -> None:
    """As a user's own RAISE gives it."""
    raised = "raise exception 'no é' using errcode = 'QG001', detail = 'some', hint = 'try é'"
    error = sql.fails(f"do $$ begin {raised}; end $$")
    assert (error["sqlstate"], error["message"], error["detail"], error["hint"]) == ("QG001", "no é", "some", "try é")


@pytest.mark.parametrize(
    "statement",
    by_words(
        [
            "select pg_sleep(600)",
            "do $$ begin perform pg_sleep(600); end $$",
            "select set_config('a.b', 'c', false), pg_sleep(600)",
            "(select pg_sleep(600))",
            "with recursive r as (select 1 union all select 1 from r) select count(*) from r",
            "insert into scratch.slow select 1 from pg_sleep(600)",
        ]
    ),
)
def test_a_statement_over_its_time_is_cancelled(sql: Sql, statement: str) -> None:
    """Promptly, with 57014, nothing applied, whichever way the statement is run, and the next one works."""
    sql("create table scratch.slow (a int)")
    started = time.monotonic()
    error = sql.fails(statement, timeout_ms=200)
    assert time.monotonic() - started < UNASKED_S
    assert error["code"] == "timeout"
    assert error["sqlstate"] == "57014"
    assert sql.value("select count(*) from scratch.slow") == 0


@needs("do_block")
def test_a_statement_that_catches_its_cancellation_still_ends(sql: Sql) -> None:
    """What cannot be cancelled is ended from outside; the engine is free of it soon after the answer."""
    started = time.monotonic()
    stubborn = "loop begin perform pg_sleep(30); exception when query_canceled then null; end; end loop"
    answer = sql.answer(f"do $$ begin {stubborn}; end $$", timeout_ms=200)
    assert time.monotonic() - started < UNASKED_S
    assert answer.status_code in (200, 503)
    assert answer.json()["success"] is False
    assert sql.value("select 1") == 1


@pytest.mark.parametrize("body", ["commit", "rollback", "perform 1; commit; perform 2"])
@pytest.mark.parametrize("form", ["do $$ begin {}; end $$", "call scratch.p()"])
@needs("procedure", "do_block")
def test_code_cannot_end_its_transaction(sql: Sql, form: str, body: str) -> None:
    """CALL and DO run inside a block of the service's, where COMMIT and ROLLBACK are refused."""
    sql(f"create procedure scratch.p() language plpgsql as $$ begin {body}; end $$")
    assert sql.fails(form.format(body))["sqlstate"] == "2D000"


@needs("do_block")
def test_notices_are_passed_on_up_to_a_hundred(sql: Sql) -> None:
    """A flood of them is cut, in order."""
    noisy = "do $$ begin for i in 1..{} loop raise notice 'note %', i; end loop; end $$"
    assert [n["message"] for n in sql(noisy.format(3))["notices"]] == ["note 1", "note 2", "note 3"]
    many = sql(noisy.format(150))["notices"]
    assert [n["message"] for n in many] == [f"note {i}" for i in range(1, 101)]
    assert "notices" not in sql("select 1")


@needs("do_block")
def test_notices_of_a_failure_are_passed_on(sql: Sql) -> None:
    """What was said before the error helps to understand it."""
    body = sql.answer("do $$ begin raise warning 'almost'; raise exception 'no'; end $$").json()
    assert body["success"] is False
    assert [(n["severity"], n["message"]) for n in body["notices"]] == [("WARNING", "almost")]


@needs("listen")
def test_listen_is_accepted(sql: Sql) -> None:
    """It has no effect beyond the request."""
    sql("listen something")
    sql("notify something, 'x'")
    sql("unlisten *")
    assert sql.rows("select * from pg_listening_channels()") == []


# -- conflicts ---------------------------------------------------------------------------------------------------


@needs("do_block")
def test_a_conflict_that_outlasts_the_retries_says_so(sql: Sql) -> None:
    """It is 200 with SQLSTATE 40001 and may be sent again."""
    error = sql.fails("do $$ begin raise serialization_failure; end $$")
    assert (error["code"], error["sqlstate"], error["retryable"]) == ("conflict", "40001", True)


def test_a_failing_body_is_json_of_utf_8(sql: Sql) -> None:
    """Error texts hold the client's own characters unharmed."""
    answer = sql.answer('select 1 from "täble→😀"')
    assert json.loads(answer.content.decode())["error"]["message"] == 'relation "täble→😀" does not exist'
