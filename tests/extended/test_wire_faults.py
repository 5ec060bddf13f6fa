"""Connections cut and processes killed at every step of a transaction: one definite outcome, applied once or never."""

import json
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

import httpx
import pytest

from tests.faults import (
    answers,
    as_superuser,
    child,
    definite,
    engine_socket_directory,
    kill_engine,
    kill_worker,
    none_in_doubt,
    once_back,
    send_signal,
    serves,
)
from tests.service import Service, Sql, engine_for, needs_bundled, new_data_dir, remove, start_service
from tests.tunnel import Tunnel
from tests.wire_proxy import At, Fault, PortProxy, WireProxy

ID = "Tuplegate-Transaction-Id"
KEY = "Idempotency-Key"

NUMBER = "SELECT pg_catalog.pg_current_xact_id_if_assigned()"

When = Callable[[str], bool]


class Harm(Enum):
    CUT = "the connection is cut"
    WORKER = "the worker is killed"
    ENGINE = "the engine is killed"


class Step(Enum):
    EXECUTE = "a statement"
    PREPARE = "PREPARE TRANSACTION"
    COMMIT_PREPARED = "COMMIT PREPARED"
    COMMIT = "COMMIT in one phase"


HARMS = [Harm.CUT, Harm.WORKER, pytest.param(Harm.ENGINE, marks=needs_bundled)]


@pytest.fixture(scope="module")
def behind() -> Iterator[tuple[Service, WireProxy]]:
    """A service, and a proxy between it and its engine."""
    data_dir = new_data_dir()
    if engine := engine_for(data_dir):
        with PortProxy(engine) as port_proxy:
            running = start_service(data_dir, env={"TUPLEGATE_ENGINE": port_proxy.url})
            running.engine = engine  # the tests' own looks at it go past the proxy
            yield running, port_proxy
            assert running.stop() == 0
    else:
        running = start_service(data_dir)
        with WireProxy(engine_socket_directory(running)) as proxy:
            kill_worker(running)
            yield running, proxy
        once_back(lambda: serves(running))
        assert running.stop() == 0
    remove(data_dir)


@pytest.fixture(scope="module")
def service(behind: tuple[Service, WireProxy]) -> Service:
    return behind[0]


@pytest.fixture(scope="module")
def module_proxy(behind: tuple[Service, WireProxy]) -> WireProxy:
    return behind[1]


@pytest.fixture
def proxy(service: Service, module_proxy: WireProxy) -> Iterator[WireProxy]:
    """Everything between worker and engine goes through it."""
    once_back(lambda: answers(service))
    if not module_proxy.in_place:
        # The engine was killed and has put its own socket there; what connected since then went past the proxy.
        module_proxy.install()
        kill_worker(service)
    once_back(lambda: answers(service))
    yield module_proxy
    module_proxy.disarm()


@pytest.fixture
def t(service: Service, proxy: WireProxy) -> str:
    """An empty table `(a text)` without a key: what is applied twice is there twice."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    with service.client() as client:
        Sql(client)(f"create table {name} (a text)")
    return name


def harm_of(harm: Harm, service: Service) -> Callable[[], None]:
    def act() -> None:
        if harm is Harm.WORKER:
            kill_worker(service)
        elif harm is Harm.ENGINE:
            kill_engine(service)

    return act


def text_of(step: Step, table: str) -> When:
    match step:
        case Step.EXECUTE:
            return lambda text: text.startswith(f"insert into {table} values ('b')")
        case Step.PREPARE | Step.COMMIT_PREPARED:
            return lambda text: text.startswith(step.value)
        case Step.COMMIT:
            return Following("SET LOCAL synchronous_commit", "COMMIT")


class Following:
    """The statement `text` that comes right behind one that holds `before`: the service's own COMMITs do not."""

    def __init__(self, before: str, text: str) -> None:
        self._before = before
        self._text = text
        self._is_next = False

    def __call__(self, text: str) -> bool:
        found = self._is_next and text == self._text
        self._is_next = self._before in text
        return found


def transaction(service: Service, statements: list[str], headers: dict[str, str]) -> tuple[int, dict[str, Any]] | None:
    """Status and body; None where there was no answer."""
    with service.client() as client:
        try:
            answer = client.post("/v1/transaction", json={"statements": statements}, headers=headers)
        except httpx.TransportError:
            return None
    return answer.status_code, answer.json()


def count(service: Service, table: str) -> int:
    with service.client() as client:
        return int(Sql(client).value(f"select count(*) from {table}"))


def outcome(service: Service, id: str) -> str:
    """The outcome that a client learns in the end. An id that is not known is stopped from ever being used."""
    with service.client() as client:
        return definite(client, id) or str(client.post(f"/v1/transaction/{id}/abort").json()["state"])


# -- exchanges with the engine --------------------------------------------------------------------------------------


def segments(proxy: WireProxy, table: str) -> list[list[str]]:
    """The segments of one connection, from the first that names the table to the commit, by their first words."""
    sent = list(proxy.segments)
    used = next(link for link, texts in sent if any(f"into {table}" in text for text in texts))
    found = [texts for link, texts in sent if link is used]
    first = next(n for n, texts in enumerate(found) if any(f"into {table}" in text for text in texts))
    last = next(n for n, texts in enumerate(found) if any(text.startswith("COMMIT PREPARED") for text in texts))
    assert last > first
    return [[" ".join(text.split()[:2]) for text in texts] for texts in found[first : last + 1]]


def settle(service: Service, proxy: WireProxy, t: str) -> None:
    """Wait until the service knows that no code was made together with the table."""

    def is_known() -> bool:
        with service.client() as client:
            begun = client.post("/v1/transaction/begin", json={"statement": f"insert into {t} values ('x')"}).json()
            done = client.post(f"/v1/transaction/{begun['transaction_id']}/commit", json={}).json()
        return bool(done["commit"] == "two_phase")

    once_back(is_known)
    proxy.segments.clear()


def test_exchanges_of_a_transaction(service: Service, proxy: WireProxy, t: str) -> None:
    """The reset goes together with the commit."""
    settle(service, proxy, t)
    transaction(service, [f"insert into {t} values ('a')", f"insert into {t} values ('b')"], {})
    assert segments(proxy, t) == [
        ["BEGIN ISOLATION", "insert into", "insert into", "SET CONSTRAINTS", NUMBER],
        ["PREPARE TRANSACTION"],
        ["COMMIT PREPARED", "DISCARD SEQUENCES"],
    ]  # fmt: skip


def test_exchanges_of_an_open_transaction(service: Service, proxy: WireProxy, t: str) -> None:
    """The last statement, the record of its id and PREPARE go together."""
    settle(service, proxy, t)
    with service.client() as client:
        begun = client.post("/v1/transaction/begin", json={"statement": f"insert into {t} values ('a')"}).json()
        last = {"statement": f"insert into {t} values ('b')"}
        done = client.post(f"/v1/transaction/{begun['transaction_id']}/commit", json=last).json()
    assert done["commit"] == "two_phase"
    assert segments(proxy, t) == [
        ["BEGIN ISOLATION", "insert into"],
        ["insert into", "SET CONSTRAINTS", "SELECT 1", "PREPARE TRANSACTION"],
        ["COMMIT PREPARED", "DISCARD SEQUENCES"],
    ]


# -- transactions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("harm", "chosen"),
    # With the worker goes the answer, and with that the id that the service would have made.
    [
        (Harm.CUT, True),
        (Harm.CUT, False),
        (Harm.WORKER, True),
        pytest.param(Harm.ENGINE, True, marks=needs_bundled),
        pytest.param(Harm.ENGINE, False, marks=needs_bundled),
    ],
)
@pytest.mark.parametrize("at", At)
@pytest.mark.parametrize("step", Step)
def test_transaction(service: Service, proxy: WireProxy, t: str, step: Step, at: At, harm: Harm, chosen: bool) -> None:
    """Whatever happens at whatever step, the client has a definite answer or can ask for it, and it holds."""
    statements = [f"insert into {t} values ('a')", f"insert into {t} values ('b')"]
    if step is Step.COMMIT:
        statements.append("create temp table scratch (a int)")
    id = f"txn_{uuid.uuid4().hex}" if chosen else None
    fault = proxy.arm(Fault(text_of(step, t), at, harm_of(harm, service)))
    answer = transaction(service, statements, {ID: id} if id else {})
    assert fault.happened.wait(30), "the step was never reached"
    once_back(lambda: serves(service) and none_in_doubt(service))
    there = count(service, t)
    assert there in (0, 2), "half of it is there, or it is there twice"
    if harm is Harm.WORKER:
        assert answer is None
        decided = (step is Step.PREPARE and at is At.ANSWER) or step is Step.COMMIT_PREPARED
        assert there == (2 if decided or (step is Step.COMMIT and at is At.ANSWER) else 0)
    else:
        assert answer is not None
        status, body = answer
        assert body["success"] or (status, body["error"]["code"]) == (503, "engine_unavailable"), body
        assert body["success"] or harm is Harm.ENGINE, "a cut connection alone is made good"
        assert there == (2 if body["success"] else 0), body
        id = body["transaction_id"]
    if id is not None:
        assert outcome(service, id) == ("committed" if there else "aborted")


@pytest.mark.parametrize("step", Step)
def test_cut_behind_the_answer(service: Service, proxy: WireProxy, t: str, step: Step) -> None:
    """The answer to a step and the end of the connection arrive together: it is made good as any other cut."""
    statements = [f"insert into {t} values ('a')", f"insert into {t} values ('b')"]
    if step is Step.COMMIT:
        statements.append("create temp table scratch (a int)")
    worker = child(service, engine=False)
    fault = Fault(text_of(step, t), At.ANSWER, lambda: send_signal(worker, signal.SIGSTOP))
    fault.behind = lambda: send_signal(worker, signal.SIGCONT)
    proxy.arm(fault)
    answer = transaction(service, statements, {})
    assert fault.happened.wait(30)
    assert answer is not None
    assert answer[1]["success"] is True, answer
    assert count(service, t) == 2
    assert outcome(service, answer[1]["transaction_id"]) == "committed"


@needs_bundled
def test_recording_one_that_reads_is_lost(service: Service, proxy: WireProxy, t: str) -> None:
    """Of a transaction that has only read, the answer to its record is lost, and the engine stays away: it is not said
    to have failed, since the record may be there, and here is."""
    id = f"txn_{uuid.uuid4().hex}"
    supervisor = service.process.pid

    def lose_engine() -> None:
        send_signal(supervisor, signal.SIGSTOP)  # so that nobody starts another
        kill_engine(service)

    fault = proxy.arm(Fault(Following("tuplegate.decide", "COMMIT"), At.ANSWER, lose_engine))
    try:
        with service.client() as client:
            body = {"statements": [f"select * from {t}"], "read_only": True, "timeout_ms": 2000}
            answer = client.post("/v1/transaction", json=body, headers={ID: id})
    finally:
        send_signal(supervisor, signal.SIGCONT)
    assert fault.happened.is_set(), "the step was never reached"
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "outcome_unknown"), answer.text
    once_back(lambda: serves(service))
    assert outcome(service, id) == "committed"


def test_settling_is_lost_too(service: Service, proxy: WireProxy, t: str) -> None:
    """PREPARE is lost, and then the commit by which that was made good: it is applied once, and said to be."""
    proxy.arm(Fault(text_of(Step.PREPARE, t), At.ANSWER))
    second = proxy.arm(Fault(text_of(Step.COMMIT_PREPARED, t), At.ANSWER))
    answer = transaction(service, [f"insert into {t} values ('a')"], {})
    assert second.happened.wait(30)
    assert answer is not None
    assert answer[1]["success"] is True, answer
    assert count(service, t) == 1


@needs_bundled
@pytest.mark.parametrize("step", [Step.PREPARE, Step.COMMIT_PREPARED, Step.COMMIT])
def test_acknowledged_is_on_disk(service: Service, proxy: WireProxy, t: str, step: Step) -> None:
    """The engine dies as it says that it has committed: what was acknowledged is there, whatever was SET.

    Where code could have run at the commit, the service asks once more whether it is on disk, and hears nothing.
    """
    statements = ["set synchronous_commit = off", f"insert into {t} values ('a')"]
    if step is Step.COMMIT:
        statements.append("create temp table scratch (a int)")
    stop_writing(service)
    fault = proxy.arm(Fault(text_of(step, t), At.ANSWER, lambda: kill_engine(service), cut=False))
    answer = transaction(service, statements, {})
    assert fault.happened.wait(30)
    once_back(lambda: serves(service) and none_in_doubt(service))
    assert answer is not None
    assert answer[1]["success"] is True or answer[1]["error"]["code"] == "outcome_unknown", answer
    assert answer[1]["success"] is True or step is Step.COMMIT, answer
    assert count(service, t) == 1


@needs_bundled
@pytest.mark.parametrize(
    "statement",
    [
        "do $$ begin set local synchronous_commit = off; insert into {t} values ('a'); end $$",
        "with s as (select set_config('synchronous_commit', 'off', false)) insert into {t} select 'a' from s",
        "insert into {t} values (set_config('synchronous_commit', 'off', false)) returning a",
    ],
)
def test_acknowledged_single_write_is_on_disk(service: Service, proxy: WireProxy, t: str, statement: str) -> None:
    """The same for one statement by itself, which can SET and write at once."""
    stop_writing(service)
    fault = proxy.arm(Fault(text_of(Step.COMMIT, t), At.ANSWER, lambda: kill_engine(service), cut=False))
    with service.client() as client:
        answer = Sql(client).answer(statement.format(t=t)).json()
    assert fault.happened.wait(30)
    once_back(lambda: serves(service))
    assert answer["success"] is True or answer["error"]["code"] == "outcome_unknown", answer
    assert count(service, t) == 1


LAZY = "function lazy() returns int language plpgsql as $$ begin {}; insert into {t} values ('a'); return 1; end $$"


@pytest.mark.parametrize(
    ("made", "statement"),
    [
        (LAZY.replace("{}", "set local synchronous_commit = off"), "select lazy()"),
        (LAZY.replace("{}", "execute 'set synchronous_' || 'commit = off'"), "insert into {t} select lazy()"),
        (LAZY.replace("{}", "perform set_config('synchronous_commit', 'off', true)"), "/*+ STREAM */ select lazy()"),
        (LAZY.replace("{}; ", ""), "select lazy(), set_config('synchronous_commit', 'off', false)"),
    ],
)
def test_acknowledged_is_on_disk_whatever_code_set(
    service: Service, proxy: WireProxy, t: str, made: str, statement: str
) -> None:
    """Code of the tenant's own makes its commit lazy. The engine dies as soon as the answer is there."""
    with service.client() as client:
        Sql(client)("create " + made.replace("{t}", t))
        stop_writing(service)
        answer = client.post("/v1/query", json={"sql": statement.format(t=t)})
        kill_engine(service)
        assert answer.status_code == 200
        assert '"success":false' not in answer.text, answer.text
        once_back(lambda: serves(service))
        assert count(service, t) >= 1
        Sql(client)("drop function lazy()")


def stop_writing(service: Service) -> None:
    """From now on nothing reaches the disk but what a commit itself writes there."""
    for (pid,) in as_superuser(service, "select pid from pg_stat_activity where backend_type = 'walwriter'"):
        send_signal(pid, signal.SIGSTOP)


# -- open transactions ----------------------------------------------------------------------------------------------


def send(service: Service, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
    """Status and body; None where there was no answer."""
    with service.client() as client:
        try:
            answer = client.post(f"/v1/transaction/{path}", json=body)
        except httpx.TransportError:
            return None
    return answer.status_code, answer.json()


def send_until_told(service: Service, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """The answer of a request that is sent again, with its number, until it says what happened."""
    told: list[tuple[int, dict[str, Any]]] = []

    def is_told() -> bool:
        answer = send(service, path, body)
        if answer is not None and answer[0] != 503:
            told.append(answer)
        return bool(told)

    once_back(is_told)
    return told[0]


def learn_that_there_is_no_code(service: Service, table: str) -> None:
    """Returns when the service commits in two phases: it has asked since the table was made."""

    def is_two_phase() -> bool:
        answer = send(service, "begin", {"statement": f"insert into {table}_before values ('a')"})
        assert answer is not None
        done = send(service, f"{answer[1]['transaction_id']}/commit", {})
        return done is not None and done[1].get("commit") == "two_phase"

    with service.client() as client:
        Sql(client)(f"create table {table}_before (a text)")
    once_back(is_two_phase)


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("at", At)
@pytest.mark.parametrize("step", Step)
def test_open_transaction(service: Service, proxy: WireProxy, t: str, step: Step, at: At, harm: Harm) -> None:
    """Whatever happens at whatever step of its commit, who sends that again is told what happened, and it holds."""
    learn_that_there_is_no_code(service, t)
    begun = send(service, "begin", {"statement": f"insert into {t} values ('a')"})
    assert begun is not None
    id = str(begun[1]["transaction_id"])
    if step is Step.COMMIT:
        answer = send(service, f"{id}/query", {"sql": "create temp table scratch (a int)", "sequence": 1})
        assert answer is not None
    fault = proxy.arm(Fault(text_of(step, t), at, harm_of(harm, service)))
    body = {"statement": f"insert into {t} values ('b')", "sequence": 2 if step is Step.COMMIT else 1}
    first = send(service, f"{id}/commit", body)
    assert fault.happened.wait(30), "the step was never reached"
    status, told = send_until_told(service, f"{id}/commit", body)
    once_back(lambda: serves(service) and none_in_doubt(service))
    there = count(service, t)
    assert there in (0, 2), "half of it is there, or it is there twice"
    # The last statement and PREPARE go in one write: when it is answered, the engine may have done both.
    decided = at is At.ANSWER and step in (Step.EXECUTE, Step.PREPARE, Step.COMMIT)
    may_differ = harm is Harm.ENGINE or (at is At.ANSWER and step is Step.EXECUTE)
    assert there == (2 if decided or step is Step.COMMIT_PREPARED else 0) or may_differ
    assert told["success"] is bool(there), told
    assert told["success"] or (status, told["error"]["code"]) == (409, "transaction_aborted"), told
    if first is not None and first[0] == 503:
        assert first[1]["error"]["code"] in ("engine_unavailable", "outcome_unknown"), first
        assert first[1]["error"]["code"] == "outcome_unknown" or not there, first
    elif first is not None:
        assert first[1]["success"] is bool(there), first
    with service.client() as client:
        state = client.get(f"/v1/transaction/{id}").json()
    assert state["state"] == ("committed" if there else "aborted")
    assert there or state["reason"] == "lost", state


@needs_bundled
def test_an_open_transaction_ends_with_the_engine(service: Service, proxy: WireProxy, t: str) -> None:
    """Nothing is sent to it meanwhile."""
    begun = send(service, "begin", {"statement": f"insert into {t} values ('a')", "idle_timeout_ms": 60_000})
    assert begun is not None
    id = str(begun[1]["transaction_id"])
    kill_engine(service)

    def is_lost() -> bool:
        with service.client() as client:
            answer = client.get(f"/v1/transaction/{id}").json()
        return (answer.get("state"), answer.get("reason")) == ("aborted", "lost")

    once_back(is_lost)
    assert send_until_told(service, f"{id}/commit", {})[0] == 409
    once_back(lambda: serves(service))
    assert count(service, t) == 0


def test_a_stream_of_an_open_transaction_is_cut(service: Service, proxy: WireProxy, t: str) -> None:
    """Whatever it may have written, it was rolled back with its connection, and its client is told so."""
    begun = send(service, "begin", {"statement": f"insert into {t} values ('a')"})
    assert begun is not None
    id = str(begun[1]["transaction_id"])
    proxy.arm(Fault(lambda text: text.startswith("FETCH"), At.REQUEST, skip=1))
    body = {"sql": "select i from generate_series(1, 1000) i"}
    with service.client() as client:
        headers = {"Accept": "application/x-ndjson"}
        answer = client.post(f"/v1/transaction/{id}/query", json=body, headers=headers)
        last = json.loads(answer.text.splitlines()[-1])
        assert (last["event"], last["data"]["error"]["code"]) == ("error", "engine_unavailable"), last
        assert last["data"]["transaction"] == {"state": "aborted", "reason": "lost"}
    assert count(service, t) == 0


# -- records --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("at", At)
@pytest.mark.parametrize("record", ["tuplegate.begin", "tuplegate.decide"])
def test_records(service: Service, proxy: WireProxy, t: str, record: str, at: At, harm: Harm) -> None:
    """The writing of a chosen id's own records is lost: the outcome is as definite as ever."""
    id = f"txn_{uuid.uuid4().hex}"
    fault = proxy.arm(Fault(lambda text: record in text, at, harm_of(harm, service)))
    answer = transaction(service, [f"insert into {t} values ('a')"], {ID: id})
    assert fault.happened.wait(30)
    once_back(lambda: serves(service) and none_in_doubt(service))
    there = count(service, t)
    if answer is not None:
        assert there == (1 if answer[1]["success"] else 0), answer
        assert answer[1]["success"] or answer[1]["error"]["code"] == "engine_unavailable", answer
    assert outcome(service, id) == ("committed" if there else "aborted")


# -- single writes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("at", At)
def test_single_write(service: Service, proxy: WireProxy, t: str, at: At, harm: Harm) -> None:
    """A single write without a key says honestly that nobody knows."""
    fault = proxy.arm(Fault(text_of(Step.EXECUTE, t), at, harm_of(harm, service)))
    with service.client() as client:
        try:
            answer = Sql(client).answer(f"insert into {t} values ('b')")
        except httpx.TransportError:
            assert harm is Harm.WORKER
        else:
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["retryable"]) == (503, "outcome_unknown", False)
    assert fault.happened.wait(30)
    once_back(lambda: serves(service))
    assert count(service, t) == (1 if at is At.ANSWER else 0)


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("at", At)
@pytest.mark.parametrize(
    ("route", "step"),
    [
        ("/v1/query", Step.EXECUTE),
        ("/v1/query", Step.PREPARE),
        ("/v1/query", Step.COMMIT_PREPARED),
        ("/v1/transaction", Step.COMMIT),
    ],
)
def test_repeated_with_a_key(
    service: Service, proxy: WireProxy, t: str, route: str, step: Step, at: At, harm: Harm
) -> None:
    """With an Idempotency-Key the client may repeat until it is answered: it is applied exactly once."""
    sql = f"insert into {t} values ('b')"
    body: dict[str, Any] = {"sql": sql}
    if step is Step.COMMIT:
        body = {"statements": [sql, "create temp table scratch (a int)"]}
    fault = proxy.arm(Fault(text_of(step, t), at, harm_of(harm, service)))

    def succeeds() -> bool:
        with service.client() as client:
            answer = client.post(route, json=body, headers={KEY: t}).json()
        return bool(answer["success"]) and int(answer["affected_rows"]) == 1

    once_back(succeeds)
    assert fault.happened.wait(30)
    assert succeeds()
    assert count(service, t) == 1
    once_back(lambda: none_in_doubt(service))


def test_proxy_is_in_the_way(service: Service, proxy: WireProxy, t: str) -> None:
    """What the tests above rest on: the worker's connections go through the proxy."""
    mark = uuid.uuid4().hex
    with service.client() as client:
        Sql(client)(f"select '{mark}'")
    assert f"select '{mark}'" in proxy.seen


@contextmanager
def before_the_catalog(service: Service, proxy: WireProxy) -> Iterator[WireProxy]:
    """A proxy between the workers and the catalog, which has a server of its own where databases have one."""
    if service.engine:
        yield proxy
        return
    with WireProxy(service.data_dir / "catalog" / "run") as own:
        kill_worker(service)
        once_back(lambda: answers(service))
        yield own


def test_a_session_that_cannot_be_audited(service: Service, proxy: WireProxy) -> None:
    """Clients of the engine's own protocol are served when the engine is lost at their audit; the log says so."""
    before = service.log
    with before_the_catalog(service, proxy) as catalog:
        cut = catalog.arm(Fault(lambda sent: sent.startswith("INSERT INTO audit"), At.REQUEST))
        with Tunnel(service) as tunnel, tunnel.connect() as session:
            assert session.execute("select 1").fetchall() == [(1,)]
            assert cut.happened.is_set()
    logged = service.log.removeprefix(before)
    assert "the audit was not recorded" in logged
    assert "Traceback" not in logged
