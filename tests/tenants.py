"""Two tenants of one service, each with a key that writes and one that reads; and what they try on each other."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import psycopg
import pytest

from tests.service import Service, Sql

PAUSE_S = 0.02
"""Between what a bystander asks: without it he would take a processor for himself."""
ROUND_S = 0.1
"""Between rounds of a bystander's work. Whatever ends statements of others ends them for longer than that."""


@dataclass(frozen=True)
class Tenant:
    """An organization with its first database. `admin` is its first key."""

    service: Service
    name: str
    admin: str
    write: Sql
    read: Sql

    def sql(self, scope: str) -> Sql:
        return self.read if scope == "read" else self.write

    @property
    def database(self) -> str:
        """The engine's name of its first database, which is awake from here on."""
        return str(self.write.value("select current_database()"))

    def transaction(self, *statements: str, **more: Any) -> httpx.Response:
        return self.write.client.post("/v1/transaction", json={"statements": statements, **more})


@contextmanager
def tenant_of(service: Service, name: str, tier: str = "unlimited") -> Iterator[Tenant]:
    with httpx.Client(base_url=service.control_url, timeout=60, trust_env=False, verify=False) as control:

        def post(path: str, key: str, body: dict[str, Any]) -> str:
            made = control.post(path, json=body, headers={"Authorization": f"Bearer {key}"})
            assert made.status_code == 201, made.text
            return str(made.json()["key"])

        admin = post("/v1/organizations", service.key, {"name": name, "tier": tier})
        write, read = (post("/v1/keys", admin, {"name": scope, "scopes": [scope]}) for scope in ("write", "read"))
    with service.client(write) as writer, service.client(read) as reader:
        yield Tenant(service, name, admin, Sql(writer), Sql(reader))


def make_tenant_fixture(service: str, name: str, *made: str) -> Any:
    """Return a fixture of a module: a tenant of the service that the module's own fixture `service` starts, which has
    run the statements in `made`."""

    @pytest.fixture(scope="module")
    def tenant(request: pytest.FixtureRequest) -> Iterator[Tenant]:
        with tenant_of(request.getfixturevalue(service), name) as found:
            for sql in made:
                found.write(sql)
            yield found

    return tenant


@pytest.fixture(scope="session")
def one(service: Service) -> Iterator[Tenant]:
    """Who attacks."""
    with tenant_of(service, "tenant-one") as tenant:
        yield tenant


@pytest.fixture(scope="session")
def two(service: Service) -> Iterator[Tenant]:
    """Who must not notice."""
    with tenant_of(service, "tenant-two") as tenant:
        tenant.write("create table kept (a int)")
        yield tenant


@contextmanager
def undisturbed(tenant: Tenant) -> Iterator[None]:
    """The tenant reads and writes all the while, as one does that has other work too; every one of its requests must be
    answered."""
    over = threading.Event()
    failures: list[str] = []
    rounds = 0

    def work() -> None:
        nonlocal rounds
        while not over.is_set() or not rounds:
            rounds += 1
            for statement in ("select count(*) from pg_class", "insert into kept values (1)", "truncate kept"):
                answer = tenant.write.answer(statement)
                if answer.status_code != 200 or not answer.json()["success"]:
                    failures.append(answer.text)
            over.wait(ROUND_S)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join()
    assert not failures, failures[0]


@contextmanager
def as_owner(service: Service, database: str = "tuplegate") -> Iterator["psycopg.Connection[tuple[Any, ...]]"]:
    """A look at the engine from outside: where the catalog is, or where a database is that was just used."""
    with psycopg.connect(service.conninfo(database), autocommit=True) as engine:
        yield engine


@contextmanager
def server_of(tenant: Tenant) -> Iterator["psycopg.Connection[tuple[Any, ...]]"]:
    """A look at the server of a tenant's first database from outside."""
    with as_owner(tenant.service, tenant.database) as engine:
        yield engine
