"""What runs in the background goes on after a failure that nobody expected."""

import time
from collections.abc import Iterator

import psycopg
import pytest

from tests.metrics import scrape
from tests.service import Service, Sql, running_service
from tests.waiting import eventually


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service() as running:
        yield running


def change_metadata(service: Service, sql: str) -> None:
    with psycopg.connect(service.conninfo("tuplegate"), autocommit=True) as connection:
        connection.execute(sql.encode())


def restarts(service: Service, task: str) -> float:
    return scrape(service).value("task_restarts_total", task=task)


def test_pulse(service: Service) -> None:
    """It finds no revision, which cannot be; once there is one again it hears of changes as before."""
    with service.client() as client:
        sql = Sql(client)
        assert sql.value("select 1") == 1
        with psycopg.connect(service.conninfo("tuplegate")) as connection:
            row = connection.execute("select number from revision").fetchone()
            assert row is not None
        change_metadata(service, "delete from revision")
        eventually(lambda: restarts(service, "pulse") >= 2)
        change_metadata(service, f"insert into revision (number) values ({row[0]})")
        assert "IndexError" in service.log
        # Only the pulse tells a worker that a database is to be let go of.
        pause = "update database set paused_until = clock_timestamp() + interval '60 seconds' where is_default"
        change_metadata(service, pause)
        eventually(lambda: sql.answer("select 1", timeout_ms=200).status_code == 503)
        change_metadata(service, "update database set paused_until = null")
        eventually(lambda: sql.answer("select 1").status_code == 200)


def test_usage(service: Service) -> None:
    """What was counted while its record could not be made is on record later, and once."""
    change_metadata(service, "alter table usage rename to usage_away")
    with service.client() as client:
        sql = Sql(client)
        for _ in range(5):
            sql.value("select 1")
        eventually(lambda: "usage was not recorded" in service.log)
        change_metadata(service, "alter table usage_away rename to usage")
        with psycopg.connect(service.conninfo("tuplegate"), autocommit=True) as connection:

            def recorded() -> int:
                row = connection.execute("select coalesce(sum(requests), 0)::int from usage").fetchone()
                assert row is not None
                return int(row[0])

            eventually(lambda: recorded() >= 5)


def test_usage_is_on_record_once(service: Service) -> None:
    """Also where the step after it fails: that keys were used cannot be written."""
    with service.client() as client, psycopg.connect(service.conninfo("tuplegate"), autocommit=True) as connection:

        def recorded() -> int:
            row = connection.execute("select coalesce(sum(requests), 0)::int from usage").fetchone()
            assert row is not None
            return int(row[0])

        time.sleep(3)  # all that came before is on record
        before, logged = recorded(), service.log.count("usage was not recorded")
        change_metadata(
            service, "create function refuse() returns trigger language plpgsql as 'begin raise ''no''; end'"
        )
        change_metadata(service, "create trigger refuse before update on api_key execute function refuse()")
        try:
            for _ in range(5):
                Sql(client).value("select 1")
            eventually(lambda: service.log.count("usage was not recorded") >= logged + 2)
        finally:
            change_metadata(service, "drop trigger refuse on api_key")
            change_metadata(service, "drop function refuse()")
        time.sleep(3)
        assert recorded() == before + 5
