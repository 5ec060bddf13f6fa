"""The service is what its description says: no status, header or field that is not in it, whatever is sent."""

import os
import re
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from openapi_spec_validator import validate
from schemathesis.checks import load_all_checks
from schemathesis.schemas import BaseSchema

from tests.control import TIERS, Control, error_of, new_organization
from tests.service import Service, Sql, new_data_dir, remove, start_service
from tuplegate.protocol.errors import ERRORS

ROOT = Path(__file__).parent.parent.parent
SLOW = {
    "/bench": "it takes seconds",
    "/capabilities": "at the first ask it tries a hundred things",
    "/admin/reset": "it makes a database each time",
}
"""Where nothing is made up, and why. The walk asks them."""

EXAMPLES_MAX = {"url": 8, "control_url": 4, "alias_url": 2}
"""Random ones for an operation, beside those that its description leads to. tests/extended tries the alias."""

BY_CODE = {"POST /v1/console/sessions"}
"""Takes a one-time code in place of a key, and refuses those that are made up."""


class Caller:
    """Asks with the first key of a service, and sees that each answer is as described."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.control = Control(service, service.key)

    def ask(self, case: schemathesis.Case[Any], token: str | None = None) -> dict[str, Any]:
        answer = case.call_and_validate(headers={"Authorization": f"Bearer {token or self.service.key}"}, timeout=30)
        is_json = answer.headers["content-type"] == ["application/json"]
        body: dict[str, Any] = answer.json() if is_json else {}
        return body

    def fuzz(self, plane: str) -> None:
        """Requests made up from the description, the same ones each time. Fails with what was found."""
        options = ["--phases", "examples,coverage,fuzzing", "--generation-deterministic", "--no-color"]
        options += ["--max-examples", str(EXAMPLES_MAX[plane]), "--request-timeout", "30"]
        # Most texts are no SQL, and most names are names of nothing: to refuse them is right.
        options += ["--exclude-checks", "positive_data_acceptance", "--continue-on-failure"]
        options += [part for path in SLOW for part in ("--exclude-path", path)]
        spared = [self.control.get("/v1/organization")["id"], self.control.get("/v1/keys")["items"][0]["id"]]
        environment = {
            **os.environ,
            "SCHEMATHESIS_HOOKS": "tests.openapi_hooks",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "TUPLEGATE_TEST_CONTROL": self.service.control_url,
            "TUPLEGATE_TEST_KEY": self.service.key,
            "TUPLEGATE_TEST_SPARED": ",".join(spared),
        }
        command = [
            sys.executable,
            "-m",
            "schemathesis.cli",
            "run",
            f"{getattr(self.service, plane)}/openapi.json",
            *options,
        ]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=self.service.home)
        assert done.returncode == 0, done.stdout + done.stderr
        unauthorized = done.stdout.partition("Authentication failed")[2].partition("💡")[0]
        refused = set(re.findall(r"^ +- (\w+ \S+)$", unauthorized, re.MULTILINE))
        assert refused <= BY_CODE, f"the key has not lasted:\n{done.stdout}"


@pytest.fixture(scope="module")
def caller() -> Iterator[Caller]:
    """On a service of its own: what is made up here deletes organizations and keys that it finds."""
    load_all_checks()
    data_dir = new_data_dir()
    running = start_service(data_dir, *TIERS)
    yield Caller(running)
    assert "unexpected failure" not in running.log
    assert running.stop() == 0
    remove(data_dir)


@pytest.fixture(scope="module")
def data_plane(caller: Caller) -> BaseSchema:
    return schemathesis.openapi.from_url(f"{caller.service.url}/openapi.json")


@pytest.fixture(scope="module")
def control_plane(caller: Caller) -> BaseSchema:
    return schemathesis.openapi.from_url(f"{caller.service.control_url}/openapi.json")


class Walk:
    """Requests that succeed, one by one. Remembers which operations of the description it has asked."""

    def __init__(self, caller: Caller, schema: BaseSchema) -> None:
        self.caller = caller
        self.schema = schema
        self.asked: set[tuple[str, str]] = set()

    def __call__(self, method: str, path: str, *, token: str | None = None, **more: Any) -> Any:
        self.asked.add((method, path))
        body = self.caller.ask(self.schema[path][method].Case(**more), token)
        assert body.get("success", True), body
        return body

    def assert_complete(self) -> None:
        paths = self.schema.raw_schema["paths"]
        assert self.asked == {(method.upper(), path) for path in paths for method in paths[path] if method != "options"}


def test_every_route_of_the_data_plane_succeeds_as_described(caller: Caller, data_plane: BaseSchema) -> None:
    """Each once at least, with rows, notices and errors of the engine in between."""
    walk = Walk(caller, data_plane)
    sql = Sql(caller.service.client())
    with sql.client:
        sql("create table visit (id int primary key, note text default 'x')")
        sql("create view visits as select count(*) from visit")
    for body in (
        {"sql": "select 1 as a, null as b, '{}'::jsonb as c"},
        {"sql": "select 1, 2", "row_mode": "arrays"},
        {"sql": "drop table if exists missing"},
        {"sql": "select generate_series(1, 9)", "max_rows": 2},
    ):
        walk("POST", "/v1/query", body=body)
    failed = caller.ask(data_plane["/v1/query"]["POST"].Case(body={"sql": "select 1 / 0"}))
    assert failed["error"]["sqlstate"] == "22012"
    walk("POST", "/query", body="select 1", media_type="text/plain")
    for accept in ("text/event-stream", "application/x-ndjson"):
        walk("POST", "/v1/query", body={"sql": "select 1"}, headers={"Accept": accept})
    made = walk("POST", "/v1/transaction", body={"statements": ["insert into visit values (1)", "select * from visit"]})
    for _ in range(2):
        walk("POST", "/v1/query", body={"sql": "select 2"}, headers={"Idempotency-Key": "walk"})
    walk("GET", "/v1/transaction/{id}", path_parameters={"id": made["transaction_id"]})
    walk("POST", "/v1/transaction/{id}/abort", path_parameters={"id": "txn_of_the_walk"})
    for end in ("commit", "rollback"):
        opened = walk("POST", "/v1/transaction/begin", body={"statement": "select 1"})
        parts = {"id": opened["transaction_id"]}
        walk("POST", "/v1/transaction/{id}/query", body={"sql": "select 2", "sequence": 1}, path_parameters=parts)
        walk("GET", "/v1/transaction/{id}", path_parameters=parts)
        if end == "commit":
            walk("POST", "/v1/transaction/{id}/commit", body={"sequence": 2}, path_parameters=parts)
        else:
            walk("POST", "/v1/transaction/{id}/rollback", path_parameters=parts)
        walk("GET", "/v1/transaction/{id}", path_parameters=parts)
    several = [{"query": "select 1", "arrayMode": True}, {"query": "select 2"}]
    for sent in (
        {"query": "select id, note from visit where id = $1", "params": ["1"]},
        {"query": "drop table if exists missing"},
        {"queries": several},
    ):
        walk("POST", "/sql", body=sent, headers={"Neon-Batch-Isolation-Level": "ReadCommitted"})
    refused = caller.ask(data_plane["/sql"]["POST"].Case(body={"query": "select 1 / 0"}))
    assert refused["code"] == "22012"
    assert {table["name"] for table in walk("GET", "/tables")["tables"]} == {"visit", "visits"}
    for probe in walk("GET", "/capabilities")["probes"]:
        if probe["group"] in ("service", "isolation"):
            walk("GET", "/capabilities/{name}", path_parameters={"name": probe["name"]})
    walk("GET", "/bench", query={"seconds": 1, "concurrency": 2})
    walk("GET", "/storage/test", query={"bytes": 1000})
    walk("POST", "/admin/reset")
    # What follows a WebSocket's opening is nothing that OpenAPI describes.
    assert caller.ask(data_plane["/v2"]["GET"].Case())["error"]["code"] == "upgrade_required"
    walk.asked.add(("GET", "/v2"))
    for path in ("/health", "/openapi.json", "/docs", "/"):
        walk("GET", path)
    walk.assert_complete()


def test_every_route_of_the_control_plane_succeeds_as_described(caller: Caller, control_plane: BaseSchema) -> None:
    """Through the lives of a session, a database, a key and an organization."""
    walk = Walk(caller, control_plane)
    for path in ("/health", "/openapi.json", "/docs", "/", "/v1/organization", "/v1/usage", "/metrics"):
        walk("GET", path)
    session = walk("POST", "/v1/session", body={"scopes": ["read"]})["token"]
    walk("GET", "/v1/session", token=session)
    walk("POST", "/v1/session/refresh", token=session)
    walk("DELETE", "/v1/session", token=session)
    code = walk("POST", "/v1/console/codes", body={"scopes": ["read"]})["code"]
    opened = walk("POST", "/v1/console/sessions", body={"code": code})
    walk("GET", "/v1/sessions", query={"limit": 1})
    walk("DELETE", "/v1/sessions/{id}", path_parameters={"id": opened["session"]["id"]})

    organization = walk("POST", "/v1/organizations", body={"name": "walked", "tier": "unlimited"})
    one: dict[str, Any] = {"path_parameters": {"id": organization["id"]}}
    walk("GET", "/v1/organizations", query={"limit": 1})
    walk("GET", "/v1/organizations/{id}", **one)
    walk("PATCH", "/v1/organizations/{id}", body={"name": "walked-on"}, **one)

    admin = organization["key"]
    walk("POST", "/v1/databases", body={"name": "staging"}, token=admin)
    walk("GET", "/v1/databases", token=admin)
    one = {"path_parameters": {"name": "staging"}, "token": admin}
    walk("GET", "/v1/databases/{name}", **one)
    walk("GET", "/v1/databases/{name}/dump", **one)
    walk("PATCH", "/v1/databases/{name}", body={"delete_protection": False}, **one)
    walk("DELETE", "/v1/databases/{name}", **one)
    engines = walk("GET", "/v1/engines")["items"]
    walk("PATCH", "/v1/engines/{name}", path_parameters={"name": "first"}, body={"weight": engines[0]["weight"]})
    walk.asked.add(("POST", "/v1/databases/{name}/move"))  # it needs a second engine, as test_several_engines has

    key = walk("POST", "/v1/keys", body={"name": "report", "scopes": ["read"], "expires_in": 60}, token=admin)
    walk("GET", "/v1/keys", token=admin)
    one = {"path_parameters": {"id": key["id"]}, "token": admin}
    walk("GET", "/v1/keys/{id}", **one)
    walk("PATCH", "/v1/keys/{id}", body={"expires_in": None}, **one)
    walk("POST", "/v1/keys/{id}/rotate", body={"grace_seconds": 1}, **one)
    walk("DELETE", "/v1/keys/{id}", **one)
    walk("GET", "/v1/audit", token=admin)
    walk("DELETE", "/v1/organizations/{id}", path_parameters={"id": organization["id"]})
    walk.assert_complete()


def test_every_refusal_of_the_data_plane_is_described(caller: Caller, data_plane: BaseSchema) -> None:
    """Statuses that nothing made up leads to."""
    query, transaction = data_plane["/v1/query"]["POST"], data_plane["/v1/transaction"]["POST"]
    one: Any = {"sql": "select 1"}
    two: Any = {"sql": "select 2"}
    reader = caller.control.post("/v1/keys", {"name": "reader", "scopes": ["read"]})["key"]
    once, chosen = {"Idempotency-Key": "refusals"}, {"Tuplegate-Transaction-Id": "txn_refusals"}
    caller.ask(query.Case(body=one, headers=once))
    caller.ask(transaction.Case(body={"statements": ["select 1"]}, headers=chosen))
    caller.control.patch("/v1/databases/main", {"delete_protection": True})
    for code, case, token in (
        ("parse_error", query.Case(body={"sql": "selec 1"}), None),
        ("unauthenticated", query.Case(body=one), "svc_k_wrong"),
        ("forbidden", data_plane["/storage/test"]["GET"].Case(), reader),
        ("not_found", data_plane["/tables"]["GET"].Case(headers={"Tuplegate-Database": "nowhere"}), None),
        ("not_acceptable", query.Case(body=one, headers={"Accept": "image/png"}), None),
        ("delete_protected", data_plane["/admin/reset"]["POST"].Case(), None),
        ("transaction_id_used", transaction.Case(body={"statements": ["select 1"]}, headers=chosen), None),
        ("body_too_large", query.Case(body={"sql": "x" * (10 * 2**20)}), None),
        ("unsupported_media_type", query.Case(body=one, headers={"Content-Type": "text/csv"}), None),
        ("idempotency_mismatch", query.Case(body=two, headers=once), None),
    ):
        assert caller.ask(case, token)["error"]["code"] == code
    caller.control.patch("/v1/databases/main", {"delete_protection": False})
    limited = new_organization(caller.service, "tiny")
    tables = data_plane["/tables"]["GET"]
    while (refused := caller.ask(tables.Case(), limited.key)).get("success"):
        pass
    assert refused["error"]["code"] == "rate_limited"


def test_every_refusal_of_the_control_plane_is_described(caller: Caller, control_plane: BaseSchema) -> None:
    """The same of the other plane."""
    databases, main = control_plane["/v1/databases"], control_plane["/v1/databases/{name}"]
    for code, case in (
        ("already_exists", databases["POST"].Case(body={"name": "main"})),
        ("not_found", databases["POST"].Case(body={"name": "other", "clone_of": "nowhere"})),
        ("wrong_state", main["DELETE"].Case(path_parameters={"name": "main"})),
        ("forbidden", control_plane["/v1/session"]["GET"].Case()),
    ):
        assert caller.ask(case)["error"]["code"] == code


def test_the_data_plane_answers_as_described_whatever_it_is_sent(caller: Caller) -> None:
    """No 500, no status, header or field that is not described, and nothing malformed is accepted."""
    caller.fuzz("url")


def test_the_control_plane_answers_as_described_whatever_it_is_sent(caller: Caller) -> None:
    """The same of the other plane."""
    caller.fuzz("control_url")


@pytest.mark.parametrize("plane", ["url", "control_url", "alias_url"])
def test_the_description_is_valid_and_needs_no_token(plane: str, service: Service) -> None:
    """By the rules of OpenAPI 3.1. The address is wherever it was fetched from."""
    answer = httpx.get(f"{getattr(service, plane)}/openapi.json", trust_env=False, verify=False)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    document = answer.json()
    validate(document)
    assert document["openapi"] == "3.1.0"
    assert document["servers"] == [{"url": "/"}]


@pytest.mark.parametrize("plane", ["url", "control_url"])
def test_every_operation_is_in_a_group(plane: str, service: Service) -> None:
    """One that is listed; and none is listed without an operation."""
    document = httpx.get(f"{getattr(service, plane)}/openapi.json", trust_env=False, verify=False).json()
    groups = [tag["name"] for tag in document["tags"]]
    used = [operation["tags"] for methods in document["paths"].values() for operation in methods.values()]
    assert all(len(tags) == 1 for tags in used)
    assert {tags[0] for tags in used} == set(groups)
    assert len(groups) == len(set(groups)) > 3


def test_every_error_code_is_described_somewhere(service: Service) -> None:
    """But the one that no described operation can have: a method that is not described."""
    texts = [
        httpx.get(f"{url}/openapi.json", trust_env=False, verify=False).text
        for url in (service.url, service.control_url)
    ]
    missing = {code for code in ERRORS if not any(f"`{code}`" in text for text in texts)}
    assert missing == {"method_not_allowed"}


def test_the_banner_lists_what_is_described_and_links_to_it(service: Service) -> None:
    """On both planes."""
    for url in (service.url, service.control_url):
        with httpx.Client(base_url=url, trust_env=False, verify=False) as client:
            banner = client.get("/").json()
            described = client.get(banner["openapi"]).json()["paths"]
            assert client.get(banner["documentation"]).status_code == 200
        routes = {f"{method.upper()} {path}" for path, methods in described.items() for method in methods}
        assert {route for route in routes if not route.startswith("OPTIONS")} == set(banner["endpoints"])


@pytest.mark.parametrize("plane", ["url", "control_url", "alias_url"])
def test_the_page_runs_only_what_is_in_it(plane: str, service: Service) -> None:
    """Its policy names its own script and style by their hashes, and nothing of the page comes from elsewhere."""
    answer = httpx.get(f"{getattr(service, plane)}/docs", trust_env=False, verify=False)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    [policy] = answer.headers.get_list("content-security-policy")
    for tag in ("script", "style"):
        [text] = re.findall(f"<{tag}>(.*?)</{tag}>", answer.text, re.DOTALL)
        assert f"{tag}-src 'sha256-{b64encode(sha256(text.encode()).digest()).decode()}';" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "://" not in answer.text.replace("/* script */", "")
    assert " src=" not in answer.text


def test_other_answers_keep_the_strict_policy(service: Service) -> None:
    """The page's own policy is the page's alone, also over one connection."""
    with httpx.Client(base_url=service.url, trust_env=False, verify=False) as client:
        assert "script-src" in client.head("/docs").headers["content-security-policy"]
        for path in ("/", "/openapi.json", "/docs/"):
            policy = client.get(path).headers["content-security-policy"]
            assert policy == "default-src 'none'; frame-ancestors 'none'"


def test_the_alias_redirects_what_only_the_control_plane_has(service: Service) -> None:
    """As the description says in words: these are no paths of the data plane."""
    answer = httpx.get(f"{service.alias_url}/v1/keys", trust_env=False, verify=False)
    assert (answer.status_code, answer.headers["location"]) == (307, f"{service.control_url}/v1/keys")
    error_of(httpx.post(f"{service.alias_url}/docs", trust_env=False, verify=False), 405, "method_not_allowed")
