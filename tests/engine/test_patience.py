"""Statements that take as long as there is data are not cut off by the limit of the service's own statements, and
waiting for others ends."""

import asyncio
import secrets
import shutil
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.directories import new_directory
from tests.inside import conninfo
from tests.service import ENGINE, running_service
from tests.waiting import eventually
from tuplegate.engine import port
from tuplegate.engine.postgres.preparation.installing import PostgresOwner
from tuplegate.engine.postgres.service.admin import AdminConnector
from tuplegate.engine.postgres.tenancy import databases as databases_module
from tuplegate.engine.postgres.tenancy.databases import PostgresDatabases
from tuplegate.settings import Settings
from tuplegate.supervisor.engine_server import open_bundled
from tuplegate.tenancy.lifecycle import make_database_id

LIMIT_MS = 1000
LONGER_MS = 1500


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """That of a server which has several databases, for its superuser."""
    if ENGINE:
        with running_service() as service:
            yield conninfo(service)
        return
    home = new_directory()
    with open_bundled(Settings(data_dir=home / "data")) as bundled:
        asyncio.run(prepare(bundled.conninfo))
        yield bundled.conninfo
    shutil.rmtree(home)


async def prepare(address: str) -> None:
    """Do as the supervisor does before databases are made."""
    async with PostgresOwner(address, is_bundled=True).prepare() as preparation:
        await preparation.make_ready(secrets.token_bytes(32))


@pytest.fixture
def databases(address: str) -> PostgresDatabases:
    """As a worker has it, but with little patience for its own statements."""
    return PostgresDatabases(AdminConnector(address, statement_ms=LIMIT_MS), secrets.token_bytes(32))


@pytest.fixture
def source(databases: PostgresDatabases) -> Iterator[str]:
    name = make_database_id()
    asyncio.run(databases.create(name))
    yield name
    asyncio.run(databases.drop(name))


def run_held(address: str, work: Coroutine[Any, Any, None], statement: str) -> None:
    """Runs it while nothing may be written into the list of databases, until its statement has waited beyond the
    limit; then lets it go on."""

    async def held() -> None:
        with psycopg.connect(address, dbname="postgres") as holder:
            holder.execute("lock table pg_database in share mode")
            task = asyncio.create_task(work)
            try:
                await asyncio.to_thread(eventually, lambda: task.done() or waits(address, statement))
            finally:
                holder.rollback()
        await task

    asyncio.run(held())


def waits(address: str, statement: str) -> bool:
    with psycopg.connect(address, dbname="postgres") as looking:
        found = looking.execute(
            "select from pg_stat_activity where wait_event_type = 'Lock' and starts_with(query, %s)"
            " and clock_timestamp() - query_start > %s * interval '1 millisecond'",
            (statement, LONGER_MS),
        )
        return found.fetchone() is not None


def test_a_copy_may_take_its_time(address: str, databases: PostgresDatabases, source: str) -> None:
    """It is there in the end, with the rights of its own roles."""
    name = make_database_id()
    try:
        run_held(address, databases.copy(source, name), f"CREATE DATABASE {name}")
        with psycopg.connect(address, dbname=name) as inside:
            row = inside.execute("select has_database_privilege(%s, %s, 'connect')", (f"{name}_w", name)).fetchone()
        assert row == (True,)
    finally:
        asyncio.run(databases.drop(name))


def test_a_removal_may_take_its_time(address: str, databases: PostgresDatabases) -> None:
    """A large database has many files."""
    name = make_database_id()
    asyncio.run(databases.create(name))
    run_held(address, databases.drop(name), f"DROP DATABASE {name}")
    with psycopg.connect(address, dbname="postgres") as looking:
        assert looking.execute("select from pg_database where datname = %s", (name,)).fetchall() == []


def test_what_is_still_being_made_is_not_taken_for_gone(
    address: str, databases: PostgresDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was killed can leave a CREATE DATABASE to its server process: nobody sees the database yet."""
    monkeypatch.setattr(databases_module, "_DROP_TRIES_S", 1.0)
    name = make_database_id()
    with psycopg.connect(address, dbname="postgres", autocommit=True) as owner, ThreadPoolExecutor(1) as pool:
        owner.execute("alter system set synchronous_standby_names = '*'")
        owner.execute("select pg_reload_conf()")
        eventually(lambda: owner.execute("show synchronous_standby_names").fetchone() == ("*",))
        making = pool.submit(make_with, address, f"CREATE DATABASE {name} TEMPLATE template0")
        try:
            asking = "select from pg_stat_activity where wait_event = 'SyncRep' and starts_with(query, %s)"
            eventually(lambda: bool(owner.execute(asking, (f"CREATE DATABASE {name}",)).fetchall()))
            with pytest.raises(port.EngineBusy):
                asyncio.run(databases.drop(name))
        finally:
            owner.execute("alter system reset synchronous_standby_names")
            owner.execute("select pg_reload_conf()")
        making.result()
        asyncio.run(databases.drop(name))
        assert owner.execute("select from pg_database where datname = %s", (name,)).fetchall() == []


def make_with(address: str, statement: str) -> None:
    with psycopg.connect(address, dbname="postgres", autocommit=True) as maker:
        maker.execute(statement.encode())


def test_what_an_operator_has_prepared_is_named(
    address: str, databases: PostgresDatabases, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service cannot end it, and so cannot have the database for itself."""
    monkeypatch.setattr(databases_module, "_SILENCE_S", 1.0)
    with psycopg.connect(address, dbname=source, autocommit=True) as operator:
        operator.execute("begin")
        operator.execute("select pg_current_xact_id()")
        operator.execute("prepare transaction 'mine'")
        try:
            with pytest.raises(port.EngineBusy, match="mine"):
                asyncio.run(databases.silence(source))
        finally:
            operator.execute("rollback prepared 'mine'")
        asyncio.run(databases.silence(source))
