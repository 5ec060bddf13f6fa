"""What all databases share, their names and catalogs, is no lever: no tenant holds up, prevents or outlives another."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import httpx
import pytest

from tests.control import wait_until
from tests.service import Service
from tests.tenants import Tenant, as_owner, tenant_of

_numbers = count(1)


@pytest.fixture
def one(service: Service) -> Iterator[Tenant]:
    """Who attacks. Each test has another one: whoever was caught is held back for a while."""
    with tenant_of(service, f"attacker-{next(_numbers)}") as tenant:
        tenant.write("create table pin (a int)")
        yield tenant


@pytest.fixture(scope="module")
def two(service: Service) -> Iterator[Tenant]:
    """Who must not notice. Its database is reset here."""
    with tenant_of(service, "bystander") as tenant:
        yield tenant


@contextmanager
def control(tenant: Tenant) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {tenant.admin}"}
    url = tenant.service.control_url
    with httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False) as client:
        yield client


@pytest.mark.parametrize(
    ("holding", "waiting"),
    [
        (
            "lock table pg_catalog.pg_database in access share mode",
            "create rule r as on insert to pg_catalog.pg_database do instead nothing",
        ),
        ("select count(*) from pg_roles", "create rule r as on insert to pg_catalog.pg_authid do instead nothing"),
        (
            "alter role current_user in database tuplegate set application_name = 'x'",
            "do $$ begin execute 'alter database tuplegate rename to foo'; end $$",
        ),
        (
            "alter role current_user in database tuplegate_template set application_name = 'x'",
            "drop database tuplegate_template",
        ),
    ],
)
def test_a_lock_on_what_all_share_is_ended(one: Tenant, two: Tenant, holding: str, waiting: str) -> None:
    """The engine queues for the lock before it looks for the right; whoever comes after would wait behind that."""
    held = threading.Thread(target=lambda: one.transaction(holding, "select pg_sleep(14)"))
    errors: list[Any] = []
    held.start()
    with as_owner(one.service) as engine:
        asleep = "select 1 from pg_stat_activity where query = 'select pg_sleep(14)' and wait_event = 'PgSleep'"
        wait_until(lambda: bool(engine.execute(asleep).fetchall()))
        blocked = threading.Thread(target=lambda: errors.append(one.write.answer(waiting).json()["error"]))
        blocked.start()
        queued = "select 1 from pg_locks where not granted and database = 0"
        wait_until(lambda: bool(engine.execute(queued).fetchall() or errors))
    name = f"made-{time.monotonic_ns()}"
    with control(two) as client:
        assert client.get("/v1/databases").status_code == 200
        made = client.post("/v1/databases", json={"name": name})
        assert made.status_code == 201, made.text
        assert held.is_alive(), "all of it was done while the lock was held"
        assert client.delete(f"/v1/databases/{name}").status_code == 200
    blocked.join()
    assert errors[0]["sqlstate"] == "53200", errors
    with as_owner(one.service) as engine:
        engine.execute("select pg_cancel_backend(pid) from pg_stat_activity where query = 'select pg_sleep(14)'")
    held.join()


def test_whoever_names_the_role_of_a_copy_does_not_prevent_it(one: Tenant, two: Tenant) -> None:
    """The role is there for a moment, and every tenant can name it, if it guesses."""
    over = threading.Event()
    named: list[str] = []

    def pin() -> None:
        with as_owner(one.service) as engine:
            while not over.is_set():
                for (role,) in engine.execute("select rolname from pg_roles where rolname ~ '^tg_.*_c$'").fetchall():
                    if one.write.answer(f"grant select on pin to {role}").json()["success"]:
                        named.append(role)

    pinning = threading.Thread(target=pin)
    pinning.start()
    try:
        with control(two) as client:
            for number in range(4):
                made = client.post("/v1/databases", json={"name": f"copy-{number}", "clone_of": "main"})
                assert made.status_code == 201, made.text
                assert client.delete(f"/v1/databases/copy-{number}").status_code == 200
    finally:
        over.set()
        pinning.join()
    eventually_gone(one.service, set(named))


def test_a_role_that_others_name_goes_with_its_database(one: Tenant, two: Tenant) -> None:
    with control(two) as client:
        made = client.post("/v1/databases", json={"name": "named"}).json()["id"]
        named = {f"{made}_w", f"{made}_r"}
        for statement in (
            f"grant select on pin to {made}_w, {made}_r",
            f"alter default privileges grant select on tables to {made}_r",
            "alter table pin enable row level security",
            f"create policy p on pin to {made}_r using (true)",
        ):
            one.write(statement)
        assert client.delete("/v1/databases/named").status_code == 200
    eventually_gone(one.service, named)
    one.write("alter table pin disable row level security")


def eventually_gone(service: Service, roles: set[str]) -> None:
    deadline = time.monotonic() + 30
    with as_owner(service) as engine:
        while roles & {str(name) for (name,) in engine.execute("select rolname from pg_roles")}:
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.mark.parametrize(
    ("lock", "plane", "method", "path", "body"),
    [
        ("comment on database {template} is 'x'", "control", "POST", "/v1/databases", {"name": "made"}),
        ("comment on database {template} is 'x'", "data", "POST", "/admin/reset", None),
        ("lock table pg_authid in share mode", "control", "GET", "/v1/databases/main/dump", None),
        ("lock table audit in exclusive mode", "control", "PATCH", "/v1/databases/main", {"delete_protection": False}),
        ("lock table database in exclusive mode", "control", "DELETE", "/v1/databases/going", None),
    ],
)
def test_what_waits_for_a_lock_too_long_can_be_tried_again(
    two: Tenant, lock: str, plane: str, method: str, path: str, body: dict[str, Any] | None
) -> None:
    """Nothing is done by then: the same request does it once the lock is free."""
    with control(two) as client, as_owner(two.service) as engine:
        url = two.service.url if plane == "data" else two.service.control_url
        if path.endswith("going"):
            assert client.post("/v1/databases", json={"name": "going"}).status_code == 201
        [(template,)] = engine.execute("select datname from pg_database where datname ~ '_template$'").fetchall()
        with engine.transaction(force_rollback=True):
            engine.execute(lock.format(template=template))
            held = client.request(method, url + path, json=body)
        assert held.status_code == 503, held.text
        error = held.json()["error"]
        assert (error["code"], error["retryable"]) == ("busy", True), error
        deadline = time.monotonic() + 20  # what was begun may still be taken back, which is to be tried again too
        while (again := client.request(method, url + path, json=body)).status_code == 503:
            assert again.json()["error"]["retryable"], again.text
            assert time.monotonic() < deadline, again.text
        assert again.status_code in (200, 201), again.text
        if body and "name" in body:
            assert client.delete(f"/v1/databases/{body['name']}").status_code == 200
