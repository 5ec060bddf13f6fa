"""Whoever holds a lock on what the service needs of the engine keeps nobody from trying again."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import psycopg
import pytest

from tests.tenants import Tenant, as_owner, make_tenant_fixture, server_of
from tests.waiting import eventually

two = make_tenant_fixture("service", "waiter")


@contextmanager
def control(tenant: Tenant) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {tenant.admin}"}
    url = tenant.service.control_url
    with httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as client:
        yield client


@pytest.mark.parametrize(
    ("lock", "method", "path", "body"),
    [
        ("lock table audit in exclusive mode", "PATCH", "/v1/databases/main", {"delete_protection": False}),
        ("lock table database in exclusive mode", "DELETE", "/v1/databases/going", None),
    ],
)
def test_a_lock_in_the_catalog(two: Tenant, lock: str, method: str, path: str, body: dict[str, Any] | None) -> None:
    with control(two) as client, as_owner(two.service) as engine:
        if path.endswith("going"):
            assert client.post("/v1/databases", json={"name": "going"}).status_code == 201
        assert_can_be_tried_again(client, engine, lock, method, path, body)


def test_a_lock_where_the_database_is(two: Tenant) -> None:
    """A dump makes a role."""
    with control(two) as client, server_of(two) as engine:
        assert_can_be_tried_again(
            client, engine, "lock table pg_authid in share mode", "GET", "/v1/databases/main/dump", None
        )


def assert_can_be_tried_again(
    client: httpx.Client,
    engine: "psycopg.Connection[tuple[Any, ...]]",
    lock: str,
    method: str,
    url: str,
    body: dict[str, Any] | None,
) -> None:
    """Nothing is done while somebody has the lock: the same request does it once the lock is free."""
    with engine.transaction(force_rollback=True):
        engine.execute(lock.encode())
        held = client.request(method, url, json=body)
    assert held.status_code == 503, held.text
    error = held.json()["error"]
    assert (error["code"], error["retryable"]) == ("busy", True), error

    def done() -> httpx.Response | None:
        """What was begun may still be taken back, which is to be tried again too."""
        answer = client.request(method, url, json=body)
        assert answer.status_code != 503 or answer.json()["error"]["retryable"], answer.text
        return None if answer.status_code == 503 else answer

    again = eventually(done)
    assert again.status_code in (200, 201), again.text
    if body and "name" in body:
        assert client.delete(f"/v1/databases/{body['name']}").status_code == 200
