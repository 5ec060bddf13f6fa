"""Several workers: they share the work, and what one promises the others keep."""

import http.client
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import httpx
import psycopg
import pytest

from tests.control import Organization, at_once, in_one_window, new_organization
from tests.faults import catalog
from tests.http.test_serializable_pool import SLOTS, fill, shut
from tests.processes import alive, children, numbers
from tests.servers import needs_linux
from tests.service import Service, Sql, needs_bundled, new_data_dir, remove, running_service, start_service
from tests.waiting import eventually
from tests.workers import Caller, callers, connect, connect_to, workers, workers_of

pytestmark = needs_linux

Asking = Callable[[Caller], bool]
"""Sends a request to a worker; whether it was let through."""

WORKERS = 4
ID = "Tuplegate-Transaction-Id"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service("--workers", str(WORKERS)) as running:
        yield running


@pytest.fixture
def each(service: Service) -> Iterator[list[Caller]]:
    """A caller for each worker."""
    eventually(lambda: len(workers(service)) == WORKERS)
    made = callers(service)
    yield made
    for caller in made:
        caller.close()


@pytest.fixture
def t(service: Service) -> str:
    name = f"t_{uuid.uuid4().hex[:12]}"
    with service.client() as client:
        Sql(client)(f"create table {name} (a int primary key, b text)")
    return name


WAITING = "select pid from pg_stat_activity where wait_event_type = 'Lock' and query like"


def as_superuser(service: Service, sql: str, *, on_catalog: bool = False) -> list[Any]:
    """On the first database's server, or on that of the catalog."""
    server = service.conninfo("tuplegate") if on_catalog else service.server_of()
    with psycopg.connect(server, autocommit=True) as connection:
        return connection.execute(sql.encode()).fetchall()


def make_database(service: Service) -> str:
    name = f"filler-{uuid.uuid4().hex[:8]}"
    with httpx.Client(base_url=service.control_url, timeout=60, trust_env=False, verify=False) as client:
        made = client.post("/v1/databases", json={"name": name}, headers={"Authorization": f"Bearer {service.key}"})
        assert made.status_code == 201, made.text
    return name


def waiting(service: Service, mark: str) -> int:
    """How many statements with this in them wait for a lock."""
    return len(as_superuser(service, f"{WAITING} '%{mark}%'"))


@contextmanager
def gate(service: Service, caller: Caller, t: str) -> Iterator[None]:
    """A table that holds up whoever reads it meanwhile."""
    caller.sql(f"create table gate_{t} ()")
    [database] = caller.sql("select current_database() as name")
    with shut(service.conninfo(database["name"]), f"gate_{t}"):
        yield


# -- processes ------------------------------------------------------------------------------------------------------


def test_connections_are_spread(service: Service) -> None:
    """No worker is left without connections while others have many."""
    eventually(lambda: len(workers(service)) == WORKERS)
    opened = [connect(service) for _ in range(10 * WORKERS)]
    try:
        taken = workers_of(service, opened)
        counts = [taken.count(pid) for pid in workers(service)]
        assert len(counts) == WORKERS
        assert min(counts) > 0, counts
    finally:
        for sock in opened:
            sock.close()


def test_each_worker_answers(service: Service, each: list[Caller], t: str) -> None:
    """What is written through one worker is read through all others."""
    for number, caller in enumerate(each):
        caller.sql(f"insert into {t} values ({number}, 'x')")
        assert [other.sql(f"select count(*) from {t}") for other in each] == [[{"count": number + 1}]] * WORKERS


def test_kill_of_one_worker(service: Service, each: list[Caller], t: str) -> None:
    """The others go on with what they do; the dead one is started again, and serves."""
    victim, *others = each
    with ThreadPoolExecutor(WORKERS) as pool:
        with gate(service, victim, t):
            running = [pool.submit(caller.sql, f"select count(*) from gate_{t}") for caller in others]
            eventually(lambda: waiting(service, f"gate_{t}") == len(others))
            os.kill(victim.pid, signal.SIGKILL)
            eventually(lambda: not alive(victim.pid))
        for answer in running:
            assert answer.result() == [{"count": 0}]
    for caller in others:
        assert caller.sql("select 1 as a") == [{"a": 1}]
    eventually(lambda: len(workers(service)) == WORKERS)
    [new] = set(workers(service)) - {caller.pid for caller in each}
    caller = Caller(service, connect_to(service, pid=new))
    assert caller.sql("select 1 as a") == [{"a": 1}]
    caller.close()


def test_stop_finishes_what_all_workers_do() -> None:
    """A stop in order lets the requests of every worker finish."""
    data_dir = new_data_dir()
    service = start_service(data_dir, "--workers", "3")
    each = callers(service)
    pids = workers(service)
    with ThreadPoolExecutor(3) as pool:
        with gate(service, each[0], "stop"):
            running = [pool.submit(caller.sql, "select count(*) from gate_stop") for caller in each]
            eventually(lambda: waiting(service, "gate_stop") == 3)
            idle = [connect_to(service, pid=pid) for pid in pids]
            service.process.send_signal(signal.SIGTERM)
            for sock in idle:
                assert sock.recv(1) == b"", "each worker has begun to stop, and closes what is idle"
                sock.close()
        assert [answer.result() for answer in running] == [[{"count": 0}]] * 3
    assert service.stop() == 0
    for caller in each:
        caller.close()
    assert not any(map(alive, pids))
    remove(data_dir)


def test_connections_to_the_engine_are_bounded_in_all() -> None:
    """The workers together stay within the engine's connections, however many requests come."""
    data_dir = new_data_dir()
    service = start_service(data_dir, "--workers", "4", "--engine-connections-max", "30")
    with service.client() as client, ThreadPoolExecutor(60) as pool:
        answers = list(pool.map(lambda _: Sql(client).answer("select pg_sleep(0.2)"), range(120)))
        assert {answer.status_code for answer in answers} == {200}, [a.text for a in answers if a.status_code != 200]
    assert "no connection to the engine" not in service.log
    assert service.stop() == 0
    remove(data_dir)


def test_tls_with_several_workers() -> None:
    """Connections are spread, and greeted, in the same way."""
    data_dir = new_data_dir()
    service = start_service(data_dir, "--workers", "2", "--tls", "self-signed")
    for _ in range(8):
        with httpx.Client(base_url=service.url, verify=service.trust, trust_env=False, timeout=60) as client:
            assert client.get("/health").json()["status"] == "ok"
    assert service.stop() == 0
    remove(data_dir)


# -- transactions ---------------------------------------------------------------------------------------------------


def test_worker_killed_between_prepare_and_commit(service: Service, t: str) -> None:
    """The other workers commit what it had prepared, and tell what became of it."""
    ids: list[str] = []
    left: list[str] = []

    def kill_another() -> bool:
        gid = _kill_one_that_has_prepared(service, t, ids)
        eventually(lambda: len(workers(service)) == WORKERS)
        left.extend([gid] if gid else [])
        return bool(left)

    eventually(kill_another)
    eventually(lambda: as_superuser(service, f"select 1 from pg_prepared_xacts where gid = '{left[0]}'") == [])
    eventually(lambda: left[0] in service.log)
    with service.client() as client:
        there = {row["a"] for row in Sql(client).rows(f"select a from {t}")}
    for caller in callers(service):
        for number, id in enumerate(ids):
            status, body = caller("GET", f"/v1/transaction/{id}")
            if status == 404:
                assert number not in there
            else:
                assert body["state"] in ("in_progress", "committed" if number in there else "aborted"), (number, body)
        caller.close()


def _kill_one_that_has_prepared(service: Service, t: str, ids: list[str]) -> str:
    """Send transactions through one worker alone, stop it until it stands between PREPARE and COMMIT PREPARED, and kill
    it. Return the name of the transaction that it left.

    A COMMIT PREPARED may be under way in the socket: the transaction counts only if it is still there once the
    connection that prepared it has ended; otherwise return nothing.
    """
    victim = Caller(service, connect_to(service, pid=workers(service)[0]))
    prepared = (
        "select gid, pid from pg_prepared_xacts "
        "join pg_stat_activity on query like 'PREPARE TRANSACTION%' || gid || '%'"
    )
    found: list[tuple[str, int]] = []

    def work() -> None:
        with suppress(OSError, http.client.HTTPException):  # it is killed
            while True:
                ids.append(f"txn_{uuid.uuid4().hex}")
                statements = [f"insert into {t} values ({len(ids) - 1}, 'x')"]
                victim("POST", "/v1/transaction", {"statements": statements}, {ID: ids[-1]})

    def catch() -> bool:
        os.kill(victim.pid, signal.SIGSTOP)
        found.extend(as_superuser(service, prepared))
        os.kill(victim.pid, signal.SIGKILL if found else signal.SIGCONT)
        return bool(found)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work)
        try:
            eventually(catch)
        finally:
            if not found:
                os.kill(victim.pid, signal.SIGKILL)
    victim.close()
    [(gid, connection)] = found
    eventually(lambda: as_superuser(service, f"select 1 from pg_stat_activity where pid = {connection}") == [])
    return gid if as_superuser(service, f"select 1 from pg_prepared_xacts where gid = '{gid}'") else ""


def test_outcome_and_abort_through_another_worker(service: Service, each: list[Caller], t: str) -> None:
    """A transaction that one worker runs is in progress for the others, and any of them can abort it."""
    one, two, three, _ = each
    id = f"txn_{uuid.uuid4().hex}"
    statements = [f"insert into {t} values (1, 'x')", f"select count(*) from gate_{t} /* {id} */"]
    with ThreadPoolExecutor(1) as pool:
        with gate(service, two, t):
            answer = pool.submit(one, "POST", "/v1/transaction", {"statements": statements}, {ID: id})
            eventually(lambda: waiting(service, id) == 1)
            assert two("GET", f"/v1/transaction/{id}") == (
                200,
                {"success": True, "transaction_id": id, "state": "in_progress"},
            )
            assert two("POST", "/v1/transaction", {"statements": ["select 1"]}, {ID: id})[0] == 409
            assert three("POST", f"/v1/transaction/{id}/abort")[1]["state"] == "aborted"
        status, body = answer.result()
    assert (status, body["error"]["code"]) == (409, "transaction_aborted")
    assert two("GET", f"/v1/transaction/{id}")[1]["state"] == "aborted"
    assert two.sql(f"select * from {t}") == []


def test_outcome_of_a_service_made_id_through_another_worker(each: list[Caller], t: str) -> None:
    one, two, *_ = each
    _, done = one("POST", "/v1/transaction", {"statements": [f"insert into {t} values (1, 'x')"]})
    assert done["commit"] == "two_phase"
    assert two("GET", f"/v1/transaction/{done['transaction_id']}")[1]["state"] == "committed"


def test_idempotency_across_workers(service: Service, each: list[Caller], t: str) -> None:
    """While one worker runs a request its key is taken for all; afterwards all give the same answer."""
    one, two, three, _ = each
    key = {"Idempotency-Key": uuid.uuid4().hex}
    mark = key["Idempotency-Key"]
    body = {"statements": [f"insert into {t} values (1, 'x')", f"select count(*) from gate_{t} /* {mark} */"]}
    with ThreadPoolExecutor(1) as pool:
        with gate(service, two, t):
            answer = pool.submit(one, "POST", "/v1/transaction", body, key)
            eventually(lambda: waiting(service, mark) == 1)
            status, refused = two("POST", "/v1/transaction", body, key)
        assert (status, refused["error"]["code"]) == (409, "idempotency_in_progress")
        status, first = answer.result()
    assert status == 200, first
    assert three("POST", "/v1/transaction", body, key) == (200, first)
    assert two.sql(f"select count(*) from {t}") == [{"count": 1}]


# -- the hole in SERIALIZABLE ---------------------------------------------------------------------------------------


def test_write_skew_behind_the_load_of_other_workers(service: Service, each: list[Caller], t: str) -> None:
    """A transaction of one worker is run again when others have begun more than the engine remembers, elsewhere."""
    one, two, *_ = each
    [(slots,)] = as_superuser(service, SLOTS)
    two.sql(f"insert into {t} values (1, '1'), (2, '1')")
    two.sql(f"create table gate_{t} ()")
    [database] = two.sql("select current_database() as name")
    total = f"select sum(b::int) from {t}"
    statements = [total, f"select count(*) from gate_{t}", f"update {t} set b = '0' where a = 2"]
    with ThreadPoolExecutor(1) as pool:
        with shut(service.conninfo(database["name"]), f"gate_{t}"):
            answer = pool.submit(one, "POST", "/v1/transaction", {"statements": statements})
            eventually(lambda: waiting(service, f"gate_{t}") == 1)
            two.sql(f"update {t} set b = '0' where a = 1 and ({total}) = 2")
            fill(service, int(slots) + 100, connect_to(service, other_than=one.pid), make_database(service))
        status, body = answer.result()
    assert status == 200
    assert body["success"], body
    assert body["attempts"] > 1
    assert body["results"][0]["rows"] == [{"sum": 1}]


def test_a_long_transaction_on_a_quiet_engine(each: list[Caller], t: str) -> None:
    """Time alone ends nothing: only many others do."""
    statements = [f"select count(*) from {t}", "select pg_sleep(3)", f"insert into {t} values (1, 'x')"]
    _, body = each[0]("POST", "/v1/transaction", {"statements": statements})
    assert (body["success"], body["attempts"]) == (True, 1), body


# -- quotas ---------------------------------------------------------------------------------------------------------


def engine_time(service: Service) -> float:
    [(now,)] = as_superuser(service, "select extract(epoch from clock_timestamp())::float8")
    return float(now)


def is_let_through(caller: Caller, organization: Organization) -> bool:
    """A request of the organization's that is counted and asks the engine for nothing else: its body is wrong."""
    while True:
        status, body = caller("POST", "/v1/query", {}, {"Authorization": f"Bearer {organization.key}"})
        assert status in (400, 429, 503), body
        if status != 503:  # the engine could not be asked: it has not counted
            return status == 400


def burst(caller: Caller, ask: Asking, times: int) -> int:
    return sum(ask(caller) for _ in range(times))


def at_once_to_each(each: list[Caller], ask: Asking) -> int:
    """A flood at every worker."""
    return sum(at_once([partial(burst, caller, ask, 100) for caller in each]))


def one_after_the_other(each: list[Caller], ask: Asking) -> int:
    """Each request to another worker, when the one before was answered."""
    return sum(ask(each[number % len(each)]) for number in range(260))


def floods_in_turn(each: list[Caller], ask: Asking) -> int:
    """One worker after the other gets many at once, and so comes to have many in hand when the next one is asked."""
    return sum(burst(caller, ask, 40) for _ in range(2) for caller in each)


def one_asks_for_all(each: list[Caller], ask: Asking) -> int:
    """All have some in hand, and one gets what the others do not use."""
    return sum(at_once([partial(burst, caller, ask, 20) for caller in each])) + burst(each[0], ask, 200)


@pytest.mark.parametrize("order", [at_once_to_each, one_after_the_other, floods_in_turn, one_asks_for_all])
def test_exactly_as_many_are_let_through_whatever_the_order(
    service: Service, each: list[Caller], order: Callable[[list[Caller], Asking], int]
) -> None:
    """In every window anew, which an organization of its own stands for; and those behind are refused."""

    def run() -> tuple[int, int]:
        organization = new_organization(service, "free")
        let_through = order(each, lambda caller: is_let_through(caller, organization))
        return let_through, sum(is_let_through(caller, organization) for caller in each)

    assert in_one_window(partial(engine_time, service), run) == (200, 0)


@needs_bundled
def test_permits_survive_the_engine_dying_while_they_are_given_back(service: Service, each: list[Caller]) -> None:
    """The worker tells the engine again when it is back, and the others use them; none is let through twice."""

    def run() -> int:
        organization = new_organization(service, "free")
        counts = [0]
        with psycopg.connect(service.conninfo("tuplegate")) as connection:
            held = "select holders @? '$.*[2] ? (@ > 1)' from quota where organization = %s for update"
            while True:
                counts.append(sum(is_let_through(each[0], organization) for _ in range(10)))
                if connection.execute(held, [organization.id]).fetchall() == [(True,)]:
                    break
                connection.rollback()
            giving = f"{WAITING} '%UPDATE quota%'"
            eventually(lambda: len(as_superuser(service, giving, on_catalog=True)) == 1)
            [(number,)] = as_superuser(service, giving, on_catalog=True)
            [process] = [pid for pid in children(catalog(service)) if numbers(pid)[-1] == number]
            os.kill(process, signal.SIGKILL)  # and with it all others, as the engine cannot trust its memory
            with pytest.raises(psycopg.OperationalError):
                connection.execute("select pg_sleep(60)")
        eventually(lambda: each[1]("GET", "/health")[0] == 200)
        return sum(counts) + sum(is_let_through(caller, organization) for _ in range(70) for caller in each[1:])

    assert in_one_window(partial(engine_time, service), run) == 200
