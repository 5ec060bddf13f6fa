"""What a stranger is told in the first hour: every refusal says what to do instead."""

from typing import Any

import httpx
import pytest

from tests.control import Control, error_of
from tests.service import Service, Sql

ENDED = (401, "unauthenticated", "GET", "/v1/organization")


@pytest.mark.parametrize("stream", ["", "/*+ STREAM */ "])
def test_two_statements_lead_to_the_route_for_several(sql: Sql, stream: str) -> None:
    """Nobody needs to know what a prepared statement is."""
    error = error_of(sql.answer(f"{stream}select 1; select 2"), 400, "multiple_statements")
    assert error["message"] == "the text has more than one SQL statement, and one is taken; none was run"
    assert "POST /v1/transaction" in error["hint"]


def test_two_statements_in_one_entry_are_told_apart(client: httpx.Client) -> None:
    """Who is at the right route already is not sent there."""
    answer = client.post("/v1/transaction", json={"statements": ["select 1", "select 1; select 2"]})
    error = error_of(answer, 400, "multiple_statements")
    assert (error["statement"], error["hint"]) == (1, "Each entry of `statements` holds one.")


@pytest.mark.parametrize(
    ("statement", "more", "named"),
    [
        ("select * from pg_class where oid = ?", {"params": [1]}, "?"),
        ("select * from pg_class where oid = ?", {}, "?"),
        ("/*+ STREAM */ select * from pg_class where oid = ?", {"params": [1]}, "?"),
        ("select * from pg_class where oid = :oid", {"params": [1]}, ":oid"),
        ("select * from pg_class where relname = %s", {"params": ["a"]}, "%s"),
    ],
)
def test_placeholders_of_other_drivers_lead_to_ours(sql: Sql, statement: str, more: Any, named: str) -> None:
    """With parameters or without, and whatever the engine takes them for."""
    error = sql.answer(statement, **more).json()["error"]
    assert error["hint"] == f"Placeholders are $1, $2 and so on, not {named}."


def test_placeholders_in_a_transaction_are_told_of_too(client: httpx.Client) -> None:
    """Those of the statement that failed."""
    statements = ["select 1", {"sql": "select ?, 1", "params": [1]}]
    error = error_of(client.post("/v1/transaction", json={"statements": statements}), 400, "parse_error")
    assert (error["statement"], "$1" in error["hint"]) == (1, True)


def test_an_unknown_field_lists_those_that_there_are(client: httpx.Client) -> None:
    """And names the one that was meant."""
    error = error_of(client.post("/v1/query", json={"sql": "select 1", "parameters": []}), 400, "malformed_request")
    assert error["message"] == "there is no field `parameters`; did you mean `params`?"
    assert "sql (required), params" in error["hint"]


@pytest.mark.parametrize("length", [10, 2_000_000])
def test_params_that_are_no_list_are_named(client: httpx.Client, length: int) -> None:
    """Also in a body so long that they are read later."""
    answer = client.post("/v1/query", json={"sql": "select 1", "params": "x" * length})
    error = error_of(answer, 400, "malformed_request")
    assert error["message"] == "`params` must be a list or null, not a string"


def test_an_empty_body_is_called_empty(client: httpx.Client) -> None:
    """It is no broken JSON."""
    error = error_of(client.post("/v1/query"), 400, "malformed_request")
    assert error["message"] == "the body is empty; it must be JSON"


def test_a_redirect_that_lost_the_token_is_explained(service: Service) -> None:
    """Clients leave it out on the way to another port, so the control plane is asked without one."""
    with httpx.Client(trust_env=False, verify=False, follow_redirects=True) as client:
        token = {"Authorization": f"Bearer {service.key}"}
        answer = client.get(f"{service.alias_url}/v1/keys", headers=token)
        assert "redirect" in answer.history[0].json()["hint"]
    error = error_of(answer, 401, "unauthenticated")
    assert "redirect" in error["hint"]


def test_a_token_that_has_ended_says_where_others_come_from(service: Service, operator: Control) -> None:
    """A key and a session each lead to their own route."""
    key = operator.post("/v1/keys", {"name": "ended", "scopes": ["read"]})
    operator.delete(f"/v1/keys/{key['id']}")
    session = operator.with_token(operator.post("/v1/session")["token"])
    session.delete("/v1/session")
    assert "tuplegate key create" in operator.with_token(key["key"]).refused(*ENDED)["hint"]
    assert "POST /v1/session" in session.refused(*ENDED)["hint"]


@pytest.mark.parametrize(
    ("asked", "path", "plane", "right"),
    [
        ("url", "/v1/keys", "control", "control_url"),
        ("url", "/v1/databases/main", "control", "control_url"),
        ("control_url", "/v1/query", "data", "url"),
        ("control_url", "/v1/transaction/txn_x", "data", "url"),
    ],
)
def test_a_route_of_the_other_plane_names_its_address(
    service: Service, asked: str, path: str, plane: str, right: str
) -> None:
    """Whatever the method, and without a token."""
    answer = httpx.get(getattr(service, asked) + path, trust_env=False, verify=False)
    error = error_of(answer, 404, "not_found")
    assert f"is a route of the {plane} plane" in error["message"]
    assert error["hint"] == f"Send it to {getattr(service, right)}{path}"


def test_a_route_that_nobody_has_is_no_ones(service: Service) -> None:
    """On both planes, also where it only looks like one."""
    for url in (service.url, service.control_url):
        for path in ("/v1/kes", "/v1/keys/a/b/c", "/" + "x" * 5000):
            error = error_of(httpx.get(url + path, trust_env=False, verify=False), 404, "not_found")
            assert error["hint"] == "GET / lists the routes."


def test_the_banners_name_both_planes(service: Service) -> None:
    """So that one address is enough to find the other; the alias tells where it sends to."""
    for url in (service.url, service.control_url, service.alias_url):
        banner = httpx.get(url, trust_env=False, verify=False).json()
        assert banner["control_url"] == service.control_url
        assert banner["data_url"] == service.url
