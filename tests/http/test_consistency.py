"""What a request says of how new its answer must be, where there are no replicas: it is judged, and changes nothing."""

import pytest

from tests.control import Control, error_of
from tests.needs import needs
from tests.service import Sql

POSITION = "00000001-00000000016b3740"


@pytest.mark.parametrize("path", ["/v1/query", "/v1/transaction", "stream"])
@pytest.mark.parametrize("value", ["", "Snapshot", "eventual", "snapshot, snapshot"])
def test_an_unknown_consistency_is_refused(sql: Sql, path: str, value: str) -> None:
    """A misspelt one must not be taken for the default."""
    headers = {"Tuplegate-Consistency": value}
    body = {"statements": ["select 1"]} if path == "/v1/transaction" else {"sql": "select 1"}
    if path == "stream":
        path, headers["Accept"] = "/v1/query", "application/x-ndjson"
    error = error_of(sql.client.post(path, json=body, headers=headers), 400, "malformed_request")
    assert "serializable or snapshot" in error["message"]


@pytest.mark.parametrize("consistency", ["snapshot", "serializable"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "value",
    ["", "1", "00000001-00000000016B3740", f"{POSITION}0", f"{POSITION}, {POSITION}", "0" * 5000],
)
def test_a_malformed_position_is_refused(sql: Sql, value: str, stream: bool, consistency: str) -> None:
    """Only what a service has told is one."""
    headers = {"Tuplegate-Consistency": consistency, "Tuplegate-Position": value}
    if stream:
        headers["Accept"] = "text/event-stream"
    answer = sql.client.post("/v1/query", json={"sql": "select 1"}, headers=headers)
    assert "send back the value of an answer" in error_of(answer, 400, "malformed_request")["message"]


@pytest.mark.parametrize(
    "position", [None, *(pytest.param(one, marks=needs("postgresql")) for one in (POSITION, "unknown"))]
)
def test_without_replicas_the_primary_answers(sql: Sql, position: str | None) -> None:
    """It says so where it was asked, and no answer has a position."""
    headers = {"Tuplegate-Consistency": "snapshot", **({} if position is None else {"Tuplegate-Position": position})}
    answer = sql.client.post("/v1/query", json={"sql": "select 1 as n"}, headers=headers)
    assert answer.json()["rows"] == [{"n": 1}]
    assert answer.headers["Tuplegate-Served-By"] == "primary"
    for plain in (answer, sql.answer("select 1"), sql.client.get("/tables")):
        assert "Tuplegate-Position" not in plain.headers
    body = {"statements": ["select 1 as n"], "read_only": True}
    transaction = sql.client.post("/v1/transaction", json=body, headers=headers)
    assert transaction.json()["results"][0]["rows"] == [{"n": 1}]


@pytest.mark.parametrize("statement", ["select 1 / 0", "select 1 +", "copy t to stdout", "select pg_sleep(9)"])
@pytest.mark.parametrize("path", ["/v1/query", "/v1/transaction", "stream", "keyed", "writing"])
def test_an_error_says_who_gave_it_too(sql: Sql, path: str, statement: str) -> None:
    """Once, whatever its code and wherever it comes from."""
    headers = {"Tuplegate-Consistency": "snapshot"}
    body: dict[str, object] = {"sql": statement, "timeout_ms": 100}
    if path in ("/v1/transaction", "writing"):
        body = {"statements": [statement], "timeout_ms": 100, "read_only": path != "writing"}
    elif path == "stream":
        headers["Accept"] = "application/x-ndjson"
    elif path == "keyed":
        headers["Idempotency-Key"] = f"of {statement}"
    url = "/v1/transaction" if "statements" in body else "/v1/query"
    answer = sql.client.post(url, json=body, headers=headers)
    assert '"success":false' in answer.text
    assert answer.headers.get_list("Tuplegate-Served-By") == ["primary"]


def test_a_key_says_what_its_requests_do_not(control: Control) -> None:
    """It is made so, shown so and changed."""
    made = control.post("/v1/keys", {"name": "reports", "scopes": ["read"], "consistency": "snapshot"})
    path = f"/v1/keys/{made['id']}"
    assert (made["consistency"], control.get(path)["consistency"]) == ("snapshot", "snapshot")
    sql = control.sql(made["key"])
    assert sql.answer("select 1").headers["Tuplegate-Served-By"] == "primary"
    assert control.patch(path, {"name": "other"})["consistency"] == "snapshot"
    assert control.patch(path, {"consistency": "serializable"})["consistency"] == "serializable"
    assert "Tuplegate-Served-By" not in sql.answer("select 1").headers
    assert control.post("/v1/keys", {"name": "usual", "scopes": ["read"]})["consistency"] == "serializable"
    control.refused(400, "malformed_request", "PATCH", path, {"consistency": "eventual"})
