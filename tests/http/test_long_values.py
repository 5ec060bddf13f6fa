"""What takes long to convert is converted in pieces: others are answered meanwhile, as often as at any other time.

tests/extended/test_all_long_values.py has arrays of all sorts.
"""

import json
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from psycopg.pq import DiagnosticField as _Field

from tests.needs import needs
from tests.service import Service
from tests.tenants import PAUSE_S
from tuplegate.engine.libpq.connections.server_errors import read_field

BODY_BYTES = 10 * 2**20 - 1000
SHARE = 2
"""The longest silence for a bystander is less than this part of the time that the large request takes."""


class Bystander:
    """Sends one request after the other, and notes when each was answered."""

    def __init__(self, service: Service) -> None:
        self._client = service.client()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.answered: list[float] = []

    def _run(self) -> None:
        while not self._stopping.is_set():
            assert self._client.post("/v1/query", json={"sql": "select 1"}).status_code == 200
            self.answered.append(time.monotonic())
            time.sleep(PAUSE_S)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._thread.start()
        try:
            while len(self.answered) < 5:
                time.sleep(0.001)
            yield
        finally:
            self._stopping.set()
            self._thread.join()
            self._client.close()

    def longest_silence(self, start: float, end: float) -> float:
        """Between two answers, or before the first or behind the last of them."""
        moments = [start, *(moment for moment in self.answered if start < moment < end), end]
        return max(later - earlier for earlier, later in pairwise(moments))


def run_beside(service: Service, path: str, body: bytes) -> dict[str, Any]:
    """Send a large request, demand that a bystander hardly notices it, and return its answer."""
    bystander = Bystander(service)
    with service.client() as client, bystander.watching():
        started = time.monotonic()
        with client.stream("POST", path, content=body, headers={"Content-Type": "application/json"}) as answer:
            answer.read()
            ended = time.monotonic()
    silence = bystander.longest_silence(started, ended)
    assert silence < (ended - started) / SHARE, f"nobody was answered for {silence:.3f} s of {ended - started:.3f} s"
    text = answer.text
    if text.startswith("event:"):
        return {"success": "event: done" in text}
    read: dict[str, Any] = answer.json()
    return read


ANSWERS = {
    "numbers": "select array(select g from generate_series(1, 4000000) g)",
    "dimensions": "select array_fill(1, array[2000, 2000])",
    "one row of two dimensions": "select array_fill(1, array[1, 4000000])",
    "texts": "select array(select 'a\"b' || g from generate_series(1, 1000000) g)",
    "moments": "select array(select now() + g * interval '1s' from generate_series(1, 1000000) g)",
    "fractions": "select array(select g::numeric / 3 from generate_series(1, 500000) g)",
    "one long element": "select array[repeat('x \"', 5000000)]",
    "a stream": "/*+ STREAM */ select array(select g from generate_series(1, 4000000) g)",
}


@pytest.mark.parametrize("kind", ["numbers", "texts", "a stream"])
def test_others_are_answered_while_a_long_array_is_written(service: Service, kind: str) -> None:
    """An array in an answer keeps nobody waiting."""
    write_beside(service, ANSWERS[kind])


def write_beside(service: Service, sql: str) -> None:
    answer = run_beside(service, "/v1/query", b'{"sql":%b}' % _quoted(sql))
    assert answer["success"], answer.get("error")


PARAMETERS = {
    "numbers": ("int[]", "1", 3_000_000),
    "truths": ("bool[]", "true", 1_500_000),
    "texts": ("text[]", '""', 2_000_000),
    "dimensions": ("int[]", "[1]", 2_000_000),
    "objects": ("jsonb[]", '{"a":{},"b":[1,2]}', 100_000),
}


@pytest.mark.parametrize("kind", ["numbers", "objects"])
def test_others_are_answered_while_a_long_parameter_is_read(service: Service, kind: str) -> None:
    """An array as a parameter keeps nobody waiting, and the engine gets all of it."""
    read_beside(service, *PARAMETERS[kind])


def read_beside(service: Service, type_name: str, element: str, count: int) -> None:
    listed = ",".join([element] * count)
    sql = _quoted(f"select cardinality($1::{type_name}) as count")
    answer = run_beside(service, "/v1/query", b'{"sql":%b,"params":[[%b]]}' % (sql, listed.encode()))
    assert answer["success"], answer.get("error")
    assert answer["rows"] == [{"count": count}]


LATE = {
    "dimensions": b"[1],",
    "texts": b'"a",',
    "numbers": b"1,",
}


@pytest.mark.parametrize("part", LATE.values(), ids=LATE)
@pytest.mark.parametrize("path", ["/v1/query", "/v1/transaction"])
def test_time_is_over_while_a_long_parameter_is_read(service: Service, path: str, part: bytes) -> None:
    """Whatever is done with it at that moment, it is not finished first."""
    array = b"[%b%b]" % (part * (BODY_BYTES // len(part)), part[:-1])
    sql = b'"sql":"select cardinality($1::text[])","params":[%b]' % array
    body = b'{%b,"timeout_ms":1}' % sql if path == "/v1/query" else b'{"statements":[{%b}],"timeout_ms":1}' % sql
    with service.client() as client:
        answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
    error = answer.json()["error"]
    assert (error["code"], error["sqlstate"]) == ("timeout", "57014")
    assert "were not read within 1 ms" in error["message"]


def test_too_many_parameters_are_refused_before_they_are_all_read(service: Service) -> None:
    """Alone, and in a statement of a transaction."""
    params = b"[%b1]" % (b"1," * 1_000_000)
    with service.client() as client:
        for path, body in (
            ("/v1/query", b'{"sql":"select 1","params":%b}' % params),
            ("/v1/transaction", b'{"statements":["select 1",{"sql":"select 1","params":%b}]}' % params),
        ):
            answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
            error = answer.json()["error"]
            assert (error["code"], error["sqlstate"]) == ("parameter_mismatch", "54000")
            assert error.get("statement") == (1 if "transaction" in path else None)


def test_others_are_answered_while_many_statements_are_looked_at(service: Service) -> None:
    """The comments before each statement of a transaction are skipped in pieces too."""
    statements = json.dumps({"statements": ["/**/" * 2000 + "select 1 from nothing"] * 900}).encode()
    answer = run_beside(service, "/v1/transaction", statements)
    assert answer["error"]["sqlstate"] == "42P01"


MISTAKES = {
    "statements": ("/v1/transaction", b'{"statements":[', b'"",', b'""]}', "not 1001 or more"),
    "statements as objects": ("/v1/transaction", b'{"statements":[', b'{"sql":""},', b'""]}', "not 1001 or more"),
    "a field": ("/v1/query", b'{"sql":"","q', b"1", b'":1}', "there is no field `q111"),
    "a field of a statement": ("/v1/transaction", b'{"statements":["",{"q', b"1", b'":1}]}', "in `statements[1]`"),
    "a choice": ("/v1/query", b'{"sql":"","row_mode":"', b"1", b'"}', "`row_mode` cannot be '111"),
    "a long choice of a transaction": ("/v1/transaction", b'{"statements":[],"row_mode":"', b"1", b'"}', "`row_mode`"),
}


@pytest.mark.parametrize(("path", "start", "part", "end", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_long_mistake_is_found_soon(
    service: Service, path: str, start: bytes, part: bytes, end: bytes, said: str
) -> None:
    """No more statements are read than there may be, and what is said of a long name is short."""
    body = start + part * (BODY_BYTES // len(part)) + end
    with service.client() as client:
        answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
    error = answer.json()["error"]
    assert error["code"] == "malformed_request"
    assert said in error["message"]
    assert len(answer.content) < 1000


def test_statements_of_a_long_transaction_are_counted_across_pieces(service: Service) -> None:
    """They are read in pieces, and errors name them by their place in the whole."""
    filler = ["select " + "1" * 1000] * 200
    with service.client() as client:
        for wrong, place in (({"params": []}, "in `statements[200]`"), (7, "`statements[200]` must be")):
            answer = client.post("/v1/transaction", json={"statements": [*filler, wrong, *filler]})
            assert place in answer.json()["error"]["message"]
        long = {"sql": "select $1::text as text", "params": ["],[" + "x" * 100_000]}
        statements = ["select 1 as number", long, *["select 1"] * 900, {"sql": "select $1::int as last", "params": [7]}]
        answer = client.post("/v1/transaction", json={"statements": statements})
        results = answer.json()["results"]
    assert len(results) == len(statements)
    assert results[1]["rows"] == [{"text": long["params"][0]}]
    assert results[-1]["rows"] == [{"last": 7}]


def test_others_are_answered_while_the_parameters_of_many_statements_are_read(service: Service) -> None:
    """Each list is short enough to be read at once, but not all of them."""
    item = b'{"sql":"select 1 from nothing","params":[%b1]}' % (b"1," * 60_000)
    answer = run_beside(service, "/v1/transaction", b'{"statements":[%b]}' % b",".join([item] * 40))
    assert not answer["success"]


def test_the_control_plane_takes_short_requests(service: Service) -> None:
    with service.client() as client:
        answer = client.post(f"{service.control_url}/v1/databases", json={"name": "x" * 100_000})
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "body_too_large"


@needs("do_block")
def test_notices_and_errors_are_cut(service: Service) -> None:
    """However long a tenant's code makes them, and however many."""
    with service.client() as client:
        say = "raise {} '%', repeat('é', 1000000) using detail = repeat('d', 1000000), hint = repeat('h', 1000000)"
        loop = f"do $$ begin for i in 1..50 loop {say.format('notice')}; end loop; {say.format('exception')}; end $$"
        answer = client.post("/v1/query", json={"sql": loop})
        assert len(answer.content) < 200_000
        error, notices = answer.json()["error"], answer.json()["notices"]
        assert 1 < len(notices) < 50
        for text in (error, *notices):
            assert text["message"] == "é" * 2048 + "…"
            assert text["detail"] == "d" * 4096 + "…"
            assert text["hint"] == "h" * 4096 + "…"


@needs("do_block")
def test_what_is_cut_of_an_error_is_not_copied_first(service: Service) -> None:
    raised = b"do $$ begin raise exception using message = repeat('m', 9000000), detail = 'short'; end $$"
    with psycopg.connect(service.conninfo("tuplegate")) as connection:
        result = connection.pgconn.exec_(raised)
    tracemalloc.start()
    try:
        said = [
            read_field(result, name) for name in (_Field.MESSAGE_PRIMARY, _Field.MESSAGE_DETAIL, _Field.MESSAGE_HINT)
        ]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert said == ["m" * 4096 + "…", "short", None]
    assert most < 100_000


def _quoted(text: str) -> bytes:
    return json.dumps(text).encode()
