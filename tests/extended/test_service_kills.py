"""The service killed in its parts and as a whole: what it started ends, and what was committed is there."""

import os
import signal
import time

import httpx

from tests.faults import catalog, child
from tests.processes import alive, descendants
from tests.servers import needs_linux
from tests.service import Sql, needs_bundled
from tests.streams import ENDS, Stream, read_until_cut
from tests.system.test_service import (
    RUN_S,
    Start,
    in_background,
    sleeping,
    slow_answer,
)
from tests.system.test_service import start as start
from tests.waiting import eventually
from tests.workers import workers


@needs_linux
def test_kill_of_the_supervisor(start: Start) -> None:
    """After kill -9 everything it started ends by itself, and the next start has what was committed."""
    service = start()
    with service.client() as client:
        Sql(client)("create table kept as select 7 as n")
    family = descendants(service.process.pid)
    assert len(family) > (0 if service.engine else 3), "a worker, and the engine's processes where it is bundled"
    with Stream(service, "select pg_sleep(60)"):
        eventually(lambda: sleeping(service) == 1)
        family = sorted({*family, *descendants(service.process.pid)})
        service.kill()
        eventually(lambda: not any(map(alive, family)))
    again = start()
    with again.client(service.key) as client:
        assert Sql(client).value("select n from kept") == 7


@needs_linux
def test_next_start_right_after_a_kill(start: Start) -> None:
    """A start right after kill -9 waits for what is left of the old one; behind a proxy any address is allowed."""
    service = start("--host", "0.0.0.0", "--behind-proxy")
    assert service.url.startswith("http://0.0.0.0:")
    service.url = service.url.replace("0.0.0.0", "127.0.0.1")
    with service.client() as client:
        Sql(client)("create table kept as select 7 as n")
    service.kill()
    again = start()
    with again.client(service.key) as client:
        assert Sql(client).value("select n from kept") == 7


@needs_linux
def test_kill_of_the_worker(start: Start) -> None:
    """A killed worker is started again and the fact logged; what it was running is cancelled in the engine."""
    service = start()
    old = child(service, engine=False)
    with Stream(service, "select pg_sleep(60)") as stream:
        eventually(lambda: sleeping(service) == 1)
        os.kill(old, signal.SIGKILL)
        assert not {event.kind for event in read_until_cut(stream)} & set(ENDS)
    with service.client() as client:
        eventually(lambda: answers(client))
        assert Sql(client).value("select 1") == 1
    assert child(service, engine=False) != old
    assert "the worker died" in service.log
    eventually(lambda: sleeping(service) == 0)


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


@needs_linux
@needs_bundled
def test_kill_of_the_server_of_a_database(start: Start) -> None:
    """A killed server is started again for the next requests and the fact logged; they get 503 meanwhile, and then the
    data is there."""
    service = start()
    with service.client() as client:
        sql = Sql(client)
        sql("create table kept as select 7 as n")
        old = child(service, engine=True)
        reading, answered = in_background(lambda: slow_answer(service, "select pg_sleep(60)"))
        writing, written = in_background(lambda: slow_answer(service, "insert into kept select 8 from pg_sleep(60)"))
        with Stream(service, "select 1, pg_sleep(60)") as stream:
            events = stream.events()
            assert next(events).kind == "columns"
            eventually(lambda: sleeping(service) == 3)
            os.kill(old, signal.SIGKILL)
            last = list(events)[-1]
        assert last.kind == "error"
        assert last.data["error"]["code"] in ("engine_unavailable", "outcome_unknown")
        seen = set()
        deadline = time.monotonic() + RUN_S
        while (answer := sql.answer("select n from kept")).status_code != 200:
            assert time.monotonic() < deadline
            assert answer.status_code == 503, answer.text
            assert "retry-after" in answer.headers
            seen.add(answer.json()["error"]["code"])
            time.sleep(0.01)
        assert seen <= {"engine_unavailable", "outcome_unknown"}
        assert answer.json()["rows"] == [{"n": 7}]
        for thread, outcome in ((reading, answered), (writing, written)):
            thread.join(RUN_S)
            assert isinstance(outcome[0], httpx.Response), outcome
            assert outcome[0].status_code == 503, outcome[0].text
        assert written[0].json()["error"]["code"] == "outcome_unknown"
        assert written[0].json()["error"]["retryable"] is False
        assert client.get("/health").status_code == 200
    assert child(service, engine=True) != old
    assert "the server of a database died" in service.log
    assert "Traceback" not in service.log


@needs_linux
@needs_bundled
def test_kill_of_the_server_of_the_catalog(start: Start) -> None:
    """It is started again and the fact logged. What is under way in a database goes on, and so do requests there."""
    service = start()
    with service.client() as client:
        sql = Sql(client)
        sql("create table kept as select 7 as n")
        old = catalog(service)
        writing, written = in_background(
            lambda: slow_answer(service, "insert into kept select 8 from pg_sleep(3) returning n")
        )
        eventually(lambda: sleeping(service) == 1)
        os.kill(old, signal.SIGKILL)
        assert sql.value("select n from kept") == 7
        writing.join(RUN_S)
        assert isinstance(written[0], httpx.Response), written
        assert written[0].json()["rows"] == [{"n": 8}], written[0].text
        eventually(lambda: client.get("/health").status_code == 200)
    assert catalog(service) != old
    assert "the engine died" in service.log
    assert "Traceback" not in service.log


def test_kill_of_the_supervisor_ends_all_workers(start: Start) -> None:
    service = start("--workers", "3")
    pids = workers(service)
    assert len(pids) == 3
    service.kill()
    eventually(lambda: not any(map(alive, pids)))
