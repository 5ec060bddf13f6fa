"""Statements that the engine itself cannot end: many at once, and stops and kills of a service that runs one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.hostile.test_tenants_stubborn import DEAF, OF_TENANTS, assert_ended, running
from tests.inside import wait_until
from tests.metrics import scrape
from tests.service import Service, needs_bundled, new_data_dir, remove, start_service
from tests.tenants import Tenant, as_owner, tenant_of, undisturbed

CONNECTIONS = 3


@pytest.fixture(scope="module")
def tenants() -> Iterator[tuple[Tenant, Tenant]]:
    """Who sends such statements, and who must not notice."""
    data_dir = new_data_dir()
    service = start_service(data_dir, "--connections-per-database", str(CONNECTIONS))
    with tenant_of(service, "tenant-one") as one, tenant_of(service, "tenant-two") as two:
        two.write("create table kept (a int)")
        yield one, two
    assert service.stop() == 0
    remove(data_dir)


@needs_bundled
def test_as_many_as_there_are_connections_are_ended(tenants: tuple[Tenant, Tenant]) -> None:
    assert_ended(*tenants, [(scope, each) for scope in ("write", "read") for each in DEAF.values()], CONNECTIONS)


@needs_bundled
def test_what_clients_left_behind_is_ended_and_keeps_its_place_until_then(tenants: tuple[Tenant, Tenant]) -> None:
    one, two = tenants
    with as_owner(one.service) as engine, undisturbed(two):
        for _ in range(CONNECTIONS):
            with one.service.client(one.admin) as client, pytest.raises(httpx.ReadTimeout):
                client.post("/v1/query", json={"sql": DEAF["a text function"]}, timeout=1)
        assert running(engine, "translate") == CONNECTIONS
        # No more processes of this database than it has places, though nobody waits for any of them.
        refused = one.write.answer("select 1", timeout_ms=500)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")
        total = engine.execute(f"select count(*) {OF_TENANTS} and query like '%translate%'").fetchone()
        assert total == (CONNECTIONS,)
        wait_until(lambda: running(engine, "translate") == 0)
    assert one.write.value("select 1") == 1
    assert scrape(one.service).value("engine_processes_stuck") == 0


@contextmanager
def deaf_service() -> Iterator[tuple[Service, list[Path]]]:
    """A service that runs a deaf statement whose client has left, and the engine's and the statement's processes."""
    data_dir = new_data_dir()
    service = start_service(data_dir)
    with service.client() as client, as_owner(service) as engine:
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/query", json={"sql": DEAF["a text function"]}, timeout=1)
        [(process,)] = engine.execute(f"select pid {OF_TENANTS} and query like '%translate%'")
    postmaster = (data_dir / "postgres" / "postmaster.pid").read_text().split()[0]
    yield service, [Path(f"/proc/{postmaster}"), Path(f"/proc/{process}")]
    remove(data_dir)


def is_alive(process: Path) -> bool:
    """Whether there is such a process; one that only waits to be reaped has no command line."""
    try:
        return bool((process / "cmdline").read_bytes())
    except OSError:
        return False


@needs_bundled
def test_a_stop_leaves_no_engine_behind() -> None:
    """Though a statement runs that the engine itself cannot end. The engine is shut down in order all the same."""
    with deaf_service() as (service, processes):
        assert service.stop() == 0
        assert not any(is_alive(process) for process in processes)
        again = start_service(service.data_dir)
        assert again.stop() == 0
        assert "not properly shut down" not in (service.data_dir / "postgres.log").read_text()


@needs_bundled
def test_a_service_that_was_killed_starts_again() -> None:
    """What it left of its engine waits for a statement that does not end, and is ended first."""
    with deaf_service() as (service, processes):
        service.kill()
        again = start_service(service.data_dir)
        assert not any(is_alive(process) for process in processes)
        assert again.stop() == 0
