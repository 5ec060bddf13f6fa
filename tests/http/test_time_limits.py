"""Time limits by kind of work, of an organization's own: which one ended a statement, and how it is changed."""

import json
from typing import Any

import psycopg
import pytest

from tests.control import Control, Organization, new_organization
from tests.needs import needs
from tests.service import Service, Sql
from tests.tunnel import Tunnel

NDJSON = {"Accept": "application/x-ndjson"}
SHORT_MS, LONG_MS = 150, 60_000
SLOW = "select pg_sleep(30)"
KINDS = ("statement", "stream", "export", "definition", "transaction")


@pytest.fixture(scope="module")
def limited(service: Service) -> Organization:
    """Every kind of work has less time here than elsewhere, each another."""
    made = new_organization(service)
    limits = {f"{kind}_timeout_ms": SHORT_MS + number for number, kind in enumerate(KINDS)}
    changed = Control(service, service.key).patch(f"/v1/organizations/{made.id}", {"limits": limits})
    assert changed["limits"] == limits
    return made


@pytest.fixture
def limited_sql(limited: Organization) -> Sql:
    return limited.control.sql()


def post(sql: Sql, path: str, body: Any, headers: dict[str, str] | None = None) -> Any:
    answer = sql.client.post(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    last = answer.text.strip().splitlines()[-1]
    return json.loads(last).get("data") or json.loads(last)


@pytest.mark.parametrize(
    ("kind", "path", "body", "headers"),
    [
        ("statement", "/v1/query", {"sql": SLOW}, None),
        ("stream", "/v1/query", {"sql": SLOW}, NDJSON),
        ("stream", "/v1/query", {"sql": f"/*+ STREAM */ {SLOW}"}, NDJSON),
        ("export", "/v1/query", {"sql": SLOW, "export": True}, NDJSON),
        ("definition", "/v1/query", {"sql": "create table slow as select pg_sleep(30)::text"}, None),
        ("transaction", "/v1/transaction", {"statements": [SLOW]}, None),
        ("definition", "/v1/transaction", {"statements": ["create table slow (id int)", SLOW]}, None),
    ],
)
def test_every_kind_of_work_has_its_own_limit(
    limited_sql: Sql, kind: str, path: str, body: Any, headers: dict[str, str] | None
) -> None:
    """The error names it, and says how it is changed."""
    error = post(limited_sql, path, body, headers)["error"]
    assert (error["code"], error["sqlstate"]) == ("timeout", "57014")
    assert f"after {SHORT_MS + KINDS.index(kind)} ms" in error["message"]
    assert f"({kind}_timeout_ms)" in error["message"]
    assert "with timeout_ms" in error["hint"]
    assert f"{kind}_timeout_ms" in error["hint"]
    assert "PATCH /v1/organizations/{id}" in error["hint"]


def test_a_request_can_ask_for_more_and_for_less(limited_sql: Sql) -> None:
    """More than the limit of its organization, up to the most; the error of less names the request."""
    slow = "select pg_sleep(0.4)"
    assert post(limited_sql, "/v1/query", {"sql": slow, "timeout_ms": LONG_MS})["success"]
    assert post(limited_sql, "/v1/transaction", {"statements": [slow], "timeout_ms": LONG_MS})["success"]
    error = post(limited_sql, "/v1/query", {"sql": SLOW, "timeout_ms": 50})["error"]
    assert "after 50 ms" in error["message"]
    assert "timeout_ms of the request" in error["message"]


def test_nobody_asks_for_more_than_the_most(operator: Control, service: Service) -> None:
    """The hint says then which limit must be raised; null gives a limit back to the tier."""
    made = new_organization(service)
    path = f"/v1/organizations/{made.id}"
    operator.patch(path, {"limits": {"statement_timeout_ms_max": 100}})
    sql = made.control.sql()
    error = post(sql, "/v1/query", {"sql": SLOW, "timeout_ms": LONG_MS})["error"]
    assert "after 100 ms" in error["message"]
    assert "statement_timeout_ms_max" in error["hint"]
    assert operator.patch(path, {"limits": {"statement_timeout_ms_max": None}})["limits"] == {}
    limits = made.control.get("/v1/organization")["limits"]
    assert (limits["statement_timeout_ms"], limits["statement_timeout_ms_max"]) == (30_000, 300_000)


def test_limits_in_force_are_shown(limited: Organization) -> None:
    """Those of the organization, and the settings' where it has none."""
    limits = limited.control.get("/v1/organization")["limits"]
    assert [limits[f"{kind}_timeout_ms"] for kind in KINDS] == [SHORT_MS + number for number in range(len(KINDS))]
    assert limits["export_timeout_ms_max"] == 14_400_000


@pytest.mark.parametrize("sql", ["create table t (id int)", "delete from t returning 1", "show work_mem"])
def test_an_export_is_a_query(sql: str, limited_sql: Sql) -> None:
    """Anything else is refused before it runs."""
    answer = limited_sql.client.post("/v1/query", json={"sql": sql, "export": True})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "malformed_request")


@needs("postgresql")
def test_an_export_cannot_write(organization: Organization) -> None:
    """Not even through a function; it is asked for with the field alone."""
    sql = organization.control.sql()
    sql.rows("create table if not exists exported (id int)")
    sql.rows(
        "create or replace function write_exported() returns int language sql as"
        " 'insert into exported values (1) returning id'"
    )
    told = sql.client.post("/v1/query", json={"sql": "select write_exported()", "export": True})
    assert told.headers["content-type"] == "text/event-stream"
    assert '"25006"' in told.text
    assert sql.value("select count(*) from exported") == 0
    rows = sql.client.post("/v1/query", json={"sql": "select 7 as id", "export": True}, headers=NDJSON)
    assert [json.loads(line)["event"] for line in rows.text.splitlines()] == ["columns", "row", "done"]


@needs("postgresql")
def test_a_client_of_the_engines_protocol_has_the_same_limits(service: Service, limited: Organization) -> None:
    """By the first word of what it sends; what it asks for at the start counts as `timeout_ms` does."""
    with Tunnel(service, limited.key) as tunnel:
        with tunnel.connect(autocommit=True) as connection:
            for kind, text in (("statement", SLOW), ("definition", "create table slow as select pg_sleep(30)::text")):
                with pytest.raises(psycopg.errors.QueryCanceled, match=rf"\({kind}_timeout_ms\)") as late:
                    connection.execute(text)
                assert f"{kind}_timeout_ms" in (late.value.diag.message_hint or "")
        with tunnel.connect(autocommit=True, options="-c statement_timeout=20s") as connection:
            connection.execute("select pg_sleep(0.4)")


def test_a_stream_of_quick_portions_ends_too(limited_sql: Sql) -> None:
    """Though each of them is there before a cancel comes to the engine."""
    sql = "select g, repeat('x', 500) from generate_series(1, 100000) g"
    error = post(limited_sql, "/v1/query", {"sql": sql, "timeout_ms": 1}, NDJSON)["error"]
    assert "after 1 ms" in error["message"]
