"""A reset that is cut off: the database is as it was or empty, it can be used again, and nothing is left over."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.control import Control, disagreements, engine, engine_name, list_engine, worker_pid
from tests.faults import child
from tests.service import Service, new_data_dir, remove, start_service
from tests.waiting import eventually
from tests.workers import workers

SETTLED_S = 60.0


@pytest.fixture
def home() -> Iterator[Path]:
    data_dir = new_data_dir()
    yield data_dir
    remove(data_dir)


@pytest.fixture
def own_service(home: Path) -> Iterator[Service]:
    """Its default database has a table, and that is the one to be reset: the service needs it to start."""
    running = start_service(home)
    Control(running, running.key).sql()("create table kept as select 7 as n")
    yield running
    running.stop()


class HeldReset:
    """A reset that has got as far as its last step before the change in the catalog, and waits there for the test."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._database = Control(service, service.key).get("/v1/databases/main")["id"]
        self.engine_name = engine_name(service, self._database)
        self._holder = engine(service)
        self.answers: list[httpx.Response | None] = []
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> "HeldReset":
        self._holder.execute("begin")
        self._holder.execute("lock table audit in exclusive mode")  # where it would be noted
        self._thread.start()
        eventually(self._is_silenced, SETTLED_S)
        eventually(self._waits, SETTLED_S)
        return self

    def __exit__(self, *exc: object) -> None:
        self.let_go()
        self._thread.join()

    def let_go(self) -> None:
        self._holder.close()

    def is_done(self) -> bool:
        with engine(self._service) as connection:
            row = connection.execute("select engine_name from database where id = %s", [self._database]).fetchone()
        return row is not None and row[0] != self.engine_name

    def _send(self) -> None:
        with self._service.client() as client:
            try:
                self.answers.append(client.post("/admin/reset"))
            except httpx.TransportError:
                self.answers.append(None)  # it was cut off

    def _is_silenced(self) -> bool:
        with engine(self._service, self.engine_name) as connection:
            row = connection.execute(
                "select has_database_privilege(%s, %s, 'connect')", [f"{self.engine_name}_w", self.engine_name]
            ).fetchone()
        return row == (False,)

    def _waits(self) -> bool:
        with engine(self._service) as connection:
            waiting = connection.execute(
                "select from pg_locks l join pg_database d on d.oid = l.database"
                " where not l.granted and d.datname = %s",
                [self._holder.info.dbname],
            ).fetchone()
        return waiting is not None


def settled(service: Service) -> None:
    eventually(lambda: disagreements(service).none, SETTLED_S)


def serves(service: Service) -> bool:
    try:
        return httpx.get(service.control_url + "/health", trust_env=False, verify=False, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def replace_worker(service: Service) -> None:
    """By another, which has connections of its own."""
    former = worker_pid(service)
    os.kill(former, signal.SIGKILL)
    eventually(lambda: serves(service) and workers(service) not in ([], [former]), SETTLED_S)


def tables(service: Service) -> list[str]:
    """What the tenant sees, once the service lets somebody in again."""
    sql = Control(service, service.key).sql()
    eventually(lambda: sql.answer("select 1").status_code == 200, SETTLED_S)
    return [row["name"] for row in sql.rows("select tablename as name from pg_tables where schemaname = 'public'")]


def test_a_service_killed_before_the_change_has_lost_nothing(own_service: Service) -> None:
    """It starts again although its default database let nobody in, and everything is there."""
    with HeldReset(own_service) as reset:
        own_service.kill()
        again = start_service(own_service.data_dir)  # while an engine of its own would still wait with the change
        again.key = own_service.key
        settled(again)
    assert reset.answers == [None]
    try:
        settled(again)
        assert tables(again) == ["kept"]
    finally:
        assert again.stop() == 0


def test_a_worker_killed_before_the_change_has_lost_nothing(own_service: Service) -> None:
    """The next one opens the database again, and a new reset works."""
    with engine(own_service) as connection:  # else an engine may see that nobody waits for the answer any more
        name = connection.info.dbname
        connection.execute(f"alter database {name} set client_connection_check_interval = 0".encode())
    replace_worker(own_service)
    with HeldReset(own_service) as reset:
        replace_worker(own_service)
        settled(own_service)
    # Only now can the engine go on with the change that the killed worker had sent.
    assert reset.answers == [None]
    with engine(own_service) as connection:
        eventually(lambda: connection.execute("select from pg_locks where not granted").fetchone() is None, SETTLED_S)
    settled(own_service)
    assert tables(own_service) == ["kept"]
    with own_service.client() as client:
        assert client.post("/admin/reset").status_code == 200
    assert tables(own_service) == []
    settled(own_service)


@contextmanager
def undropped(service: Service, name: str) -> Iterator[None]:
    """The database is not dropped meanwhile; whoever tries it waits."""
    if service.engine:
        with engine(service, "postgres") as server, server.transaction():
            server.execute("lock table pg_database in share mode")
            yield
        return
    server_pid = child(service, engine=True, database=name)
    os.kill(server_pid, signal.SIGSTOP)  # it is told to end, and killed in the end, which takes longer than the test
    yield


def test_a_service_killed_after_the_change_drops_the_old_one_at_its_next_start(own_service: Service) -> None:
    """Which is empty then."""
    with HeldReset(own_service) as reset, undropped(own_service, reset.engine_name):
        reset.let_go()
        eventually(reset.is_done, SETTLED_S)
        assert reset.engine_name in list_engine(own_service)
        own_service.kill()
    again = start_service(own_service.data_dir)
    again.key = own_service.key
    try:
        settled(again)
        assert tables(again) == []
        assert reset.engine_name not in list_engine(again)
    finally:
        assert again.stop() == 0


@contextmanager
def undroppable(service: Service, name: str) -> Iterator[None]:
    """Whoever tries to drop the database is refused."""
    if service.engine:
        with engine(service, "postgres") as server:
            server.execute(f"alter database {name} is_template true".encode())
            yield
            server.execute(f"alter database {name} is_template false".encode())
        return
    second_name = service.data_dir / "cells" / name / "another"
    second_name.hardlink_to(second_name.with_name("server.lock"))  # no file with two names is trusted
    yield
    second_name.unlink()


def test_what_is_in_the_way_of_the_drop_does_not_fail_the_reset(own_service: Service) -> None:
    """It is done, and the answer says so; the old database goes once nothing is in the way any more."""
    name = engine_name(own_service, Control(own_service, own_service.key).get("/v1/databases/main")["id"])
    with undroppable(own_service, name):
        with own_service.client() as client:
            assert client.post("/admin/reset").status_code == 200
        assert tables(own_service) == []
        assert name in list_engine(own_service)
    settled(own_service)
    assert name not in list_engine(own_service)
