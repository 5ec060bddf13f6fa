"""Streams: framing, rows as they are made, exactly one end, and what happens to the engine when the reader does not."""

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, LiteralString
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.activity import Activity
from tests.http.test_open_transactions import revoke
from tests.needs import by_words, needs
from tests.processes import status
from tests.service import Service, Sql, make_key, new_data_dir, remove, start_service
from tests.streams import ENDS, NDJSON, SSE, Event, Stream, tell
from tests.waiting import eventually
from tests.workers import workers

WAIT_S = 25.0
"""Shorter than the statements that are to be cancelled."""
# Far more than the buffers on the way hold. In the list of columns the series is made row by row, in FROM all at once.
LOOKS = 25
"""10 ms or more apart."""
ENDLESS = "select generate_series(1, 100000000) as g, repeat('x', 1000) as filler"


class Watch(Activity):
    """What the connections of the service's tenants are doing, looked at again and again."""

    def settle(self, condition: LiteralString) -> None:
        """Waits until one connection has met the condition at many looks in a row: not only between two portions."""
        looks = 0

        def held() -> bool:
            nonlocal looks
            looks = looks + 1 if self.count(condition) == 1 else 0
            return looks == LOOKS

        self.until(held)

    def until(self, condition: Callable[[], bool], bound_s: float = WAIT_S) -> None:
        eventually(condition, bound_s)


@pytest.fixture
def watch(service: Service) -> Iterator[Watch]:
    opened = Watch(service)
    opened.until(lambda: opened.busy == 0)
    yield opened
    opened.connection.close()


@pytest.fixture(scope="module")
def strict() -> Iterator[Service]:
    """A service with little patience and few connections."""
    data_dir = new_data_dir()
    flags = ("--heartbeat-s", "1", "--reader-timeout-s", "2", "--connections-per-database", "2")
    running = start_service(data_dir, *flags)
    yield running
    assert running.stop() == 0
    remove(data_dir)


@pytest.fixture
def strict_watch(strict: Service) -> Iterator[Watch]:
    opened = Watch(strict)
    opened.until(lambda: opened.busy == 0)
    yield opened
    opened.connection.close()


@pytest.fixture
def table(sql: Sql) -> Iterator[str]:
    """A table `streamed` with three rows."""
    sql("create table streamed (id int primary key, n int)")
    sql("insert into streamed values (1, 10), (2, 20), (3, 30)")
    yield "streamed"
    sql("drop table streamed cascade")


def kinds(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


# -- asking for a stream, and its framing -------------------------------------------------------------------------


@pytest.mark.parametrize("route", ["/v1/query", "/query"])
@pytest.mark.parametrize(
    ("accept", "prefix", "media_type"),
    [
        ("*/*", "/*+ STREAM */ ", SSE),
        ("application/json", " \n\t/*+ STREAM */\n", SSE),
        (SSE, "", SSE),
        (SSE, "/*+ STREAM */ ", SSE),
        (NDJSON, "", NDJSON),
        (NDJSON, "/*+ STREAM */ ", NDJSON),
        (f"{NDJSON};q=0.5, {SSE}", "", SSE),
    ],
)
def test_ways_to_ask(service: Service, route: str, accept: str, prefix: str, media_type: str) -> None:
    """The hint and both media types give a stream on both routes, and Accept chooses its framing."""
    with Stream(service, f"{prefix}select 1 as id, 'a' as name", route=route, accept=accept) as stream:
        assert stream.answer.status == 200
        assert stream.media_type == media_type
        assert stream.answer.getheader("Content-Length") is None
        assert stream.answer.getheader("X-Request-Id", "").startswith("req_")
        assert kinds(stream.rest()) == ["columns", "row", "done"]


@pytest.mark.parametrize("sql", ["select 1 /*+ STREAM */", "/* +STREAM */ select 1", "-- \n/*+ STREAM */ select 1"])
def test_the_hint_stands_first(service: Service, sql: str) -> None:
    """A comment that is not the hint, or is not first, changes nothing: the answer is buffered JSON."""
    with Stream(service, sql, accept="*/*") as stream:
        assert stream.media_type == "application/json"
        assert json.loads(stream.answer.read())["success"] is True


def test_bytes_of_sse(service: Service) -> None:
    """Server-Sent Events are framed byte for byte as the contract shows."""
    with Stream(service, "select 1::int4 as id, 'a' as name union all select 2::int4, 'b' order by 1") as stream:
        text = stream.answer.read().decode()
    head, last = text.split("event: done\n")
    assert head == (
        'event: columns\ndata: {"columns":["id","name"],"types":["int4","text"]}\n\n'
        'event: row\ndata: {"id":1,"name":"a"}\n\n'
        'event: row\ndata: {"id":2,"name":"b"}\n\n'
    )
    assert last.startswith('data: {"success":true,"row_count":2,"affected_rows":0,"timings":{"total_us":')
    assert last.endswith("}}\n\n")
    assert last.count("\n") == 2


def test_bytes_of_ndjson(service: Service) -> None:
    """NDJSON is the same events, one object a line."""
    with Stream(service, "select 1::int4 as id, 'a' as name", accept=NDJSON) as stream:
        lines = stream.answer.read().decode().split("\n")
    assert lines[0] == '{"event":"columns","data":{"columns":["id","name"],"types":["int4","text"]}}'
    assert lines[1] == '{"event":"row","data":{"id":1,"name":"a"}}'
    done = json.loads(lines[2])
    assert done.keys() == {"event", "data"}
    assert done["event"] == "done"
    assert done["data"].keys() == {"success", "row_count", "affected_rows", "timings"}
    assert done["data"]["timings"].keys() == {"total_us", "exec_us"}
    assert lines[3:] == [""]


def test_the_connection_serves_on(service: Service) -> None:
    """After the end of a stream the same connection takes the next request."""
    with Stream(service, "select 1") as stream:
        stream.rest()
        headers = {"Authorization": f"Bearer {service.key}", "Content-Type": "text/plain"}
        stream.connection.request("POST", "/query", b"select 2 as n", headers)
        assert json.loads(stream.connection.getresponse().read())["rows"] == [{"n": 2}]


# -- what can be streamed -----------------------------------------------------------------------------------------

STATEMENTS: list[tuple[str, list[str], list[Any], int]] = [
    ("select g from generate_series(1, 3) g", ["g"], [{"g": 1}, {"g": 2}, {"g": 3}], 0),
    ("(select 1 as n)", ["n"], [{"n": 1}], 0),
    ("select 1 as n;", ["n"], [{"n": 1}], 0),
    ("select 1 as n -- a comment", ["n"], [{"n": 1}], 0),
    ("select 1 as n where false", ["n"], [], 0),
    ("select", [], [{}], 0),
    ("select from generate_series(1, 3)", [], [{}, {}, {}], 0),
    ("select null as a, null::json as b", ["a", "b"], [{"a": None, "b": None}], 0),
    ("values (1), (2)", ["column1"], [{"column1": 1}, {"column1": 2}], 0),
    ("table streamed", ["id", "n"], [{"id": 1, "n": 10}, {"id": 2, "n": 20}, {"id": 3, "n": 30}], 0),
    ("select n from streamed where id = 2 for update", ["n"], [{"n": 20}], 0),
    ("insert into streamed values (4, 40)", [], [], 1),
    ("insert into streamed values (4, 40), (5, 50) returning id", ["id"], [{"id": 4}, {"id": 5}], 2),
    ("update streamed set n = n + 1 where id < 3 returning n", ["n"], [{"n": 11}, {"n": 21}], 2),
    ("update streamed set n = n + 1 where id > 9 returning n", ["n"], [], 0),
    ("delete from streamed where id = 3", [], [], 1),
    ("with d as (delete from streamed where id = 1 returning n) select n from d", ["n"], [{"n": 10}], 0),
    ("with w as (select 7 as v) insert into streamed select v, v from w returning id", ["id"], [{"id": 7}], 1),
    ("merge into streamed using (values (1)) v on id = column1 when matched then delete", [], [], 1),
    ("create table streamed2 as select 1 as a from generate_series(1, 4)", [], [], 4),
    ("select 1 as a into streamed2", [], [], 1),
    ("show timezone", ["TimeZone"], [{"TimeZone": "UTC"}], 0),
    ("explain (costs off) select 1", ["QUERY PLAN"], [{"QUERY PLAN": "Result"}], 0),
    ("do $$ begin insert into streamed values (9, 9); end $$", [], [], 0),
    ("call raised(4)", ["a"], [{"a": 5}], 0),
    ("create index concurrently on streamed (n)", [], [], 0),
    ("vacuum streamed", [], [], 0),
    ("analyze streamed", [], [], 0),
    ("set search_path = pg_catalog", [], [], 0),
    ("listen somewhere", [], [], 0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("statement", "columns", "rows", "affected"), by_words(STATEMENTS), ids=[row[0] for row in STATEMENTS]
)
@pytest.mark.usefixtures("table")
def test_statements(
    service: Service, sql: Sql, statement: str, columns: list[str], rows: list[Any], affected: int
) -> None:
    """Every kind of statement can be streamed, and its count is the one of the buffered answer."""
    calls = statement.startswith("call")
    if calls:
        sql("create or replace procedure raised(inout a int) language plpgsql as $$ begin a := a + 1; end $$")
    try:
        told = tell(service, statement)
        assert told.end == "done", told.last
        assert told.columns is not None
        assert told.columns["columns"] == columns
        assert len(told.columns["types"]) == len(columns)
        assert told.rows == rows
        assert told.last["row_count"] == len(rows)
        assert told.last["affected_rows"] == affected
    finally:
        sql("drop table if exists streamed2")
        if calls:
            sql("drop procedure raised")


@needs("do_block")
def test_notices_come_with_done(service: Service) -> None:
    """What the engine says beside the result is in the last event."""
    told = tell(service, "do $$ begin raise notice 'hello'; end $$")
    assert [notice["message"] for notice in told.last["notices"]] == ["hello"]


def test_row_mode_and_big_numbers(service: Service) -> None:
    """Rows as arrays lose no column, and big numbers can be strings."""
    told = tell(service, "select 1::int4 as a, 2::int8 as a, 3.50 as n", row_mode="arrays", big_numbers="string")
    assert told.rows == [[1, "2", "3.50"]]
    assert tell(service, "select 1 as a, 2 as a").rows == [{"a": 2}]


@pytest.mark.parametrize("accept", [SSE, NDJSON])
def test_line_breaks_stay_inside_values(service: Service, accept: str) -> None:
    """Line breaks in json text, strings and column names never break an event's line."""
    statement = """select '{"a":\n\r\n1}'::json as j, e'x\\ny\\r\\u2028z' as "c\nd", '[1,\n2]'::json as k"""
    told = tell(service, statement, accept=accept)
    assert told.rows == [{"j": {"a": 1}, "c\nd": "x\ny\r\u2028z", "k": [1, 2]}]


def test_types_of_the_tenant(service: Service, sql: Sql) -> None:
    """A type that was just made has its name in `columns` and its values in rows, on both ways through the engine."""
    sql("create type streamed_mood as enum ('sad', 'ok')")
    sql("create table streamed_moods (m streamed_mood)")
    try:
        types = ["public.streamed_mood", "public.streamed_mood[]"]
        told = tell(service, "select 'ok'::streamed_mood as m, '{sad,ok}'::streamed_mood[] as a")
        assert told.columns == {"columns": ["m", "a"], "types": types}
        assert told.rows == [{"m": "ok", "a": ["sad", "ok"]}]
        told = tell(service, "insert into streamed_moods values ('sad') returning m, array[m] as a")
        assert told.columns == {"columns": ["m", "a"], "types": types}
        assert told.rows == [{"m": "sad", "a": ["sad"]}]
    finally:
        sql("drop table streamed_moods")
        sql("drop type streamed_mood")


@needs("client_encodings")
def test_a_change_of_the_wires_encoding(service: Service, sql: Sql) -> None:
    """Rows that cannot be read are left out, and the stream says so; what the statement did stands."""
    change = "set_config('client_encoding', 'latin1', false)"
    sql("create table streamed_encoding (a text)")
    try:
        for statement in (
            f"select {change}, 'é' as v from generate_series(1, 3)",
            f"insert into streamed_encoding values ('é') returning {change}, a",
        ):
            told = tell(service, statement)
            assert told.rows == []
            assert told.end == "done"
            assert told.last["truncated"] is True
            assert [notice["sqlstate"] for notice in told.last["notices"]] == ["22021"]
        assert sql.value("select a from streamed_encoding") == "é"
    finally:
        sql("drop table streamed_encoding")


def test_max_rows(service: Service) -> None:
    """`max_rows` cuts a stream as it cuts a buffered answer, and `done` says so."""
    told = tell(service, "select g from generate_series(1, 10) g", max_rows=3)
    assert [row["g"] for row in told.rows] == [1, 2, 3]
    assert told.end == "done"
    assert told.last["truncated"] is True


# -- rows leave as they are made ----------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", [SSE, NDJSON])
@needs("rows_at_once")
def test_rows_come_one_by_one(service: Service, watch: Watch, accept: str) -> None:
    """Each slow row arrives while the engine is at the next, which would take longer than the reader waits."""
    for slow in (1, 2, 5, 8):
        statement = f"select g, pg_sleep(case when g = {slow} then 25 else 0.2 end) from generate_series(1, 10) g"
        with Stream(service, statement, accept=accept) as stream:
            events = stream.events()
            assert next(events).kind == "columns"
            rows = [next(event for event in events if event.kind == "row") for _ in range(slow - 1)]
            assert watch.busy == 1
        assert [row.data["g"] for row in rows] == list(range(1, slow))
        watch.until(lambda: watch.busy == 0)


def test_slow_then_fast(service: Service) -> None:
    """A result that starts slowly and goes on quickly is delivered whole and in order."""
    told = tell(service, "select g, case when g < 3 then pg_sleep(0.2) end from generate_series(1, 5000) g")
    assert [row["g"] for row in told.rows] == list(range(1, 5001))
    assert told.last["row_count"] == 5000


# -- failures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("/*+ STREAM */ selec 1", "parse_error"),
        ("/*+ STREAM */", "empty_statement"),
        ("/*+ STREAM */ select 1; select 2", "multiple_statements"),
        ("/*+ STREAM */ insert into t values (1); commit", "multiple_statements"),
        ("/*+ STREAM */ commit", "transaction_control"),
        ("/*+ STREAM */ copy (select 1) to stdout", "copy_not_supported"),
        ("/*+ STREAM */ select $1::int", "parameter_mismatch"),
    ],
)
@pytest.mark.parametrize("accept", ["*/*", SSE, NDJSON])
def test_refused_before_it_starts(service: Service, accept: str, statement: str, code: str) -> None:
    """What is 400 for a buffered query is 400 for a stream too, in JSON, and the connection serves on."""
    with Stream(service, statement, accept=accept) as stream:
        assert (stream.answer.status, stream.media_type) == (400, "application/json"), stream.answer.read()
        body = json.loads(stream.answer.read())
        assert body["success"] is False
        assert body["error"]["code"] == code
        assert body["request_id"] == stream.answer.getheader("X-Request-Id")


def test_parse_error_position(service: Service) -> None:
    """The position of a parse error counts in the statement as it was sent."""
    with Stream(service, "/*+ STREAM */ select 1 from from t") as stream:
        error = json.loads(stream.answer.read())["error"]
    assert (error["sqlstate"], error["position"]) == ("42601", 29)


@pytest.mark.parametrize("accept", [SSE, NDJSON])
def test_error_in_mid_stream(service: Service, accept: str) -> None:
    """An error after some rows is one `error` event that counts the rows that were sent."""
    # More rows than an engine holds back before it sends any.
    told = tell(service, "select g, 1/(g-5000) as x from generate_series(1, 5001) g", accept=accept)
    assert told.end == "error"
    assert told.last.keys() == {"success", "rows_sent", "error"}
    assert told.last["success"] is False
    assert told.last["rows_sent"] == len(told.rows)
    assert told.last["error"]["sqlstate"] == "22012"
    assert told.last["error"]["code"] == "sql_error"
    assert told.rows


def test_error_late_in_a_large_result(service: Service) -> None:
    """The count of rows is right when the error comes after thousands of them."""
    told = tell(service, "select g, 1/(g-5000) as x from generate_series(1, 10000) g")
    assert (told.end, told.last["rows_sent"]) == ("error", len(told.rows))
    assert [row["g"] for row in told.rows] == list(range(1, len(told.rows) + 1))


@pytest.mark.parametrize("statement", ["select * from streamed_missing", "insert into streamed_missing values (1)"])
@needs("positions")
def test_error_before_any_row(service: Service, statement: str) -> None:
    """A statement that parses but cannot run gets its one `error` event, with SQLSTATE and position."""
    told = tell(service, statement)
    assert (told.end, told.rows, told.last["rows_sent"]) == ("error", [], 0)
    assert told.last["error"]["sqlstate"] == "42P01"
    assert told.last["error"]["position"] == statement.index("streamed_missing") + 1


def test_an_error_leaves_the_next_stream_alone(service: Service) -> None:
    """After streams that failed in every way the next one works."""
    for statement in ("select 1/0", "selec", "select 1/(g-2) from generate_series(1,5) g", "copy (select 1) to stdout"):
        with Stream(service, statement) as stream:
            stream.answer.read()
    assert tell(service, "select 1 as n").rows == [{"n": 1}]


def test_a_read_key_cannot_write(service: Service, read_key: str) -> None:
    """The engine refuses a write of a read key in a stream as it does in a query."""
    reader = replace(service, key=read_key)
    told = tell(reader, "create table streamed_never (a int)")
    assert (told.end, told.last["error"]["sqlstate"]) in {("error", "25006"), ("error", "42501")}
    assert tell(reader, "select 1 as n").rows == [{"n": 1}]


# -- the commit ---------------------------------------------------------------------------------------------------


@pytest.fixture
def deferred(sql: Sql, table: str) -> Iterator[str]:
    """A table whose foreign key is checked at commit, and a function that writes into it."""
    sql(f"create table streamed_child (id int references {table} deferrable initially deferred)")
    body = "insert into streamed_child values ($1) returning id"
    sql(f"create function streamed_add(int) returns int language sql as '{body}'")
    yield "streamed_child"
    sql("drop function streamed_add")
    sql("drop table streamed_child")


@pytest.mark.parametrize(
    "statement", ["insert into streamed_child values (%d) returning id", "select streamed_add(%d) as id"]
)
@needs("deferred")
def test_done_means_committed(service: Service, sql: Sql, deferred: str, statement: str) -> None:
    """`done` follows a commit that others can see; a commit that fails is an `error` after the rows."""
    told = tell(service, statement % 99)
    assert (told.end, told.rows, told.last["rows_sent"]) == ("error", [{"id": 99}], 1)
    assert told.last["error"]["sqlstate"] == "23503"
    assert sql.value(f"select count(*) from {deferred}") == 0
    with Stream(service, statement % 1) as stream:
        for event in stream.events():
            if event.kind in ENDS:
                assert event.kind == "done"
                assert sql.value(f"select count(*) from {deferred}") == 1


@pytest.mark.parametrize(
    ("statement", "wanted"),
    [
        ("update streamed set n = n + 1 where id = 1 returning n", 16),
        ("select n from streamed where id = 1 for update", 15),
    ],
)
@pytest.mark.usefixtures("table")
@needs("activity")
def test_a_conflict_is_retried_before_any_row(
    service: Service, sql: Sql, watch: Watch, statement: str, wanted: int
) -> None:
    """A serialization conflict that comes before the first row has left is retried unseen."""
    database = sql.value("select current_database()")
    with psycopg.connect(service.conninfo(database)) as other:
        other.execute("update public.streamed set n = n + 5 where id = 1")
        with Stream(service, statement) as stream:
            watch.until(lambda: watch.count("wait_event_type = 'Lock'") == 1)
            other.commit()
            events = stream.rest()
    assert kinds(events) == ["columns", "row", "done"], events[-1].text
    assert events[1].data == {"n": wanted}


# -- time ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "select g, case when g > 2 then pg_sleep(30) end from generate_series(1, 5) g",
        "with w as (delete from streamed returning id) select id, pg_sleep(30) from w",
    ],
)
@pytest.mark.usefixtures("table")
def test_time_limit(service: Service, watch: Watch, statement: str) -> None:
    """A statement over its time limit ends with an `error` event, and the engine stops working on it."""
    told = tell(service, statement, timeout_ms=500)
    assert (told.end, told.last["rows_sent"]) == ("error", len(told.rows))
    assert (told.last["error"]["code"], told.last["error"]["sqlstate"]) == ("timeout", "57014")
    watch.until(lambda: watch.busy == 0)


@pytest.mark.usefixtures("table")
def test_the_readers_time_is_not_the_statements(service: Service) -> None:
    """A reader that pauses for longer than the time limit in the middle of a large result still gets all of it."""
    statements = (
        "select g as id, repeat('x', 1000) as filler from generate_series(1, 20000) g",
        "insert into streamed select g, g from generate_series(10, 20009) g returning id, repeat('x', 1000) as filler",
    )
    with contextlib.ExitStack() as opened:
        streams = [
            opened.enter_context(Stream(service, statement, receive_buffer=65536, timeout_ms=4000))
            for statement in statements
        ]
        for stream in streams:
            events = stream.events()
            for _ in range(10):
                next(events)
        time.sleep(5)  # the pause is what is tested
        for stream in streams:
            last = stream.rest()[-1]
            assert last.kind == "done", last.text
            assert last.data["row_count"] == 20000


def test_heartbeats(strict: Service) -> None:
    """While the engine is silent a stream gives a sign of life: a comment line in SSE, an event in NDJSON."""
    statement = "select pg_sleep(2.5)"
    started = time.monotonic()
    with Stream(strict, statement) as sse, Stream(strict, statement, accept=NDJSON) as ndjson:
        seen = kinds(sse.rest())
        assert seen[0] == "columns"
        assert 1 <= seen.count("comment") <= time.monotonic() - started, "one a second at most"
        assert seen[-2:] == ["row", "done"]
        seen = kinds(ndjson.rest())
        assert 1 <= seen.count("heartbeat") <= time.monotonic() - started
        assert [kind for kind in seen if kind != "heartbeat"] == ["columns", "row", "done"]


# -- readers that leave, stop or are slow -------------------------------------------------------------------------


@needs("activity")
@pytest.mark.parametrize("accept", [SSE, NDJSON])
@pytest.mark.parametrize("is_read", [True, False], ids=["read", "not read"])
@pytest.mark.parametrize("is_inside", [False, True], ids=["alone", "in a transaction"])
def test_it_ends_with_its_key(service: Service, watch: Watch, accept: str, is_read: bool, is_inside: bool) -> None:
    """The last event says so, whether anybody reads it or not; and the connection serves on."""
    key = make_key(service, "write")
    route = "/v1/query"
    if is_inside:
        with service.client(key) as client:
            route = f"/v1/transaction/{client.post('/v1/transaction/begin', json={}).json()['transaction_id']}/query"
    sql = "select i, pg_sleep(0.02) from generate_series(1, 1000) i" if is_read else ENDLESS
    with Stream(replace(service, key=key), sql, accept=accept, route=route, receive_buffer=4096) as stream:
        assert next(stream.events()).kind == "columns"
        if is_read:
            revoke(service, key)
        else:
            watch.settle("state = 'idle in transaction'")
            revoke(service, key)
            watch.until(lambda: watch.busy == 0)
        last = stream.rest()[-1]
        assert (last.kind, last.data["error"]["code"]) == ("error", "unauthenticated")
        stream.connection.request("GET", "/health")
        assert stream.connection.getresponse().status == 200


@pytest.mark.parametrize("accept", [SSE, "application/json"])
@pytest.mark.parametrize(
    "statement",
    by_words(
        [
            "select pg_sleep(30)",
            "do $$ begin perform pg_sleep(30); end $$",
            "select count(*) from generate_series(1, 10000000000)",
        ]
    ),
)
def test_cancelled_when_the_client_leaves(service: Service, watch: Watch, accept: str, statement: str) -> None:
    """A statement whose client has gone is cancelled in the engine, long before its end, streamed or buffered."""
    with Stream(service, statement, accept=accept):
        watch.until(lambda: watch.busy == 1)
    watch.until(lambda: watch.busy == 0)


@pytest.mark.parametrize("way", ["url", "alias_url"])
def test_cancelled_when_a_client_of_the_old_version_leaves(service: Service, watch: Watch, way: str) -> None:
    """Nothing can be sent to it that tells whether it is there: that it sends no more must do."""
    address = urlsplit(getattr(service, way))
    head = f"POST /query HTTP/1.0\r\nAuthorization: Bearer {service.key}\r\nContent-Length: 19\r\n\r\n"
    with socket.create_connection((address.hostname or "", address.port or 0)) as client:
        client.sendall(head.encode() + b"select pg_sleep(30)")
        watch.until(lambda: watch.busy == 1)
    watch.until(lambda: watch.busy == 0)


@pytest.mark.usefixtures("table")
@needs("activity", "lock_table")
def test_cancelled_while_it_waits_for_a_lock(service: Service, sql: Sql, watch: Watch) -> None:
    """A statement that waits for a lock, even before it is described, is cancelled too when its client leaves."""
    database = sql.value("select current_database()")
    with psycopg.connect(service.conninfo(database)) as other:
        other.execute("lock table public.streamed")
        with Stream(service, "select * from streamed"):
            watch.until(lambda: watch.count("wait_event_type = 'Lock'") == 1)
        watch.until(lambda: watch.busy == 0)


PAUSED: dict[str, tuple[LiteralString, LiteralString]] = {
    "cursor": (ENDLESS, "state = 'idle in transaction'"),
    "write": (
        "insert into streamed select g, g from generate_series(10, 30000) g returning id, repeat('x', 1000) as filler",
        "wait_event = 'ClientWrite'",
    ),
}


@pytest.mark.parametrize("kind", ["cursor", "write"])
@pytest.mark.usefixtures("table")
@needs("activity")
def test_a_reader_that_stops_reading(service: Service, sql: Sql, watch: Watch, kind: str) -> None:
    """It stops the engine's work but nothing else; reading on goes on, leaving frees the connection."""
    statement, resting = PAUSED[kind]
    with Stream(service, statement, receive_buffer=65536) as stream:
        events = stream.events()
        for _ in range(5):
            next(events)
        watch.settle(resting)
        assert sql.client.get("/health").status_code == 200
        assert sql.value("select 1") == 1
        assert watch.count(resting) == 1
        ids = [event.data for event in (next(events) for _ in range(3000))]
        assert len({next(iter(row.values())) for row in ids}) == 3000
        watch.settle(resting)
    watch.until(lambda: watch.busy == 0)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
@pytest.mark.parametrize(
    ("accept", "statement"), [(SSE, ENDLESS), ("application/json", "select repeat('x', 50000000)")]
)
def test_a_reader_that_takes_nothing_is_cut_off(
    strict: Service, strict_watch: Watch, accept: str, statement: str
) -> None:
    """It loses its connection and the engine gets its own back, for streams and for large buffered answers."""
    before = client_sockets(strict)
    held: list[int] = []

    def is_gone() -> bool:
        held.append(held_by_kernel(strict))
        return client_sockets(strict) == before

    with Stream(strict, statement, accept=accept, receive_buffer=4096) as stream:
        strict_watch.until(lambda: client_sockets(strict) == before + 1)
        strict_watch.until(is_gone)
        assert 0 < max(held) < 2**19  # it has megabytes for others; what it holds nobody counts
        assert held_by_kernel(strict) == 0
        strict_watch.until(lambda: strict_watch.busy == 0, 5)
        received = drain(stream.connection.sock)
    assert received.startswith(b"HTTP/1.1 200")
    assert len(received) < 50_000_000
    assert b"event: done" not in received
    assert b"event: error" not in received


def client_sockets(service: Service) -> int:
    """How many connections of clients the worker has open."""
    return len({inode for inode, _ in sockets(service)} - {"0"})


def held_by_kernel(service: Service) -> int:
    """Bytes for clients of the worker that were not taken, also of connections that it has closed."""
    return sum(unsent for _, unsent in sockets(service))


def sockets(service: Service) -> list[tuple[str, int]]:
    """The inode of each connection to the port that the worker serves, and the bytes that wait there for the client."""
    port = f":{urlsplit(service.url).port:04X} "
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines() if port in line[:22]]
    return [(fields[9], int(fields[4].split(":")[0], 16)) for fields in lines if fields[3] != "0A"]


def drain(sock: socket.socket) -> bytes:
    """Everything that still comes until the other side has closed or cut the connection."""
    parts = []
    try:
        while part := sock.recv(1 << 20):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


@needs("rows_at_once")
def test_clients_that_leave_do_not_drain_the_pool(strict: Service, strict_watch: Watch) -> None:
    """Twenty clients that leave in the midst of something leave two connections that work."""
    with Sql(strict.client()).client as client:
        Sql(client)("create table if not exists left_alone (id int)")
        statements = (
            (ENDLESS, SSE),
            ("select g, pg_sleep(0.01) from generate_series(1, 1000) g", NDJSON),
            ("select pg_sleep(30)", "application/json"),
            ("insert into left_alone select g from generate_series(1, 30000) g returning id, repeat('x', 1000)", SSE),
        )
        for number in range(20):
            statement, accept = statements[3 if number % 10 == 9 else number % 3]
            with Stream(strict, statement, accept=accept) as stream:
                if accept != "application/json":
                    events = stream.events()
                    assert next(events).kind == "columns"
                    assert next(events).kind == "row"
        assert_pool_is_whole(strict, strict_watch)
        Sql(client)("drop table left_alone")


def test_clients_that_leave_at_once(strict: Service, strict_watch: Watch) -> None:
    """Clients that leave while a connection is being opened for them leave no engine connection behind."""
    address = urlsplit(strict.url)
    body = b"select pg_sleep(30)"
    head = (
        f"POST /query HTTP/1.1\r\nHost: q\r\nAuthorization: Bearer {strict.key}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    for number in range(60):
        with socket.create_connection((address.hostname, address.port)) as sock:
            sock.sendall(head.encode() + body)
            time.sleep(number / 10_000)  # 0 to 6 ms: from before the connection is opened to after it
    assert_pool_is_whole(strict, strict_watch)


def assert_pool_is_whole(service: Service, watch: Watch) -> None:
    """Two statements run side by side, and the engine has no other connection of the tenant."""
    watch.until(lambda: watch.busy == 0)

    def sleep(_: int) -> Any:
        with service.client() as client:
            return Sql(client).value("select pg_sleep(5)::text")

    with ThreadPoolExecutor(2) as both:
        running = both.map(sleep, range(2))
        watch.until(lambda: watch.busy == 2)  # CockroachDB does not show the text of a connection's first statement
        assert len(list(running)) == 2
    watch.until(lambda: watch.count() <= 2)


# -- memory -------------------------------------------------------------------------------------------------------


def worker_memory_kb(service: Service) -> int:
    """Resident memory of the service's workers, which are its children that are not the engine."""
    total = sum(int(status(worker).split("VmRSS:")[1].split()[0]) for worker in workers(service))
    assert total, "no worker found"
    return total


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize(
    ("statement", "rows"),
    [
        ("select g, 'some text of a row' as t from generate_series(1, 1000000) g", 1_000_000),
        ("insert into streamed select g, g from generate_series(10, 100009) g returning id, n", 100_000),
    ],
)
@pytest.mark.usefixtures("table")
def test_memory_stays_constant(service: Service, sql: Sql, statement: str, rows: int) -> None:
    """A result of any size costs the worker less than 30 MB."""
    tell(service, "select g, 'some text of a row' as t from generate_series(1, 1000) g")
    before = worker_memory_kb(service)
    most = 0
    lines = 0
    with Stream(service, statement, accept=NDJSON) as stream:
        while part := stream.answer.read1(1 << 16):
            if lines // 50_000 != (lines + part.count(b"\n")) // 50_000:
                most = max(most, worker_memory_kb(service))
            lines += part.count(b"\n")
    assert lines == rows + 2
    assert most - before < 30 * 1024
