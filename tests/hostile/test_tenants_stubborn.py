"""No tenant blocks the service with a text, or keeps the engine with a statement that ignores being told to end.

Such a statement takes a processor for many seconds. tests/extended/test_stubborn_faults.py tries many at once, and
those of clients that have left.
"""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.inside import wait_until
from tests.service import Service, needs_bundled, running_service
from tests.tenants import Tenant, as_owner, make_tenant_fixture, undisturbed

CONNECTIONS = 1
"""Of one database and scope: a place that is not given back is missed."""

BOMB = "/**/" * 2_000_000 + "select 1"
LONG_RUN = "/*" * 1000 + "+" * 5_000_000 + " */" * 1000 + "select 1"

DEAF = {
    "a text function": "select length(translate(repeat('a', 2000000), repeat('b', 2000000), ''))",
    "errors caught": "do $$ begin loop begin perform translate(repeat('a', 2000000), repeat('b', 2000000), '');"
    " exception when query_canceled or others then null; end; end loop; end $$",
    "the scanner, in stored text": "do $$ begin execute repeat('/**/', 500000) || 'select 1';"
    " exception when others then raise 'it was broken off'; end $$",
}
"""Statements that look at no cancel and no terminate, for hours. Their errors are short: the engine quotes the text
that it was reading, and sends no more than fits the socket when it must end. A write's outcome is unknown then."""

OF_TENANTS = "from pg_stat_activity where usename <> 'tuplegate' and backend_type = 'client backend'"


@pytest.fixture(scope="module")
def few() -> Iterator[Service]:
    with running_service("--connections-per-database", str(CONNECTIONS)) as running:
        yield running


one = make_tenant_fixture("few", "tenant-one")
two = make_tenant_fixture("few", "tenant-two", "create table kept (a int)")


def running(engine: "psycopg.Connection[tuple[Any, ...]]", *words: str) -> int:
    """How many server processes run a statement with these words."""
    found = engine.execute(f"select query {OF_TENANTS} and state = 'active'").fetchall()
    return sum(all(word in str(query) for word in words) for (query,) in found)


# -- texts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [BOMB, LONG_RUN], ids=["comments", "comments and a long operator"])
def test_a_text_of_comments_is_refused_on_every_route(one: Tenant, two: Tenant, text: str) -> None:
    """Before the engine sees it: its scanner would run for hours, and nothing would end that."""
    client = one.write.client
    with undisturbed(two):
        answers = [
            client.post("/v1/query", json={"sql": text}),
            client.post("/query", content=text, headers={"Content-Type": "text/plain"}),
            client.post("/v1/transaction", json={"statements": ["select 1", text]}),
            client.post("/v1/query", json={"sql": "/*+ STREAM */" + text}),
            client.post("/v1/query", json={"sql": text}, headers={"Accept": "application/x-ndjson"}),
            client.post("/v1/query", json={"sql": text}, headers={"Idempotency-Key": "a-key-of-comments"}),
        ]
    for answer in answers:
        assert answer.status_code == 400, answer.text[:200]
        assert answer.json()["error"]["code"] == "too_many_comments"
        assert "parameters" in answer.json()["error"]["hint"]
    assert answers[2].json()["error"]["statement"] == 1
    with as_owner(one.service) as engine:
        assert running(engine, "/**/") == 0


def test_others_are_answered_while_great_texts_are_read(one: Tenant, two: Tenant) -> None:
    """Texts that took the service long to look at, several at once; the bystander gets an answer before they all do."""
    texts = ["--\n" * 2_000_000 + "select 1", "select " + "_" * 9_000_000, BOMB, "é" * 4_000_000]
    bodies = [json.dumps({"sql": text}, ensure_ascii=False).encode() for text in texts]
    headers = {"Content-Type": "application/json"}
    with one.service.client(one.admin) as client, undisturbed(two), ThreadPoolExecutor(8) as threads:
        sent = [threads.submit(client.post, "/v1/query", content=body, headers=headers) for body in bodies * 2]
        two.read("select 1")
        assert not all(each.done() for each in sent)
        assert {each.result().status_code for each in sent} == {200, 400}


# -- statements --------------------------------------------------------------------------------------------------


@needs_bundled
def test_a_statement_that_ignores_everything_is_ended(one: Tenant, two: Tenant) -> None:
    assert_ended(one, two, [("write", DEAF["errors caught"])], CONNECTIONS)


def assert_ended(one: Tenant, two: Tenant, deaf: list[tuple[str, str]], connections: int) -> None:
    """All of them, which take all places of who writes, and nothing else: the engine is not restarted, nobody else
    notices, and the places are free again."""

    def run(scope: str, statement: str) -> dict[str, Any]:
        return one.sql(scope).fails(statement, timeout_ms=3000)  # all of them are still there when another one is tried

    with as_owner(one.service) as engine, undisturbed(two), ThreadPoolExecutor(len(deaf)) as threads:
        started = engine.execute("select pg_postmaster_start_time()").fetchone()
        tried = [threads.submit(run, scope, statement) for scope, statement in deaf]
        wait_until(lambda: running(engine, "repeat(") == len(deaf))
        refused = one.write.answer("select 1", timeout_ms=500)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")
        for error in (each.result() for each in tried):
            assert (error["code"], error["sqlstate"]) == ("timeout", "57014"), error
        wait_until(lambda: running(engine, "repeat(") == 0)
        assert engine.execute("select pg_postmaster_start_time()").fetchone() == started
    for scope in ("write", "read"):
        assert all_places_are_free(one, scope, connections)


def all_places_are_free(tenant: Tenant, scope: str, connections: int) -> bool:
    """Whether as many statements run at once as the database has connections."""
    with as_owner(tenant.service) as engine, ThreadPoolExecutor(connections) as threads:
        marked = f"select pg_sleep(60) /* {scope} {time.monotonic_ns()} */"
        sleepers = [threads.submit(tenant.sql(scope).answer, marked) for _ in range(connections)]
        wait_until(lambda: running(engine, marked) == connections)
        engine.execute(f"select pg_cancel_backend(pid) {OF_TENANTS} and query = %s", [marked])
        return [sleeper.result().json()["error"]["sqlstate"] for sleeper in sleepers] == ["57014"] * connections
