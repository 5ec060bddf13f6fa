"""Faults in the middle of transactions: what was acknowledged stays, what was refused never shows."""

import itertools
import os
import random
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx
import psycopg
import pytest

from tests.faults import as_superuser, backends, child, definite, none_in_doubt, once_back, send_signal
from tests.processes import children
from tests.service import Service, Sql, needs_bundled, new_data_dir, remove, start_service

CLIENTS = 6
ID = "Tuplegate-Transaction-Id"

Start = Callable[[], Service]


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """Starts a service on the module's data directory; stops the one before, if it still runs."""
    data_dir = new_data_dir()
    running: list[Service] = []

    def start() -> Service:
        if running and running[-1].process.poll() is None:
            running[-1].stop()
        key = running[0].key if running else ""
        running.append(start_service(data_dir))
        running[-1].key = running[-1].key or key
        return running[-1]

    yield start
    running[-1].stop()
    remove(data_dir)


@pytest.fixture(scope="module")
def service(start: Start) -> Service:
    return start()


@pytest.fixture
def t(service: Service) -> str:
    """A table `(a int primary key, b text)` with two rows for every append: both are there or none."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    with service.client() as client:
        Sql(client)(f"create table {name} (a int, half int, b text, primary key (a, half))")
    return name


@dataclass
class Workload:
    """Clients that insert numbered pairs of rows until they are told to stop, and note what each was answered."""

    service: Service
    table: str
    applied: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    unknown: dict[int, str | None] = field(default_factory=dict)
    """The number, with the id that was chosen for it."""
    refused_ids: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._numbers = itertools.count()
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(n,)) for n in range(CLIENTS)]

    def __enter__(self) -> "Workload":
        for thread in self._threads:
            thread.start()
        self.progress()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)

    def progress(self, by: int = 20) -> None:
        """Waits until some more were acknowledged."""
        goal = len(self.applied) + by
        once_back(lambda: len(self.applied) >= goal)

    def _work(self, worker: int) -> None:
        rng = random.Random(worker)
        client = self.service.client()
        while not self._stopping.is_set():
            number = next(self._numbers)
            id = f"txn_{uuid.uuid4().hex}" if rng.random() < 0.4 else None
            try:
                self._one(client, rng, number, id)
            except httpx.TransportError:
                self.unknown[number] = id
                client.close()
                client = self.service.client()
                time.sleep(0.01)
        client.close()

    def _one(self, client: httpx.Client, rng: random.Random, number: int, id: str | None) -> None:
        statements = [f"insert into {self.table} values ({number}, {half}, 'x')" for half in (1, 2)]
        if rng.random() < 0.1:
            statements.append("create temp table one_phase (a int)")
        if rng.random() < 0.1:
            statements.append("select 1 / 0")
        headers = {} if id is None else {ID: id}
        answer = client.post("/v1/transaction", json={"statements": statements}, headers=headers)
        body = answer.json()
        if body["success"]:
            self.applied.add(number)
        elif answer.status_code == 503 and body["error"]["code"] == "outcome_unknown":
            self.unknown[number] = id
        else:
            self.refused.add(number)
            if body["error"]["code"] not in ("engine_unavailable", "busy", "conflict", "shutting_down"):
                if body["error"]["sqlstate"] != "22012":
                    self.wrong.append(answer.text)
            elif id is not None:
                self.refused_ids.append(id)


def check(service: Service, work: Workload) -> None:
    """Nothing acknowledged is lost, nothing refused is there, nothing is half there, and every id has an outcome."""
    once_back(lambda: none_in_doubt(service))
    assert work.wrong == []
    with service.client() as client:
        rows = Sql(client).rows(f"select a, count(*) from {work.table} group by a", row_mode="arrays")
        there = {number for number, _ in rows}
        assert [row for row in rows if row[1] != 2] == [], "half of a transaction is there"
        assert work.applied - there == set(), "acknowledged and lost"
        assert work.refused & there == set(), "refused and applied"
        assert there <= work.applied | set(work.unknown), "applied by nobody"
        for number, id in work.unknown.items():
            if id is not None:
                outcome = definite(client, id)
                # An id that is not known never began: what carries it can still be stopped.
                outcome = outcome or client.post(f"/v1/transaction/{id}/abort").json()["state"]
                assert outcome == ("committed" if number in there else "aborted"), (number, id)
        for id in work.refused_ids:
            assert definite(client, id) in ("aborted", None), id


# -- faults during a workload ---------------------------------------------------------------------------------------


@needs_bundled
def test_engine_killed(service: Service, t: str) -> None:
    """The engine is killed several times in the middle of a workload."""
    rng = random.Random(1)
    with Workload(service, t) as work:
        for _ in range(5):
            before = child(service, engine=True)
            os.kill(before, signal.SIGKILL)
            once_back(lambda before=before: child(service, engine=True) != before)  # type: ignore[misc]
            work.progress(rng.randrange(5, 40))
    check(service, work)


def test_worker_killed(service: Service, t: str) -> None:
    """The worker is killed at random moments of a workload."""
    rng = random.Random(2)
    with Workload(service, t) as work:
        for _ in range(8):
            work.progress(rng.randrange(1, 30))
            os.kill(child(service, engine=False), signal.SIGKILL)
    check(service, work)


def test_connections_terminated(service: Service, t: str) -> None:
    """Connections are terminated all through a workload; its transactions are repeated and succeed."""
    with Workload(service, t) as work:
        terminate = (
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'tuplegate'"
            " and usename <> current_user order by random() limit 3"
        )
        for _ in range(50):
            as_superuser(service, terminate)
            work.progress(1)
    check(service, work)


@needs_bundled
def test_backend_crashes(service: Service, t: str) -> None:
    """A server process is killed, upon which the engine starts all of its processes anew by itself."""
    with Workload(service, t) as work:
        for _ in range(3):
            work.progress()
            active = "application_name = 'tuplegate' and state = 'active' and usename <> current_user"
            for pid in backends(service, active)[:1]:
                send_signal(pid, signal.SIGKILL)
            once_back(lambda: as_superuser(service, "select 1") == [(1,)])
    check(service, work)


@needs_bundled
def test_engine_stopped(service: Service, t: str) -> None:
    """The engine stands still for a while and goes on; nobody is told anything that does not hold."""
    with Workload(service, t) as work:
        for _ in range(2):
            server = child(service, engine=True)
            pids = [server, *children(server)]
            for pid in pids:
                send_signal(pid, signal.SIGSTOP)
            time.sleep(1.5)  # the fault itself: a standstill of this length
            for pid in pids:
                send_signal(pid, signal.SIGCONT)
            work.progress()
    check(service, work)


# -- prepared and left behind ---------------------------------------------------------------------------------------


def prefix(service: Service) -> str:
    [(id,)] = as_superuser(service, "select id from installation", "tuplegate")
    return f"tuplegate_{id}_"


def tenant_database(service: Service) -> str:
    with service.client() as client:
        return str(Sql(client).value("select current_database()"))


def prepare(service: Service, database: str, table: str, number: int, gid: str) -> None:
    """At READ COMMITTED: one that is serializable makes every reader fail after a crash, as long as it is there."""
    with psycopg.connect(service.conninfo(database), autocommit=True) as connection:
        connection.execute(f"set session authorization {database}_w".encode())  # as the service itself would
        connection.execute("begin isolation level read committed")
        connection.execute(f"insert into {table} values ({number}, 1, 'left')".encode())
        connection.execute(f"prepare transaction '{gid}'".encode())


def left(service: Service, table: str) -> list[int]:
    with service.client() as client:
        rows = Sql(client).rows(f"select a from {table} where b = 'left' order by a", row_mode="arrays")
    return [row[0] for row in rows]


def test_left_behind(start: Start, service: Service, t: str) -> None:
    """What this installation prepared is committed, while it serves and at its start; what others did is left alone."""
    database = tenant_database(service)
    mine = prefix(service)
    almost_mine = mine[:-2] + ("y" if mine[-2] == "x" else "x")
    foreign = ["foreign_gid", f"{almost_mine}_other", "tuplegate_"]
    prepare(service, database, t, 1, f"{mine}x")
    for number, gid in enumerate(foreign, 101):
        prepare(service, database, t, number, gid)
    try:
        once_back(lambda: left(service, t) == [1])
        prepare(service, database, t, 2, f"{mine}y")
        service.kill()
        again = start()
        assert left(again, t) == [1, 2]
        gids = [row[0] for row in as_superuser(again, "select gid from pg_prepared_xacts order by gid")]
        assert gids == sorted(foreign)
        service.process, service.url = again.process, again.url
    finally:
        for gid in foreign:
            as_superuser(service, f"rollback prepared '{gid}'", database)


def test_one_that_cannot_be_committed(service: Service, t: str) -> None:
    """A prepared transaction with an odd name does not keep the others from being committed."""
    database = tenant_database(service)
    mine = prefix(service)
    prepare(service, database, t, 3, f"{mine}it''s odd")
    prepare(service, database, t, 4, f"{mine}plain")
    try:
        once_back(lambda: 4 in left(service, t), seconds=10)
    finally:
        gids = [row[0] for row in as_superuser(service, "select gid from pg_prepared_xacts")]
        for gid in gids:
            as_superuser(service, "rollback prepared '{}'".format(gid.replace("'", "''")), database)


# -- single writes --------------------------------------------------------------------------------------------------


def test_single_write_whose_connection_is_lost(service: Service, t: str) -> None:
    """A single write whose connection is lost says honestly that nobody knows, or that nothing happened."""
    mark = uuid.uuid4().hex
    slow = f"with s as (select pg_sleep(20)) insert into {t} select 1, 1, '{mark}' from s"
    terminate = (
        f"select pg_terminate_backend(pid) from pg_stat_activity where wait_event = 'PgSleep' and query like '%{mark}%'"
    )
    with service.client() as client, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(Sql(client).answer, slow)
        once_back(lambda: as_superuser(service, terminate) == [(True,)])
        error = answer.result().json()["error"]
        assert answer.result().status_code == 503
        assert (error["code"], error["retryable"]) in (("outcome_unknown", False), ("engine_unavailable", True))
        assert Sql(client).value(f"select count(*) from {t}") == 0


def test_transaction_whose_connection_is_lost(service: Service, t: str) -> None:
    """A transaction whose connection is lost before its decision is run again and succeeds, once."""
    mark = uuid.uuid4().hex
    statements = [f"insert into {t} values (1, 1, 'x')", f"select pg_sleep(3) /* {mark} */"]
    terminate = (
        f"select pg_terminate_backend(pid) from pg_stat_activity where wait_event = 'PgSleep' and query like '%{mark}%'"
    )
    with service.client() as client, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.post, "/v1/transaction", json={"statements": statements})
        once_back(lambda: as_superuser(service, terminate) == [(True,)])
        body = answer.result().json()
        assert body["success"] is True, body
        assert body["attempts"] == 2
        assert Sql(client).value(f"select count(*) from {t}") == 1
