"""Stops and kills of a service that runs a statement that the engine itself cannot end."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.faults import backends, catalog, child
from tests.service import Service, Sql, needs_bundled, new_data_dir, remove, start_service

DEAF = "select length(translate(repeat('a', 2000000), repeat('b', 2000000), ''))"
"""It looks at no cancel and no terminate, for hours."""


@contextmanager
def deaf_service() -> Iterator[tuple[Service, list[Path]]]:
    """A service that runs a deaf statement whose client has left, and the engine's and the statement's processes."""
    data_dir = new_data_dir()
    service = start_service(data_dir)
    with service.client() as client:
        assert client.post("/v1/query", json={"sql": "create table kept as select 7 as n"}).status_code == 200
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/query", json={"sql": DEAF}, timeout=1)
    [process] = backends(service, "query like 'select length(translate%'")
    yield service, [Path(f"/proc/{pid}") for pid in (catalog(service), child(service, engine=True), process)]
    remove(data_dir)


def is_alive(process: Path) -> bool:
    """Whether there is such a process; one that only waits to be reaped has no command line."""
    try:
        return bool((process / "cmdline").read_bytes())
    except OSError:
        return False


def kept(service: Service, key: str) -> object:
    with service.client(key) as client:
        return Sql(client).value("select n from kept")


@needs_bundled
def test_a_stop_leaves_no_engine_behind() -> None:
    """Though a statement runs that the engine itself cannot end. Its server is killed with it, and nothing is lost; the
    catalog's is shut down in order."""
    with deaf_service() as (service, processes):
        assert service.stop() == 0
        assert not any(is_alive(process) for process in processes)
        again = start_service(service.data_dir)
        assert kept(again, service.key) == 7
        assert again.stop() == 0
        assert "not properly shut down" not in (service.data_dir / "catalog" / "server.log").read_text()


@needs_bundled
def test_a_service_that_was_killed_starts_again() -> None:
    """What it left of its engine waits for a statement that does not end, and is ended first."""
    with deaf_service() as (service, processes):
        service.kill()
        again = start_service(service.data_dir)
        assert not any(is_alive(process) for process in processes)
        assert kept(again, service.key) == 7
        assert again.stop() == 0
