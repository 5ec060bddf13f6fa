"""`Idempotency-Key`: the same key and body run once, and a repeat gets the first answer."""

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, LiteralString

import httpx
import psycopg
import pytest

from tests.http.test_serializable_pool import shut
from tests.needs import by_words, needs
from tests.service import Service, Sql
from tests.waiting import eventually

REPLAYED = "idempotency-replayed"

Send = Callable[..., httpx.Response]
"""Sends one statement with a key, by one of the routes."""


def new_key() -> str:
    return uuid.uuid4().hex


def by_query(client: httpx.Client, key: str | bytes, sql: str, **more: Any) -> httpx.Response:
    return client.post("/v1/query", json={"sql": sql, **more}, headers={b"Idempotency-Key": as_bytes(key)})


def by_text(client: httpx.Client, key: str | bytes, sql: str, **_: Any) -> httpx.Response:
    headers = {b"Idempotency-Key": as_bytes(key), b"Content-Type": b"text/plain"}
    return client.post("/query", content=sql, headers=headers)


def by_transaction(client: httpx.Client, key: str | bytes, sql: str, **more: Any) -> httpx.Response:
    headers = {b"Idempotency-Key": as_bytes(key)}
    return client.post("/v1/transaction", json={"statements": [sql], **more}, headers=headers)


def as_bytes(key: str | bytes) -> bytes:
    return key if isinstance(key, bytes) else key.encode()


both = pytest.mark.parametrize("send", [by_query, by_transaction])


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def waiting(service: Service, mark: str) -> int:
    """How many of them wait for a lock."""
    return held_up(service, mark, "wait_event_type = 'Lock'")


def held_up(service: Service, mark: str, how: LiteralString) -> int:
    with psycopg.connect(service.server_of()) as connection:
        row = connection.execute(
            "select count(*) from pg_stat_activity where query like %s and " + how, [f"%{mark}%"]
        ).fetchone()
    assert row is not None
    number: int = row[0]
    return number


@pytest.fixture
def t(sql: Sql) -> Iterator[str]:
    """An empty table `(n serial, a text)`."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    sql(f"create table {name} (n serial, a text)")
    yield name
    sql(f"drop table {name} cascade")


def count(sql: Sql, table: str) -> int:
    number: int = sql.value(f"select count(*) from {table}")
    return number


@pytest.mark.parametrize("send", [by_query, by_text, by_transaction])
def test_runs_once(client: httpx.Client, sql: Sql, t: str, send: Send) -> None:
    """A repeat runs nothing and gets the first answer to the letter, and says that it is a repeat."""
    key = new_key()
    statement = f"insert into {t} (a) values ('x') returning n, clock_timestamp()"
    first = send(client, key, statement)
    assert first.json()["success"] is True
    assert REPLAYED not in first.headers
    for _ in range(3):
        again = send(client, key, statement)
        assert (again.status_code, again.content) == (first.status_code, first.content)
        assert again.headers[REPLAYED] == "true"
        assert again.headers["content-type"] == first.headers["content-type"]
    assert count(sql, t) == 1


@both
def test_another_key_runs(client: httpx.Client, sql: Sql, t: str, send: Send) -> None:
    """The same body under another key, or without one, runs again."""
    statement = f"insert into {t} (a) values ('x')"
    keys = [new_key(), new_key()]
    keys.append(keys[0].upper())
    for key in keys:
        assert REPLAYED not in send(client, key, statement).headers
    sql(statement)
    assert count(sql, t) == 4


@both
def test_another_body(client: httpx.Client, sql: Sql, t: str, send: Send) -> None:
    """The same key with another body is 422 and runs nothing, and the first answer stays."""
    key = new_key()
    statement = f"insert into {t} (a) values ('x')"
    first = send(client, key, statement)
    assert code(send(client, key, f"insert into {t} (a) values ('y')")) == (422, "idempotency_mismatch")
    assert code(send(client, key, statement, row_mode="arrays")) == (422, "idempotency_mismatch")
    assert send(client, key, statement).content == first.content
    assert count(sql, t) == 1


def test_scope_is_the_route(client: httpx.Client, sql: Sql, t: str) -> None:
    """A key on one route says nothing about the same key on another."""
    key = new_key()
    statement = f"insert into {t} (a) values ('x')"
    for send in (by_query, by_transaction, by_text):
        answer = send(client, key, statement)
        assert answer.json()["success"] is True
        assert REPLAYED not in answer.headers
    assert count(sql, t) == 3


def test_query_string_is_no_other_route(client: httpx.Client, sql: Sql, t: str) -> None:
    """What follows a question mark does not make it another route."""
    headers = {"Idempotency-Key": new_key()}
    for path in ("/v1/query", "/v1/query?x=1"):
        client.post(path, json={"sql": f"insert into {t} (a) values ('x')"}, headers=headers)
    assert count(sql, t) == 1


@both
@pytest.mark.parametrize(
    ("failing", "status"),
    [
        ("select 1 / 0", 200),
        ("selec", 400),
        ("commit", 400),
        ("select pg_sleep(9)", 200),
        ("copy (select 1) to stdout", 400),
    ],
)
def test_failures_are_not_recorded(
    client: httpx.Client, sql: Sql, t: str, send: Send, failing: str, status: int
) -> None:
    """A failure is not kept: the same key may be used again, with the same or another body."""
    key = new_key()
    for _ in range(2):
        answer = send(client, key, failing, **({"timeout_ms": 200} if "pg_sleep" in failing else {}))
        assert answer.status_code == status
        assert answer.json()["success"] is False
        assert REPLAYED not in answer.headers
    answer = send(client, key, f"insert into {t} (a) values ('x')")
    assert answer.json()["success"] is True
    assert count(sql, t) == 1


def test_failure_that_ends(client: httpx.Client, sql: Sql, t: str) -> None:
    """What failed because of the data succeeds under its key once the data allow it."""
    key = new_key()
    statement = f"insert into {t} (a) select 'x' where 1 / (select count(*) from {t}) = 1"
    assert by_query(client, key, statement).json()["error"]["sqlstate"] == "22012"
    sql(f"insert into {t} (a) values ('y')")
    assert by_query(client, key, statement).json()["success"] is True
    assert by_query(client, key, statement).headers[REPLAYED] == "true"
    assert count(sql, t) == 2


@both
@needs("lock_table", "activity")
def test_while_the_first_runs(service: Service, client: httpx.Client, sql: Sql, t: str, send: Send) -> None:
    """While the first runs a repeat is 409 and retryable; afterwards it gets the answer."""
    key = new_key()
    sql(f"create table {t}_gate ()")
    statement = f"with i as (insert into {t} (a) values ('x')) select count(*) from {t}_gate /* {key} */"
    with ThreadPoolExecutor(1) as pool, service.client() as other:
        with shut(service.conninfo(sql.value("select current_database()")), f"{t}_gate"):
            first = pool.submit(send, other, key, statement)
            eventually(lambda: waiting(service, key) == 1)
            answer = send(client, key, statement)
        assert code(answer) == (409, "idempotency_in_progress")
        assert answer.json()["error"]["retryable"] is True
        assert first.result().json()["success"] is True
    assert send(client, key, statement).headers[REPLAYED] == "true"
    assert count(sql, t) == 1
    sql(f"drop table {t}_gate")


@both
def test_many_at_once(service: Service, sql: Sql, t: str, send: Send) -> None:
    """Of many at once exactly one runs; the others are told to wait or get its answer."""
    for _ in range(4):
        key = new_key()
        gate = threading.Barrier(6)

        def work(_: int, key: str = key, gate: threading.Barrier = gate) -> httpx.Response:
            with service.client() as client:
                gate.wait()
                return send(client, key, f"insert into {t} (a) values ('{key}') returning n")

        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(work, range(6)))
        done = [answer for answer in answers if answer.status_code == 200]
        assert {answer.status_code for answer in answers} <= {200, 409}
        assert len({answer.content for answer in done}) == 1
        assert sum(REPLAYED not in answer.headers for answer in done) == 1
        assert sql.value(f"select count(*) from {t} where a = $1", [key]) == 1


@both
def test_large_answers(client: httpx.Client, sql: Sql, t: str, send: Send) -> None:
    """An answer over 1 MiB is kept without its rows, and the repeat says that they were cut."""
    key = new_key()
    statement = f"insert into {t} (a) select repeat('x', 1100) from generate_series(1, 1000) returning a"
    first = send(client, key, statement).json()
    assert first["success"], first
    again = send(client, key, statement)
    assert again.headers[REPLAYED] == "true"
    kept = again.json()
    whole, cut = (first, kept) if "rows" in first else (first["results"][0], kept["results"][0])
    assert len(whole["rows"]) == 1000
    assert "truncated" not in whole
    assert cut["rows"] == []
    assert cut["truncated"] is True
    for field in ("columns", "types", "affected_rows"):
        assert cut[field] == whole[field]
    assert count(sql, t) == 1000


def test_almost_large_answers(client: httpx.Client, sql: Sql, t: str) -> None:
    """An answer just under 1 MiB is kept whole."""
    key = new_key()
    statement = f"insert into {t} (a) select repeat('x', 1000) from generate_series(1, 1000) returning a"
    first = by_query(client, key, statement)
    assert 1_000_000 < len(first.content) < 2**20
    assert by_query(client, key, statement).content == first.content
    assert count(sql, t) == 1000


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson", None])
def test_streams(client: httpx.Client, sql: Sql, t: str, accept: str | None) -> None:
    """A key with a stream is 400 and runs nothing, asked for by hint or by header."""
    statement = f"insert into {t} (a) values ('x') returning n"
    headers = {"Idempotency-Key": new_key()}
    if accept is not None:
        headers["Accept"] = accept
    else:
        statement = f"/*+ STREAM */ {statement}"
    answer = client.post("/v1/query", json={"sql": statement}, headers=headers)
    assert code(answer) == (400, "malformed_request")
    assert count(sql, t) == 0


@pytest.mark.parametrize(
    "statement", by_words(["vacuum {t}", "create index concurrently on {t} (a)", "vacuum (analyze) {t}"])
)
def test_not_in_a_block(client: httpx.Client, sql: Sql, t: str, statement: str) -> None:
    """A statement that cannot run in a transaction block is 400 with a key, and works without."""
    assert code(by_query(client, new_key(), statement.format(t=t))) == (400, "malformed_request")
    assert sql.value("select count(*) from pg_indexes where tablename = $1", [t]) == 0
    sql(statement.format(t=t))


@pytest.mark.parametrize("send", [by_query, by_text, by_transaction])
@pytest.mark.parametrize("key", ["", "x" * 10_000, "x" * 256, "schlüssel", b"\xff\xfe", "a\tb"])
def test_bad_keys(client: httpx.Client, sql: Sql, t: str, send: Send, key: str | bytes) -> None:
    """A key that is empty, too long or not printable ASCII is 400 and nothing runs."""
    answer = send(client, key, f"insert into {t} (a) values ('x')")
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] == "malformed_request"
    assert count(sql, t) == 0


@pytest.mark.parametrize("key", ["x", "a b cd", "'; drop table x --", "x/../y", '"quoted"', "%00", "~" * 255])
def test_odd_keys(client: httpx.Client, sql: Sql, t: str, key: str) -> None:
    """Any printable key works, and the like of it is another key."""
    key = (new_key() + key)[:255]
    statement = f"insert into {t} (a) values ('x')"
    assert REPLAYED not in by_query(client, key, statement).headers
    assert REPLAYED not in by_query(client, key[:-1], statement).headers
    assert by_query(client, key, statement).headers[REPLAYED] == "true"
    assert count(sql, t) == 2


@both
def test_read_key(service: Service, client: httpx.Client, read_key: str, sql: Sql, t: str, send: Send) -> None:
    """A read key's answers are kept as well, and writing stays refused to it."""
    key = new_key()
    with service.client(read_key) as reader:
        first = send(reader, key, f"select count(*) as n, clock_timestamp() from {t}")
        assert first.json()["success"] is True
        sql(f"insert into {t} (a) values ('x')")
        again = send(reader, key, f"select count(*) as n, clock_timestamp() from {t}")
        assert again.headers[REPLAYED] == "true"
        assert again.content == first.content
        failed = send(reader, new_key(), f"insert into {t} (a) values ('y')")
        assert failed.json()["error"]["sqlstate"] in ("25006", "42501")
    assert count(sql, t) == 1


@needs("temporary_table", "two_phase_commit")
def test_one_phase(client: httpx.Client, sql: Sql, t: str) -> None:
    """A transaction that cannot be prepared is recorded with its data too."""
    key = new_key()
    body = {"statements": [f"insert into {t} (a) values ('x')", "create temp table x (a int)"]}
    answers = [client.post("/v1/transaction", json=body, headers={"Idempotency-Key": key}) for _ in range(2)]
    assert answers[0].json()["commit"] == "one_phase"
    assert answers[1].content == answers[0].content
    assert answers[1].headers[REPLAYED] == "true"
    assert count(sql, t) == 1


def test_with_a_chosen_id(client: httpx.Client, sql: Sql, t: str) -> None:
    """A repeat of the whole request, its chosen id included, gets the first answer: the key knows it."""
    headers = {"Idempotency-Key": new_key(), "Tuplegate-Transaction-Id": f"txn_{new_key()}"}
    body = {"statements": [f"insert into {t} (a) values ('x')"]}
    first = client.post("/v1/transaction", json=body, headers=headers)
    assert first.json()["success"] is True
    again = client.post("/v1/transaction", json=body, headers=headers)
    assert count(sql, t) == 1
    assert (again.status_code, again.content) == (200, first.content)
    assert again.headers[REPLAYED] == "true"


@needs("do_block")
def test_an_error_of_ones_own(client: httpx.Client) -> None:
    """An error that a function raises with any SQLSTATE is the function's, with a key as without."""
    statement = "do $$ begin raise exception 'mine' using errcode = '25001'; end $$"
    answer = by_query(client, new_key(), statement)
    assert answer.status_code == 200, answer.text
    assert answer.json()["error"]["sqlstate"] == "25001"


def test_conflicts(service: Service, sql: Sql, t: str) -> None:
    """Conflicts are retried under a key as without, and every request counts once."""
    sql(f"insert into {t} (a) values ('0')")

    def work(worker: int) -> None:
        with service.client() as client:
            for i in range(10):
                for _ in range(2):
                    statement = f"update {t} set a = (a::int + 1)::text"
                    assert by_query(client, f"{t}-{worker}-{i}", statement).json()["success"] is True

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))
    assert sql.value(f"select a::int from {t}") == 30


@needs("notices_of_drops")
def test_notices_come_with_a_key_as_without(sql: Sql, client: httpx.Client) -> None:
    """And again with the repeat."""
    noisy = "drop table if exists never_there"
    notices = sql(noisy)["notices"]
    assert "never_there" in notices[0]["message"]
    key = new_key()
    for _ in range(2):
        assert by_query(client, key, noisy).json()["notices"] == notices
    assert "notices" not in by_transaction(client, new_key(), noisy).json()


def test_a_key_belongs_to_a_route_however_its_path_is_spelled(client: httpx.Client, sql: Sql, t: str) -> None:
    """An encoded letter is the letter, so this is the same request."""
    key, body = new_key(), {"sql": f"insert into {t} values (1)"}
    answers = [
        client.post(path, json=body, headers={"Idempotency-Key": key})
        for path in ("/v1/query", "/v1/quer%79", "/%761/query")
    ]
    assert [REPLAYED in answer.headers for answer in answers] == [False, True, True]
    assert sql.value(f"select count(*) from {t}") == 1


def test_a_reader_uses_up_no_key_of_a_writer(
    service: Service, read_key: str, client: httpx.Client, sql: Sql, t: str
) -> None:
    key = new_key()
    with service.client(read_key) as reader:
        assert reader.post("/v1/query", json={"sql": "select 1"}, headers={"Idempotency-Key": key}).status_code == 200
    written = by_query(client, key, f"insert into {t} values (1)")
    assert written.json()["success"], written.text
    assert sql.value(f"select count(*) from {t}") == 1
