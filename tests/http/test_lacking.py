"""What not every engine can do works, or is refused with what to use instead, and a refusal leaves nothing behind."""

import httpx

from tests.control import Control, Organization
from tests.service import Sql


def refused_or(status: int, answer: httpx.Response, instead: str) -> bool:
    """Return whether it was refused as `not_supported`; the message must say what to use instead."""
    if answer.status_code == status:
        return False
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (501, "not_supported"), answer.text
    assert instead in error["message"]
    return True


def test_a_clone(control: Control) -> None:
    """Where the engine cannot copy, no half of a database is left, and its name is free."""
    refused = refused_or(
        201,
        control.ask("POST", "/v1/databases", {"name": "lacking", "clone_of": "main"}),
        "tuplegate database send",
    )
    names = [database["name"] for database in control.get("/v1/databases")["items"]]
    assert names.count("lacking") == (0 if refused else 1)
    if refused:
        control.post("/v1/databases", {"name": "lacking"})
    control.delete("/v1/databases/lacking")


def test_a_dump(control: Control) -> None:
    with control.client.stream("GET", "/v1/databases/main/dump") as answer:
        answer.read()
    refused_or(200, answer, "tuplegate export")


def test_a_size(control: Control, organization: Organization) -> None:
    """It counts what is stored, as far as the engine tells."""
    assert control.get("/v1/databases/main")["size_bytes"] > 0


def test_a_benchmark(client: httpx.Client) -> None:
    """Every workload runs, also where the engine cannot tidy a table up."""
    for workload in ("point_read", "insert", "stream"):
        body = client.get("/bench", params={"workload": workload, "seconds": 1, "concurrency": 2}).json()
        assert body["success"], body
        assert body["operations"] > 0
        assert body["errors"] == 0


def test_what_is_stored_is_read_back(client: httpx.Client, sql: Sql) -> None:
    assert client.get("/storage/test").json()["success"] is True
    assert sql.value("select 1") == 1
