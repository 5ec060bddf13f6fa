"""A look at a running service from inside the machine: its engine, its worker, and an adapter of the test's own."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from tests.service import Service
from tests.workers import workers
from tuplegate.engine.cockroach.preparation.installing import find_cluster
from tuplegate.engine.libpq.connections.logins import read_url
from tuplegate.engine.opening import reach_engines, share_engine
from tuplegate.engine.port import FIRST_ENGINE, OpenEngine
from tuplegate.engine.postgres.engine import PostgresEngine, open_postgres
from tuplegate.engine.postgres.replication.primary import Primary
from tuplegate.engine.postgres.service.settings import EngineSettings
from tuplegate.settings import Settings

_WAIT_S = 60.0


def conninfo(service: Service) -> str:
    """For the superuser of the first database's server, in the words of a driver."""
    return read_url(service.server_of())


def tenant_of(service: Service) -> str:
    """The engine's name of the first database."""
    return service.first_database


def owner(service: Service) -> "psycopg.Connection[tuple[Any, ...]]":
    """A connection to the first database as the owner of the installation."""
    return psycopg.connect(service.conninfo(tenant_of(service)), autocommit=True)


def empty_database(service: Service) -> str:
    """For the superuser: the database of that server that holds nothing, which every server has."""
    return make_conninfo(service.server_of(), dbname="postgres")


def scratch_schemas(connection: "psycopg.Connection[tuple[Any, ...]]") -> list[str]:
    rows = connection.execute("select nspname from pg_namespace where nspname like 'tuplegate\\_scratch\\_%'")
    return [str(row[0]) for row in rows]


def kill_worker(service: Service) -> None:
    """With a signal that it cannot see coming."""
    found = workers(service)
    assert found, "the service has no worker"
    os.kill(found[0], signal.SIGKILL)


def _secret(service: Service) -> bytes:
    """What a worker's adapter for the first database is told."""
    if not service.engine:
        return service.cells.secret_of(tenant_of(service))
    with psycopg.connect(service.conninfo("tuplegate")) as connection:
        row = connection.execute("select secret from installation").fetchone()
    assert row is not None
    return bytes(row[0])


@asynccontextmanager
async def engine_of(service: Service) -> AsyncIterator[OpenEngine]:
    """The adapter that a worker has, on the same server."""
    if service.engine and (cluster := await find_cluster(conninfo(service))) is not None:
        secret, chosen = _secret(service), Settings(engine=service.engine)
        shared = share_engine(FIRST_ENGINE, cluster.login(secret), (), chosen)
        reached = reach_engines(chosen, [shared], 0)[FIRST_ENGINE]
        async with reached.open("test", secret) as opened:
            yield opened
    else:
        async with postgres_of(service) as engine:
            yield engine


@asynccontextmanager
async def postgres_of(service: Service, primary: Primary | None = None) -> AsyncIterator[PostgresEngine]:
    """The same where the server is a PostgreSQL."""
    settings = EngineSettings(conninfo(service), installation="test", secret=_secret(service), primary=primary)
    async with open_postgres(settings) as engine:
        yield engine
