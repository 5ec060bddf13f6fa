"""The names that all databases of a server share are no lever: no tenant prevents or outlives another by naming it."""

import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.external import ExternalServer
from tests.hostile.test_held_locks import assert_can_be_tried_again, control
from tests.service import Service, needs_bundled, running_service
from tests.tenants import Tenant, as_owner, tenant_of
from tests.waiting import eventually

pytestmark = needs_bundled

_numbers = count(1)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """On a server of the user's own, where all databases are beside each other."""
    server = ExternalServer(max_connections="250")
    with running_service(env={"TUPLEGATE_ENGINE": server.url()}) as running:
        yield running
    server.remove()


@pytest.fixture
def one(service: Service) -> Iterator[Tenant]:
    """Who attacks. Each test has another one."""
    with tenant_of(service, f"attacker-{next(_numbers)}") as tenant:
        tenant.write("create table pin (a int)")
        yield tenant


@pytest.fixture(scope="module")
def two(service: Service) -> Iterator[Tenant]:
    """Who must not notice. Its database is reset here."""
    with tenant_of(service, "bystander") as tenant:
        yield tenant


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
    with as_owner(service) as engine:
        eventually(lambda: not roles & {str(name) for (name,) in engine.execute("select rolname from pg_roles")})


@pytest.mark.parametrize(
    ("plane", "path", "body"), [("control", "/v1/databases", {"name": "made"}), ("data", "/admin/reset", None)]
)
def test_what_waits_for_the_template_can_be_tried_again(
    two: Tenant, plane: str, path: str, body: dict[str, Any] | None
) -> None:
    with control(two) as client, as_owner(two.service) as engine:
        url = two.service.url if plane == "data" else two.service.control_url
        [(template,)] = engine.execute("select datname from pg_database where datname ~ '_template$'").fetchall()
        lock = f"comment on database {template} is 'x'"
        assert_can_be_tried_again(client, engine, lock, "POST", url + path, body)
