"""What an organization sends beyond `running_max` waits for its turn. Here one statement may run at a time, and waits
for a lock that the test holds: nothing is a matter of luck."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from tests.control import Control
from tests.inside import owner, tenant_of
from tests.metrics import scrape
from tests.needs import needs
from tests.service import Service, Sql, new_data_dir, remove, start_service
from tests.waiting import eventually
from tests.wire import Wire

pytestmark = needs("lock_table")

ONE = ("--workers", "1", "--running-max", "1")
BODY_BYTES = 200
COUNT = "select count(*)::int as n from gate"
"""Waits as long as the gate is shut."""

Start = Callable[..., Service]
Call = Callable[..., "Caller"]
Answer = tuple[int, dict[str, Any]]


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """Starts services, with a gate and a table to write to."""
    started: list[Service] = []

    def start(*flags: str) -> Service:
        service = start_service(new_data_dir(), *ONE, *flags)
        started.append(service)
        with service.client() as client:
            Sql(client)("create table gate (n int)")
            Sql(client)("create table written (id bigint generated always as identity, name text)")
        return service

    yield start
    for service in started:
        service.stop()
        remove(service.data_dir)


@pytest.fixture(scope="module")
def narrow(start: Start) -> Service:
    return start()


@pytest.fixture(autouse=True)
def emptied(request: pytest.FixtureRequest) -> Iterator[None]:
    """After every test nobody is left in the lanes of the service that all share."""
    yield
    if "narrow" in request.fixturenames:
        service = request.getfixturevalue("narrow")
        eventually(lambda: in_lanes(service) == (0, 0))
        with owner(service) as inside:
            inside.execute("truncate written")


@pytest.fixture
def call() -> Iterator[Call]:
    """Opens connections, and closes them."""
    opened: list[Caller] = []

    def call(service: Service, key: str | None = None) -> Caller:
        opened.append(Caller(service, key))
        opened[-1].get_known()
        return opened[-1]

    yield call
    for caller in opened:
        caller.socket.close()


class Caller(Wire):
    """Its heads are all the same, whatever the statement."""

    def __init__(self, service: Service, key: str | None = None) -> None:
        super().__init__(service)
        self.key = key or service.key

    def get_known(self) -> None:
        """The lane is noted with the first request whose head is known."""
        for number in range(3):
            self.ask(f"select {number} as n")
            assert rows(self.answer()) == [{"n": number}]

    def ask(self, sql: str) -> None:
        self.send(self.whole({"sql": sql}))

    def whole(self, body: Any, path: str = "/v1/query") -> bytes:
        text = json.dumps(body).encode().ljust(BODY_BYTES)
        assert len(text) == BODY_BYTES
        return self.head(BODY_BYTES, path=path) + text

    def write(self, name: str) -> None:
        self.ask(f"insert into written (name) values ('{name}') returning name")


def rows(answer: Answer) -> Any:
    assert answer[0] == 200, answer
    assert answer[1]["success"], answer
    return answer[1]["rows"]


def code(answer: Answer) -> tuple[int, str]:
    return answer[0], answer[1]["error"]["code"]


def in_lanes(service: Service) -> tuple[float, float]:
    """How many run, and how many wait."""
    page = scrape(service)
    return page.value("lane_requests", state="running"), page.value("lane_requests", state="waiting")


def written(service: Service) -> list[str]:
    with owner(service) as inside:
        return [name for (name,) in inside.execute("select name from written order by id").fetchall()]


def at_the_gate(service: Service) -> int:
    with psycopg.connect(service.server_of()) as outside:
        row = outside.execute(
            "select count(*) from pg_stat_activity where datname = %s and wait_event_type = 'Lock'",
            [tenant_of(service)],
        ).fetchone()
    return 0 if row is None else int(row[0])


@contextmanager
def shut_gate(service: Service) -> Iterator[Callable[[], None]]:
    """Gives what opens it."""
    with closing(owner(service)) as inside:
        inside.execute("begin")
        inside.execute("lock table gate")

        def open_gate() -> None:
            inside.execute("commit")

        yield open_gate


def hold(service: Service, caller: Caller) -> None:
    """Takes the only place."""
    caller.ask(COUNT)
    eventually(lambda: at_the_gate(service) == 1)


def wait_in_lane(service: Service, waiting: int) -> None:
    eventually(lambda: in_lanes(service) == (1, waiting))


def test_those_that_wait_are_answered_in_order(narrow: Service, call: Call) -> None:
    holder, *others = (call(narrow) for _ in range(5))
    names = [f"no {number}" for number in range(4)]
    with shut_gate(narrow) as open_gate:
        hold(narrow, holder)
        for number, (caller, name) in enumerate(zip(others, names, strict=True)):
            caller.write(name)
            wait_in_lane(narrow, number + 1)
        assert written(narrow) == []
        open_gate()
        assert rows(holder.answer()) == [{"n": 0}]
        assert [rows(caller.answer()) for caller in others] == [[{"name": name}] for name in names]
    assert written(narrow) == names


def test_nothing_is_run_of_one_whose_client_has_left(narrow: Service, call: Call) -> None:
    holder, leaving, staying = (call(narrow) for _ in range(3))
    with shut_gate(narrow) as open_gate:
        hold(narrow, holder)
        leaving.write("left")
        wait_in_lane(narrow, 1)
        staying.write("stayed")
        wait_in_lane(narrow, 2)
        leaving.socket.close()
        wait_in_lane(narrow, 1)
        open_gate()
        assert rows(holder.answer()) == [{"n": 0}]
        assert rows(staying.answer()) == [{"name": "stayed"}]
    assert written(narrow) == ["stayed"]


def test_what_is_sent_behind_one_that_waits_is_answered_behind_it(narrow: Service, call: Call) -> None:
    """Among it one with a key that nobody has: that is not this request's affair."""
    holder, caller = call(narrow), call(narrow)
    with shut_gate(narrow) as open_gate:
        hold(narrow, holder)
        caller.write("first")
        wait_in_lane(narrow, 1)
        caller.write("second")
        stranger = caller.whole({"sql": "select 1"}).replace(narrow.key.encode(), b"svc_k_nobody")
        caller.send(stranger)
        caller.write("third")
        open_gate()
        assert rows(holder.answer()) == [{"n": 0}]
        assert rows(caller.next_answer()) == [{"name": "first"}]
        assert rows(caller.next_answer()) == [{"name": "second"}]
        assert code(caller.next_answer()) == (401, "unauthenticated")
        assert rows(caller.answer()) == [{"name": "third"}]
    assert written(narrow) == ["first", "second", "third"]


def test_more_behind_one_that_waits_than_are_read_ahead(narrow: Service, call: Call) -> None:
    holder, caller = call(narrow), call(narrow)
    with shut_gate(narrow) as open_gate:
        hold(narrow, holder)
        caller.ask("select 0 as n")
        wait_in_lane(narrow, 1)
        for number in range(1, 40):
            caller.ask(f"select {number} as n")
        open_gate()
        assert [rows(caller.next_answer()) for _ in range(40)] == [[{"n": number}] for number in range(40)]
        assert rows(holder.answer()) == [{"n": 0}]


def test_a_key_that_is_revoked_while_its_request_waits(narrow: Service, call: Call) -> None:
    """It is judged when its turn comes; the place goes to the next."""
    control = Control(narrow, narrow.key)
    made = control.post("/v1/keys", {"name": "short-lived", "scopes": ["write"]})
    holder, revoked, other = call(narrow), call(narrow, made["key"]), call(narrow)
    with shut_gate(narrow) as open_gate:
        hold(narrow, holder)
        revoked.write("revoked")
        wait_in_lane(narrow, 1)
        other.write("other")
        wait_in_lane(narrow, 2)
        control.delete(f"/v1/keys/{made['id']}")
        open_gate()
        assert rows(holder.answer()) == [{"n": 0}]
        assert code(revoked.answer()) == (401, "unauthenticated")
        assert rows(other.answer()) == [{"name": "other"}]
    assert written(narrow) == ["other"]


def test_one_that_has_waited_too_long_is_not_run(start: Start, call: Call) -> None:
    """As long as a statement may take; the transaction in front of it may take longer."""
    service = start("--statement-timeout-ms", "1000")
    holder, caller = call(service), call(service)
    with shut_gate(service) as open_gate:
        holder.send(holder.whole({"statements": [{"sql": COUNT}]}, "/v1/transaction"))
        eventually(lambda: at_the_gate(service) == 1)
        caller.write("late")
        wait_in_lane(service, 1)
        assert code(caller.answer()) == (503, "busy")
        wait_in_lane(service, 0)
        open_gate()
        assert holder.answer()[0] == 200
        caller.write("again")
        assert rows(caller.answer()) == [{"name": "again"}]
    assert written(service) == ["again"]
    eventually(lambda: in_lanes(service) == (0, 0))


def test_no_more_wait_than_may(start: Start, call: Call) -> None:
    service = start("--queue-max", "1")
    holder, first, second = (call(service) for _ in range(3))
    with shut_gate(service) as open_gate:
        hold(service, holder)
        first.write("first")
        wait_in_lane(service, 1)
        second.write("second")
        assert code(second.answer()) == (503, "busy")
        open_gate()
        assert rows(first.answer()) == [{"name": "first"}]
    assert written(service) == ["first"]


def test_a_stop_lets_those_that_wait_finish(start: Start, call: Call) -> None:
    service = start()
    holder, caller, idle = (call(service) for _ in range(3))
    with shut_gate(service) as open_gate:
        hold(service, holder)
        caller.write("waited")
        wait_in_lane(service, 1)
        service.process.send_signal(signal.SIGTERM)
        assert idle.socket.recv(1) == b"", "it stops"
        assert written(service) == []
        open_gate()
        assert rows(holder.answer()) == [{"n": 0}]
        assert rows(caller.answer()) == [{"name": "waited"}]
        assert caller.socket.recv(1) == b""
        assert service.process.wait(60) == 0


def test_a_stop_that_is_out_of_time_runs_nothing_more(start: Start, call: Call) -> None:
    """Those that wait are told so: they can be sent again."""
    service = start("--stop-timeout-s", "0")
    holder, caller = call(service), call(service)
    with shut_gate(service):
        hold(service, holder)
        caller.write("waited")
        wait_in_lane(service, 1)
        assert service.stop() == 0
        assert code(holder.answer()) == (503, "shutting_down")
        assert code(caller.answer()) == (503, "shutting_down")
        assert caller.socket.recv(1) == b""
    again = replace(start_service(service.data_dir, *ONE), key=service.key)
    try:
        assert written(again) == []
    finally:
        again.stop()


def test_the_alias_waits_as_well(narrow: Service, call: Call) -> None:
    """It leads to the data plane, on connections that it keeps."""
    holder, caller = call(narrow), call(narrow.alias)
    with shut_gate(narrow) as open_gate:
        hold(narrow, holder)
        caller.write("by its alias")
        wait_in_lane(narrow, 1)
        open_gate()
        assert rows(caller.answer()) == [{"name": "by its alias"}]
    assert written(narrow) == ["by its alias"]
