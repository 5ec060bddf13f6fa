"""The engine is told how often to look after its databases, and does so at once."""

import asyncio

import psycopg

from tests.inside import conninfo, wait_until
from tests.service import Service, needs_bundled, new_data_dir, remove, start_service
from tuplegate.engine.postgres.own.admin import METADATA_DATABASE, AdminConnector, AdminSession
from tuplegate.engine.postgres.own.vacuum_pace import set_pace


def nap(service: Service) -> str:
    with psycopg.connect(service.conninfo("postgres")) as looking:
        row = looking.execute("select setting from pg_settings where name = 'autovacuum_naptime'").fetchone()
    assert row is not None
    return str(row[0])


async def pace(service: Service, visits_a_second: float) -> None:
    async with AdminSession(AdminConnector(conninfo(service)), METADATA_DATABASE) as session:
        await set_pace(session, visits_a_second)


@needs_bundled
def test_more_databases_are_looked_after_less_often_and_fewer_more_often_again(service: Service) -> None:
    asyncio.run(pace(service, 1 / 100))
    wait_until(lambda: int(nap(service)) > 60)
    asyncio.run(pace(service, 4))
    wait_until(lambda: nap(service) == "60")


@needs_bundled
def test_a_service_sets_it_by_itself() -> None:
    """A worker looks when it starts: what another pace left is put right."""
    data_dir = new_data_dir()
    running = start_service(data_dir)
    asyncio.run(pace(running, 1 / 100))
    wait_until(lambda: int(nap(running)) > 60)
    running.stop()
    running = start_service(data_dir)
    try:
        wait_until(lambda: nap(running) == "60")
    finally:
        running.stop()
        remove(data_dir)


@needs_bundled
def test_a_time_that_somebody_chose_stays(service: Service) -> None:
    with psycopg.connect(service.conninfo("postgres"), autocommit=True) as superuser:
        superuser.execute("alter system set autovacuum_naptime = 90")
        superuser.execute("select pg_reload_conf()")
        wait_until(lambda: nap(service) == "90")
        asyncio.run(pace(service, 1 / 100))
        written = superuser.execute("select setting from pg_file_settings where name = 'autovacuum_naptime'").fetchall()
        assert written == [("90",)]
        superuser.execute("alter system reset autovacuum_naptime")
        superuser.execute("select pg_reload_conf()")
    wait_until(lambda: nap(service) == "60")
