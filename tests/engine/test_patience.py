"""Statements that take as long as there is data are not cut off by the limit of the service's own statements."""

import asyncio
import secrets
from collections.abc import Coroutine, Iterator
from typing import Any

import psycopg
import pytest

from tests.inside import conninfo, wait_until
from tests.service import Service
from tuplegate.engine.postgres.own.admin import AdminConnector
from tuplegate.engine.postgres.tenancy.databases import PostgresDatabases
from tuplegate.tenancy.lifecycle import make_database_id

LIMIT_MS = 300
LONGER_MS = 900


@pytest.fixture
def databases(service: Service) -> PostgresDatabases:
    """As a worker has it, but with little patience for its own statements."""
    return PostgresDatabases(AdminConnector(conninfo(service), statement_ms=LIMIT_MS), secrets.token_bytes(32))


@pytest.fixture
def source(databases: PostgresDatabases) -> Iterator[str]:
    name = make_database_id()
    asyncio.run(databases.create(name))
    yield name
    asyncio.run(databases.drop(name))


def run_held(service: Service, work: Coroutine[Any, Any, None], statement: str) -> None:
    """Runs it while nothing may be written into the list of databases, until its statement has waited beyond the
    limit; then lets it go on."""

    async def held() -> None:
        with psycopg.connect(service.conninfo("postgres")) as holder:
            holder.execute("lock table pg_database in share mode")
            task = asyncio.create_task(work)
            try:
                await asyncio.to_thread(wait_until, lambda: task.done() or waits(service, statement))
            finally:
                holder.rollback()
        await task

    asyncio.run(held())


def waits(service: Service, statement: str) -> bool:
    with psycopg.connect(service.conninfo("postgres")) as looking:
        found = looking.execute(
            "select from pg_stat_activity where wait_event_type = 'Lock' and starts_with(query, %s)"
            " and clock_timestamp() - query_start > %s * interval '1 millisecond'",
            (statement, LONGER_MS),
        )
        return found.fetchone() is not None


def test_a_copy_may_take_its_time(service: Service, databases: PostgresDatabases, source: str) -> None:
    """It is there in the end, with the rights of its own roles."""
    name = make_database_id()
    try:
        run_held(service, databases.copy(source, name), f"CREATE DATABASE {name}")
        with psycopg.connect(service.conninfo(name)) as inside:
            row = inside.execute("select has_database_privilege(%s, %s, 'connect')", (f"{name}_w", name)).fetchone()
        assert row == (True,)
    finally:
        asyncio.run(databases.drop(name))


def test_a_removal_may_take_its_time(service: Service, databases: PostgresDatabases) -> None:
    """A large database has many files."""
    name = make_database_id()
    asyncio.run(databases.create(name))
    run_held(service, databases.drop(name), f"DROP DATABASE {name}")
    with psycopg.connect(service.conninfo("postgres")) as looking:
        assert looking.execute("select from pg_database where datname = %s", (name,)).fetchall() == []
