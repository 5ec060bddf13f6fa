"""Schemas that the service made for itself are gone, whoever was killed meanwhile."""

import os
import signal
from contextlib import suppress

import httpx
import psycopg

from tests.faults import backends
from tests.http.test_bench_route import running
from tests.inside import kill_worker, owner, scratch_schemas
from tests.service import Service, Sql, new_data_dir, remove, start_service
from tests.waiting import eventually


def test_nothing_is_left_of_a_worker_that_was_killed() -> None:
    """The next one drops what it finds, but no schema of the tenant's that only looks alike."""
    data_dir = new_data_dir()
    service = start_service(data_dir)
    try:
        with service.client() as client:
            Sql(client)("create schema tuplegate_scratch_0123456789abcdef0123456789abcdef")
            Sql(client)("create table tuplegate_scratch_0123456789abcdef0123456789abcdef.t (a int)")
        mine = ["tuplegate_scratch_0123456789abcdef0123456789abcdef"]
        with owner(service) as inside:
            with running(service, inside) as schema:
                assert sorted(scratch_schemas(inside)) == sorted([*mine, schema])
                kill_worker(service)
            eventually(lambda: _answers(service))  # a worker looks after the databases that it is asked for
            eventually(lambda: scratch_schemas(inside) == mine)
    finally:
        assert service.stop() == 0
        remove(data_dir)


def test_nothing_is_left_where_the_engine_crashed() -> None:
    """The worker lives on, cannot drop its schema just then, and does so when the engine is back."""
    data_dir = new_data_dir()
    service = start_service(data_dir)
    try:
        with owner(service) as inside, running(service, inside) as schema:
            [backend] = backends(service, f"pid = {inside.info.backend_pid}")
            os.kill(backend, signal.SIGKILL)  # the server takes all its processes with it
        eventually(lambda: _is_gone(service, schema))
    finally:
        assert service.stop() == 0
        remove(data_dir)


def _answers(service: Service) -> bool:
    with suppress(httpx.TransportError), service.client() as client:
        return Sql(client).answer("select 1").status_code == 200
    return False


def _is_gone(service: Service, schema: str) -> bool:
    with suppress(psycopg.OperationalError), owner(service) as inside:  # the engine may still be starting
        return schema not in scratch_schemas(inside)
    return False
