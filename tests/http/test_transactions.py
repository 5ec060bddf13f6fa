"""`POST /v1/transaction`: several statements as one, all of them or none, serializable, committed in two phases."""

import http.client
import json
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from tests.activity import Activity
from tests.cases import each_of
from tests.needs import Abilities, by_words, needs
from tests.service import Service, Sql
from tests.waiting import eventually

JSON = {"Content-Type": "application/json"}
UNASKED_S = 25.0
"""Before the service ends by itself what names no time limit."""

Row = dict[str, Any]


class Transactions:
    """`POST /v1/transaction` in one call."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def answer(self, *statements: Any, **more: Any) -> httpx.Response:
        return self.client.post("/v1/transaction", json={"statements": list(statements), **more})

    def __call__(self, *statements: Any, **more: Any) -> Row:
        """The body of an answer that must be a success."""
        answer = self.answer(*statements, **more)
        body: Row = answer.json()
        assert answer.status_code == 200, body
        assert body["success"] is True, body
        return body

    def fails(self, *statements: Any, status: int = 200, **more: Any) -> Row:
        """The error of an answer that must be no success."""
        answer = self.answer(*statements, **more)
        body = answer.json()
        assert answer.status_code == status, body
        assert body["success"] is False, body
        error: Row = body["error"]
        return error

    def value(self, *statements: Any, **more: Any) -> Any:
        """The one value of the last statement."""
        return self(*statements, row_mode="arrays", **more)["results"][-1]["rows"][0][0]


@pytest.fixture
def run(client: httpx.Client) -> Transactions:
    return Transactions(client)


@pytest.fixture
def read_run(service: Service, read_key: str) -> Iterator[Transactions]:
    with service.client(read_key) as opened:
        yield Transactions(opened)


@pytest.fixture
def t(sql: Sql, service: Service) -> Iterator[str]:
    """An empty table `(a int primary key, b text)`; at the end nothing may be left prepared."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    sql(f"create table {name} (a int primary key, b text)")
    yield name
    assert as_superuser(service, "select count(*) from pg_prepared_xacts") == 0
    sql(f"drop table {name} cascade")


def as_superuser(service: Service, sql: str) -> Any:
    with psycopg.connect(service.server_of()) as connection:
        row = connection.execute(sql.encode()).fetchone()
    assert row is not None
    return row[0]


def count(sql: Sql, table: str) -> int:
    number: int = sql.value(f"select count(*) from {table}")
    return number


# -- what is answered -----------------------------------------------------------------------------------------------


def test_results_in_order(run: Transactions, t: str, commit: str) -> None:
    """Strings and objects run in the given order, each result has its shape, and each statement sees those before."""
    body = run(
        f"insert into {t} values (1, 'x'), (2, 'y')",
        {"sql": f"select * from {t} where a >= $1 order by a", "params": [2]},
        {"sql": f"update {t} set b = $1", "params": ["z"]},
        {"sql": f"delete from {t} where a = 1 returning b"},
        f"select b from {t}",
    )
    assert body["results"] == [
        {"columns": [], "types": [], "rows": [], "affected_rows": 2},
        {"columns": ["a", "b"], "types": ["int4", "text"], "rows": [{"a": 2, "b": "y"}], "affected_rows": 0},
        {"columns": [], "types": [], "rows": [], "affected_rows": 2},
        {"columns": ["b"], "types": ["text"], "rows": [{"b": "z"}], "affected_rows": 1},
        {"columns": ["b"], "types": ["text"], "rows": [{"b": "z"}], "affected_rows": 0},
    ]
    assert body["affected_rows"] == 5
    assert body["commit"] == commit
    assert body["attempts"] == 1
    assert body["transaction_id"].startswith("txn_")
    assert set(body["timings"]) == {"total_us", "exec_us"}
    assert 0 < body["timings"]["exec_us"] <= body["timings"]["total_us"]


def test_shapes(run: Transactions) -> None:
    """`row_mode` and `big_numbers` hold for every statement."""
    body = run(
        "select 1::int4 as a, 9007199254740993 as b", "select 2.50 as c", row_mode="arrays", big_numbers="string"
    )
    assert [result["rows"] for result in body["results"]] == [[[1, "9007199254740993"]], [["2.50"]]]


@needs("temporary_table")
def test_types_made_inside(run: Transactions) -> None:
    """A type that the transaction itself makes is read and written like any other."""
    body = run(
        "create type pg_temp.mood as enum ('sad', 'ok')",
        "create temp table moods (m pg_temp.mood[])",
        {"sql": "insert into moods values ($1)", "params": [["ok", "sad"]]},
        "select m, m[1] as first from moods",
    )
    assert body["results"][3]["rows"] == [{"m": ["ok", "sad"], "first": "ok"}]


def test_many_statements(run: Transactions, sql: Sql, t: str) -> None:
    """1,000 statements are one transaction."""
    body = run(*({"sql": f"insert into {t} values ($1, $2)", "params": [i, "x" * i]} for i in range(1000)))
    assert len(body["results"]) == 1000
    assert body["affected_rows"] == 1000
    assert sql.value(f"select sum(length(b)) from {t}") == 499500


def test_size_of_the_answer(run: Transactions, sql: Sql, t: str) -> None:
    """The limit of a buffered answer is the answer's: results are cut when they are over it together, writes stand."""
    chunk = "select repeat('x', 1000000) as x from generate_series(1, 30)"
    answer = run.answer(f"insert into {t} values (1)", chunk, chunk, chunk)
    assert len(answer.content) <= 64 * 2**20 + 2**16
    body = answer.json()
    assert body["results"][3]["truncated"] is True
    assert "truncated" not in body["results"][1]
    assert count(sql, t) == 1


# -- atomicity ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failing", "sqlstate"),
    [
        *by_words(
            [
                ("select 1 / 0", "22012"),
                ("insert into {t} values (1)", "23505"),
                ("select * from nowhere", "42P01"),
                ("do $$ begin insert into {t} values (7); raise exception 'no'; end $$", "P0001"),
                ("do $$ begin insert into {t} values (7); commit; end $$", "2D000"),
                ("do $$ begin insert into {t} values (7); rollback; end $$", "2D000"),
                ("call {t}_commits()", "2D000"),
            ]
        ),
        pytest.param("select {t}_raises()", "P0001", marks=needs("function_plpgsql")),
        pytest.param("vacuum", "25001", marks=needs("vacuum")),
        pytest.param("create index concurrently on {t} (b)", "25001", marks=needs("index_concurrently")),
        pytest.param("create database other", "25001", marks=needs("postgresql")),
    ],
)
def test_error_in_the_middle(run: Transactions, sql: Sql, t: str, failing: str, sqlstate: str) -> None:
    """An error of one statement names it, and nothing of the transaction was applied, tables included."""
    if "commits" in failing:
        sql(f"create procedure {t}_commits() language plpgsql as $$ begin insert into {t} values (8); commit; end $$")
    if "raises" in failing:
        sql(
            f"create function {t}_raises() returns int language plpgsql as"
            f" $$ begin insert into {t} values (9); raise exception 'no'; end $$"
        )
    try:
        answer = run.answer(
            f"insert into {t} values (1)",
            f"create table {t}_made (a int)",
            f"alter table {t} add column c int",
            failing.format(t=t),
            f"insert into {t} values (2)",
        )
        body = answer.json()
        assert answer.status_code == 200, body
        assert body["success"] is False
        assert body["error"]["sqlstate"] == sqlstate
        assert body["error"]["statement"] == 3
        assert body["error"]["retryable"] is False
        assert body["results"] == []
        assert body["affected_rows"] == 0
        assert sql(f"table {t}")["columns"] == ["a", "b"]
        assert count(sql, t) == 0
        assert sql.value("select to_regclass($1)", [f"{t}_made"]) is None
    finally:
        sql(f"drop procedure if exists {t}_commits") if "commits" in failing else None
        sql(f"drop function if exists {t}_raises") if "raises" in failing else None


@each_of(
    ("index", "failing", "code"),
    [
        (0, "selec 1", "parse_error"),
        (1, "insert into {t} valuess (5)", "parse_error"),
        (2, "select 1; select 2", "multiple_statements"),
        (1, {"sql": "select $1::int", "params": [1, 2]}, "parameter_mismatch"),
        (1, {"sql": "select $1::int", "params": []}, "parameter_mismatch"),
        (2, {"sql": "select $1::int[]", "params": [[1], 2]}, "parameter_mismatch"),
    ],
)
def test_parse_error(run: Transactions, sql: Sql, t: str, index: int, failing: Any, code: str) -> None:
    """What the engine cannot parse is 400 with the statement's index, and nothing was applied."""
    statements: list[Any] = [f"insert into {t} values ({i})" for i in range(4)]
    statements[index] = failing.format(t=t) if isinstance(failing, str) else failing
    error = run.fails(*statements, status=400)
    assert error["code"] == code
    assert error["statement"] == index
    if code == "parse_error":
        assert error["sqlstate"] == "42601"
        assert error["position"] > 0
    assert count(sql, t) == 0


@pytest.mark.parametrize("copy", ["copy {t} from stdin", "copy {t} to stdout", "copy (select 1) to stdout"])
def test_copy(run: Transactions, sql: Sql, t: str, copy: str, commit: str) -> None:
    """COPY from or to the client is refused, nothing is applied, and the service goes on."""
    error = run.fails(f"insert into {t} values (1)", copy.format(t=t), f"insert into {t} values (2)", status=400)
    assert error["code"] == "copy_not_supported"
    assert count(sql, t) == 0
    assert run(f"insert into {t} values (3)")["commit"] == commit


@needs("files")
def test_copy_of_files(run: Transactions, sql: Sql, t: str) -> None:
    """COPY of a file of the server is the engine's refusal, and nothing is applied."""
    error = run.fails(f"insert into {t} values (1)", f"copy {t} from '/etc/passwd'")
    assert (error["sqlstate"], error["statement"]) == ("42501", 1)
    assert count(sql, t) == 0


def deferred_trigger(sql: Sql, t: str, body: str) -> None:
    sql(f"create function {t}_late() returns trigger language plpgsql as $$ begin {body}; return null; end $$")
    sql(
        f"create constraint trigger late after insert on {t} deferrable initially deferred"
        f" for each row execute function {t}_late()"
    )


@needs("constraint_trigger")
def test_deferred_trigger_in_time(run: Transactions, sql: Sql, t: str) -> None:
    """The time limit holds for triggers that run at the end as well."""
    deferred_trigger(sql, t, "perform pg_sleep(600)")
    started = time.monotonic()
    error = run.fails(f"insert into {t} values (1)", timeout_ms=400)
    assert error["code"] == "timeout"
    assert time.monotonic() - started < UNASKED_S
    assert count(sql, t) == 0
    sql(f"drop function {t}_late cascade")


@needs("constraint_trigger")
def test_deferred_trigger_writes(run: Transactions, sql: Sql, t: str) -> None:
    """What a trigger writes at the end belongs to the transaction."""
    sql(f"create table {t}_log (a int)")
    deferred_trigger(sql, t, f"insert into {t}_log values (new.a)")
    assert run(f"insert into {t} values (1)", f"select count(*) as n from {t}_log")["results"][1]["rows"] == [{"n": 0}]
    assert count(sql, f"{t}_log") == 1
    sql(f"drop table {t}_log")
    sql(f"drop function {t}_late cascade")


@needs("constraint_trigger")
def test_code_that_says_that_the_engine_is_away(run: Transactions, sql: Sql, t: str) -> None:
    """Within the commit. The connections of these tries are not lost to others."""
    sql(f"create table {t}_log (a int)")
    deferred_trigger(sql, t, f"set constraints all deferred; insert into {t}_log values (1)")
    deferred_trigger(sql, f"{t}_log", "raise exception 'away' using errcode = '57P01'")
    assert run.answer(f"insert into {t} values (1)", timeout_ms=3000).status_code == 503
    sql(f"drop function {t}_late cascade")
    assert run(f"insert into {t} values (2)")["success"]
    assert count(sql, t) == 1
    sql(f"drop table {t}_log")
    sql(f"drop function {t}_log_late cascade")


@needs("do_block")
def test_conflict_that_lasts(run: Transactions, sql: Sql, t: str) -> None:
    """A conflict that every try runs into ends as 40001, retryable, with the number of tries, and nothing applied."""
    body = run.answer(
        f"insert into {t} values (1)", "do $$ begin raise exception 'again' using errcode = '40001'; end $$"
    ).json()
    assert body["success"] is False
    assert (body["error"]["code"], body["error"]["sqlstate"]) == ("conflict", "40001")
    assert body["error"]["retryable"] is True
    assert body["error"]["statement"] == 1
    assert body["attempts"] > 3
    assert count(sql, t) == 0


# -- how it is committed --------------------------------------------------------------------------------------------


def test_read_only(run: Transactions, sql: Sql, t: str, abilities: Abilities) -> None:
    """`read_only` is enforced by the engine, whatever the statement, and there is nothing to commit."""
    assert run(f"select * from {t}", "show transaction_read_only", read_only=True)["commit"] == "read_only"
    for write in (
        f"insert into {t} values (1)",
        f"do $$ begin insert into {t} values (1); end $$",
        f"with x as (insert into {t} values (1) returning a) select * from x",
        f"create table {t}_made (a int)",
        f"select * from {t} for update",
        f"alter table {t} add column c int",
    ):
        if not abilities.can_run(write):
            continue
        error = run.fails("select 1", write, read_only=True)
        assert (error["sqlstate"], error["statement"]) == ("25006", 1)
    assert count(sql, t) == 0


@pytest.mark.parametrize("read_only", [True, False])
@needs("procedure")
def test_procedure_that_commits(run: Transactions, read_run: Transactions, sql: Sql, t: str, read_only: bool) -> None:
    """A procedure that commits on its own is refused, so it can neither write from a read nor apply a half."""
    sql(
        f"create procedure {t}_p() language plpgsql as $$ begin"
        f" commit; insert into {t} values (1); commit; insert into {t} values (2); end $$"
    )
    before = [] if read_only else [f"insert into {t} values (3)"]
    for call in (f"call {t}_p()", f"do $$ begin call {t}_p(); end $$", f"do $$ begin commit; call {t}_p(); end $$"):
        for by in (run, read_run) if read_only else (run,):
            error = by.fails(*before, call, read_only=read_only)
            assert (error["sqlstate"], error["statement"]) == ("2D000", len(before)), error
    assert count(sql, t) == 0
    sql(f"drop procedure {t}_p")


def test_read_key(read_run: Transactions, sql: Sql, t: str) -> None:
    """A read key's transaction reads in one snapshot and can write nothing, also where it says `read_only: false`."""
    body = read_run(f"select count(*) as n from {t}", "select 1 as one", read_only=False)
    assert body["commit"] == "read_only"
    assert body["results"][0]["rows"] == [{"n": 0}]
    error = read_run.fails("select 1", f"insert into {t} values (1)", read_only=False)
    assert error["sqlstate"] in ("25006", "42501")
    assert error["statement"] == 1
    assert count(sql, t) == 0


@pytest.mark.parametrize(
    "unpreparable",
    [
        "create temp table scratch on commit drop as select 1 as a",
        "notify something, 'payload'",
        "declare c cursor with hold for select 1",
        "listen something",
    ],
)
@needs("two_phase_commit")
def test_one_phase(run: Transactions, sql: Sql, t: str, unpreparable: str) -> None:
    """What the engine cannot prepare is committed in one phase, applied once, and says so; its outcome is knowable."""
    sql(f"create sequence {t}_s")
    body = run(f"insert into {t} values (1)", unpreparable, f"insert into {t} values (2, nextval('{t}_s')::text)")
    assert body["commit"] == "one_phase"
    assert count(sql, t) == 2
    state = run.client.get(f"/v1/transaction/{body['transaction_id']}").json()["state"]
    assert state == "committed"
    sql(f"drop sequence {t}_s")


@needs("deferred", "temporary_table")
def test_one_phase_fails(run: Transactions, sql: Sql, t: str) -> None:
    """A transaction that cannot be prepared is as atomic as any other."""
    sql(f"create table {t}_child (a int references {t} deferrable initially deferred)")
    error = run.fails("create temp table x (a int)", f"insert into {t}_child values (1)")
    assert error["sqlstate"] == "23503"
    error = run.fails("create temp table x (a int)", f"insert into {t} values (1)", "select 1 / 0")
    assert (error["sqlstate"], error["statement"]) == ("22012", 2)
    assert count(sql, t) + count(sql, f"{t}_child") == 0
    sql(f"drop table {t}_child")


@needs("listen")
def test_notify_is_no_read(run: Transactions) -> None:
    """A transaction that only notifies has something to commit, and does not call itself read-only."""
    assert run("notify something")["commit"] == "one_phase"


def test_nothing_prepared_is_left(run: Transactions, service: Service, sql: Sql, t: str) -> None:
    """Nothing stays prepared, whatever became of the transactions."""
    for i in range(20):
        run(f"insert into {t} values ({i})")
        run.fails(f"insert into {t} values ({i})")
    assert as_superuser(service, "select count(*) from pg_prepared_xacts") == 0
    assert count(sql, t) == 20


# -- what must not be changed from inside ---------------------------------------------------------------------------


@each_of(
    "control",
    [
        "begin", "start transaction", "commit", "end", "rollback", "abort", "savepoint a", "release a",
        "rollback to a", "commit and chain", "prepare transaction 'x'", "commit prepared 'x'", "rollback prepared 'x'",
        ";commit", "/* /* */ */ ;; ROLLBACK", "\x0bBEGIN", "-- x\ncommit", "CoMmIt",
        "set transaction isolation level read committed", "set local transaction_isolation = 'read committed'",
        "set session characteristics as transaction isolation level read committed",
        "set transaction_read_only = off", 'set "transaction_isolation" to \'read committed\'',
        "set session transaction_deferrable = on", "reset transaction_isolation", "set client_encoding = latin1",
        "set names 'latin1'",
    ],
)  # fmt: skip
def test_control_is_refused(run: Transactions, sql: Sql, t: str, control: str) -> None:
    """A statement that would end or weaken the transaction is 400 with its index, and nothing runs."""
    error = run.fails(f"insert into {t} values (1)", control, f"insert into {t} values (2)", status=400)
    assert error["code"] == "transaction_control"
    assert error["statement"] == 1
    assert count(sql, t) == 0
    assert run.fails(control, status=400)["statement"] == 0


LEVEL = "select current_setting('transaction_isolation') || ' ' || current_setting('transaction_read_only')"


@each_of(
    "weakening",
    by_words(
        [
            "select set_config('transaction_isolation', 'read committed', {local})",
            "select set_config('transaction_read_only', 'off', {local})",
            "do $$ begin set transaction_isolation = 'read committed'; end $$",
            "do $$ begin set transaction isolation level read committed; end $$",
            "do $$ begin set transaction read write; end $$",
            "do $$ begin set transaction_read_only = off; end $$",
            "do $$ begin execute 'set session characteristics as transaction isolation level read committed'; end $$",
            "do $$ begin commit; set transaction isolation level read committed; end $$",
            "set default_transaction_isolation = 'read committed'",
            "set default_transaction_read_only = off",
            "select set_config('default_transaction_isolation', 'read committed', {local})",
            "reset all",
            "discard all",
            "alter role current_user set default_transaction_isolation = 'read committed'",
            "alter role current_user set default_transaction_read_only = off",
            "alter role current_user set transaction_isolation = 'read committed'",
            "create function pg_temp.weak() returns text language sql"
            " set default_transaction_isolation = 'read committed' as $$ select 'x' $$",
        ]
    ),
)
def test_isolation_holds(run: Transactions, read_run: Transactions, weakening: str) -> None:
    """No statement makes its transaction, or the next one, less than serializable, or a read-only one writing."""
    for statement in dict.fromkeys(weakening.format(local=local) for local in ("true", "false")):
        for runner, read_only, expected in (
            (run, False, "serializable off"),
            (run, True, "serializable on"),
            (read_run, False, "serializable on"),
        ):
            answer = runner.answer(statement, LEVEL, read_only=read_only, row_mode="arrays")
            assert answer.status_code == 200
            body = answer.json()
            if body["success"]:
                assert body["results"][1]["rows"] == [[expected]]
            else:
                assert body["error"]["statement"] == 0, body
            for _ in range(2):
                assert runner.value(LEVEL, read_only=read_only) == expected
                assert runner.value("select 1", LEVEL, read_only=read_only) == expected


def test_write_skew_after_set(run: Transactions, service: Service, sql: Sql, t: str) -> None:
    """Two that each read what the other writes cannot both commit, though both tried to lower their level first."""
    sql(f"insert into {t} values (1, 'on'), (2, 'on')")
    meet = threading.Barrier(2)
    bodies: list[Row] = []

    def work(mine: int) -> None:
        with service.client() as client:
            meet.wait()
            bodies.append(
                Transactions(client)(
                    "set default_transaction_isolation = 'read committed'",
                    "select pg_sleep(0.2)",
                    f"update {t} set b = 'off' where a = {mine} and (select count(*) from {t} where b = 'on') = 2",
                )
            )

    threads = [threading.Thread(target=work, args=(mine,)) for mine in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(bodies) == 2
    assert sql.value(f"select count(*) from {t} where b = 'on'") == 1


VALUES = (
    "select '2026-07-14 23:57:08.741335+02'::timestamptz as tz, '2026-07-14 01:02:03'::timestamp as ts,"
    " '2026-07-14'::date as d, '1 day 2 hours'::interval as i, '\\x00ff'::bytea as x, 0.1::float8 + 0.2 as f,"
    " array['2026-07-14 23:57:08+02'::timestamptz] as a, 'é' as e"
)
ENCODED = {
    "tz": "2026-07-14T21:57:08.741335Z", "ts": "2026-07-14T01:02:03", "d": "2026-07-14", "i": "1 day 02:00:00",
    "x": "\\x00ff", "f": 0.30000000000000004, "a": ["2026-07-14T21:57:08Z"], "e": "é",
}  # fmt: skip


def test_values_are_encoded_as_ever_in_the_next_one(run: Transactions, abilities: Abilities) -> None:
    """What a transaction sets is gone with it, whatever it did to its own values."""
    for change in (
        "set timezone = 'Asia/Kathmandu'", "set time zone interval '-03:30' hour to minute",
        "set datestyle = 'German, DMY'", "set datestyle = 'SQL'", "set intervalstyle = 'iso_8601'",
        "set intervalstyle = 'sql_standard'", "set bytea_output = 'escape'", "set extra_float_digits = 0",
        "set extra_float_digits = -15", "set local datestyle = 'Postgres'",
        "select set_config('datestyle', 'German', false), set_config('timezone', 'Asia/Tokyo', true)",
        "do $$ begin set bytea_output = 'escape'; set intervalstyle = 'postgres_verbose'; end $$",
    ):  # fmt: skip
        if not abilities.can_run(change):
            continue
        assert len(run(change, VALUES)["results"][1]["rows"]) == 1, change
        assert run(VALUES)["results"][0]["rows"] == [ENCODED], change


@pytest.mark.parametrize(
    "change",
    by_words(
        ["do $$ begin set client_encoding = 'latin1'; end $$", "select set_config('client_encoding', 'latin1', false)"]
    ),
)
def test_a_change_of_the_wires_encoding(run: Transactions, change: str) -> None:
    """Statements and parameters behind it are read as UTF-8, as ever."""
    lengths = run(change, "select length('é') as n", {"sql": "select length($1::text) as n", "params": ["ü"]})
    assert [result["rows"] for result in lengths["results"][1:]] == [[{"n": 1}]] * 2


def test_time_zone_keeps_its_meaning(run: Transactions) -> None:
    """A time zone set in the transaction counts where the engine computes with it."""
    day = "select date_trunc('day', '2026-07-14 20:00:00+00'::timestamptz) as day, current_setting('timezone') as zone"
    rows = run("set time zone 'Asia/Tokyo'", day, "set local timezone = 'UTC'", day)["results"]
    assert rows[1]["rows"] == [{"day": "2026-07-14T15:00:00Z", "zone": "Asia/Tokyo"}]
    assert rows[3]["rows"] == [{"day": "2026-07-14T00:00:00Z", "zone": "UTC"}]


def test_stream_hint_is_a_comment(run: Transactions) -> None:
    """The hint for streaming, inside a transaction, changes nothing."""
    answer = run.answer("/*+ STREAM */ select 1 as a", " /*+ STREAM */ select 2 as b")
    assert answer.headers["content-type"] == "application/json"
    assert [result["rows"] for result in answer.json()["results"]] == [[{"a": 1}], [{"b": 2}]]


@needs("temporary_table")
def test_nothing_stays_on_the_connection(run: Transactions, sql: Sql) -> None:
    """Settings, temporary tables and cursors of a transaction are gone with it."""
    run(
        "set search_path = pg_catalog", "create temp table remains (a int)", "set app.owner = 'me'",
        "declare c cursor with hold for select 1", "prepare p as select 1", "set role none",
    )  # fmt: skip
    for _ in range(5):
        assert sql.value("show search_path") == '"$user",public'
        assert sql.value("select to_regclass('remains')") is None
        assert sql.value("select current_setting('app.owner', true)") is None
        assert sql.value("select count(*) from pg_cursors where name <> ''") == 0
        assert sql.value("select count(*) from pg_prepared_statements where name <> ''") == 0


# -- ends ------------------------------------------------------------------------------------------------------------


def test_timeout(run: Transactions, sql: Sql, t: str) -> None:
    """A transaction over its time is 200 with code timeout and the statement's index, and nothing was applied."""
    started = time.monotonic()
    error = run.fails(f"insert into {t} values (1)", "select pg_sleep(600)", timeout_ms=300)
    assert time.monotonic() - started < UNASKED_S
    assert (error["code"], error["sqlstate"], error["statement"]) == ("timeout", "57014", 1)
    assert count(sql, t) == 0
    run(f"insert into {t} values (1)")


def test_client_gone(service: Service, sql: Sql, t: str) -> None:
    """When the client leaves in the middle nothing is applied, and the statement and its connection are gone soon."""
    address = urlsplit(service.url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=10)
    marker = f"select pg_sleep(600) /* {t} */"
    activity = Activity(service)
    body = json.dumps({"statements": [f"insert into {t} values (1)", marker, f"insert into {t} values (2)"]})
    connection.request("POST", "/v1/transaction", body, {**JSON, "Authorization": f"Bearer {service.key}"})
    eventually(lambda: activity.busy == 1)
    connection.close()
    left = time.monotonic()
    eventually(lambda: activity.busy == 0)
    activity.connection.close()
    assert time.monotonic() - left < UNASKED_S
    sql(f"update {t} set b = 'x'", timeout_ms=20_000)  # nobody holds a lock
    assert count(sql, t) == 0


# -- bad input -------------------------------------------------------------------------------------------------------


@each_of(
    "body",
    [
        {}, [], "x", None, 1, {"statements": None}, {"statements": "select 1"}, {"statements": []},
        {"statements": {"sql": "select 1"}}, {"statements": [["insert into {t} values (1)"]]},
        {"statements": ["insert into {t} values (1)", ["select 1"]]}, {"statements": ["insert into {t} values (1)", 5]},
        {"statements": ["insert into {t} values (1)", None]}, {"statements": ["insert into {t} values (1)", True]},
        {"statements": [{"params": [1]}]}, {"statements": [{}]}, {"statements": [{"sql": None}]},
        {"statements": [{"sql": "insert into {t} values (1)", "parms": []}]},
        {"statements": [{"sql": "insert into {t} values (1)", "timeout_ms": 5}]},
        {"statements": [{"sql": "insert into {t} values (1)", "params": {}}]},
        {"statements": [{"sql": "insert into {t} values (1)", "params": "x"}]},
        {"statements": [{"sql": ["insert into {t} values (1)"]}]},
        {"statements": ["insert into {t} values (1)"], "params": [1]},
        {"statements": ["insert into {t} values (1)"], "readonly": True},
        {"statements": ["insert into {t} values (1)"], "max_rows": 1},
        {"statements": ["insert into {t} values (1)"], "isolation": "read committed"},
        {"statements": ["insert into {t} values (1)"], "read_only": "yes"},
        {"statements": ["insert into {t} values (1)"], "read_only": 1},
        {"statements": ["insert into {t} values (1)"], "read_only": None},
        {"statements": ["insert into {t} values (1)"], "timeout_ms": 0},
        {"statements": ["insert into {t} values (1)"], "timeout_ms": -1},
        {"statements": ["insert into {t} values (1)"], "timeout_ms": 1.5},
        {"statements": ["insert into {t} values (1)"], "timeout_ms": "5"},
        {"statements": ["insert into {t} values (1)"], "row_mode": "maps"},
        {"statements": ["insert into {t} values (1)"], "big_numbers": "text"},
        {"statements": ["insert into {t} values (1)"] * 1001},
    ],
)  # fmt: skip
def test_malformed(client: httpx.Client, sql: Sql, t: str, body: Any) -> None:
    """A body that is not what the route takes is 400, and nothing runs."""
    content = json.dumps(body).replace("{t}", t)
    answer = client.post("/v1/transaction", content=content, headers=JSON)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] == "malformed_request"
    assert count(sql, t) == 0


@each_of("empty", ["", " ", ";", "-- nothing", "/* */ ;; ", {"sql": ""}, {"sql": "\n", "params": [1]}])
def test_empty_statement(run: Transactions, sql: Sql, t: str, empty: Any) -> None:
    """An empty statement among others is 400 with its index, and nothing runs."""
    error = run.fails(f"insert into {t} values (1)", f"insert into {t} values (2)", empty, status=400)
    assert (error["code"], error["statement"]) == ("empty_statement", 2)
    assert count(sql, t) == 0


@each_of("content", [b"", b"{", b'{"statements":["select 1"]', b"\xff", b'{"statements":["\\ud800"]}'])
def test_not_json(client: httpx.Client, content: bytes) -> None:
    """A body that is no JSON is 400."""
    answer = client.post("/v1/transaction", content=content, headers=JSON)
    assert answer.status_code == 400, answer.text
    assert answer.json()["success"] is False


def test_nul_in_a_statement(run: Transactions, sql: Sql, t: str) -> None:
    """A NUL in a statement is 400 with its index, and nothing runs."""
    error = run.fails(f"insert into {t} values (1)", "select 'a\0b'", status=400)
    assert error["statement"] == 1
    assert count(sql, t) == 0


def test_other_methods_and_types(client: httpx.Client) -> None:
    """The route takes POST of JSON and nothing else."""
    assert client.get("/v1/transaction").status_code == 405
    text = client.post("/v1/transaction", content="select 1", headers={"Content-Type": "text/plain"})
    assert text.status_code == 415
