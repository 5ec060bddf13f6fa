"""An engine that is a primary with a standby: what is acknowledged is on both, and whichever is the primary is used.

The tests follow one cluster through its life, in their order: the last one ends with another primary.
"""

import socket
import struct
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psycopg
import pytest

from tests.extended.test_external_engine import run_serve
from tests.external import ExternalServer, Standby
from tests.inside import kill_worker
from tests.servers import needs_linux
from tests.service import Service, Sql, new_data_dir, remove, start_service
from tests.waiting import eventually

ID = "Tuplegate-Transaction-Id"
STREAM = "/*+ STREAM */"
SOON_S = 15.0
WAITING = "select count(*) from pg_stat_activity where wait_event = 'SyncRep' and query !~ 'logical_emit'"

pytestmark = needs_linux


class Cluster:
    """Its URL names the standby first."""

    def __init__(self) -> None:
        self.primary = ExternalServer()
        self.standby = Standby(self.primary)
        self.wait_for_standby("*")

    @property
    def url(self) -> str:
        hosts = f"127.0.0.1:{self.standby.port},127.0.0.1:{self.primary.port}"
        return self.primary.url("cluster").replace(f"127.0.0.1:{self.primary.port}", hosts)

    def wait_for_standby(self, names: str) -> None:
        """From now on, commits do."""
        self.primary.execute(f"alter system set synchronous_standby_names = '{names}'")
        self.primary.execute("select pg_reload_conf()")
        eventually(lambda: self.primary.execute("show synchronous_standby_names") == [(names,)])

    def commits_that_wait(self) -> int:
        [(count,)] = self.primary.execute(WAITING)
        assert isinstance(count, int)
        return count


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.standby.remove()
    made.primary.remove()


@pytest.fixture(scope="module")
def service(cluster: Cluster) -> Iterator[Service]:
    started = start_service(new_data_dir(), env={"TUPLEGATE_ENGINE": cluster.url})
    with started.client() as client:
        Sql(client)("create table t (a int primary key)")
    yield started
    assert started.stop() == 0
    remove(started.data_dir)


@pytest.fixture
def client(service: Service) -> Iterator[httpx.Client]:
    with service.client() as made:
        yield made


def query(client: httpx.Client, sql: str, **more: Any) -> httpx.Response:
    return client.post("/v1/query", json={"sql": sql, **more}, timeout=60)


def rows(client: httpx.Client) -> list[int]:
    answer = query(client, "select a from t order by a")
    assert answer.status_code == 200, answer.text
    return [row["a"] for row in answer.json()["rows"]]


def health(client: httpx.Client) -> dict[str, Any]:
    answered: dict[str, Any] = client.get("/health").json()
    return answered


def test_the_primary_is_found_behind_a_standby(client: httpx.Client) -> None:
    assert query(client, "insert into t values (1)").status_code == 200
    said = health(client)
    assert (said["status"], said["engine"]["commits"]) == ("ok", "replicated")
    assert said["checks"] == {"engine": "ok", "commits": "ok"}


def test_the_storage_test_says_that_a_standby_has_it(client: httpx.Client) -> None:
    assert client.get("/storage/test").json()["replicated"] is True


def test_a_commit_that_no_standby_confirms(cluster: Cluster, client: httpx.Client) -> None:
    """It is neither acknowledged nor cancelled; nothing else is written, and reads go on."""
    before = rows(client)
    cluster.standby.freeze()
    try:
        late = query(client, "insert into t values (2)", timeout_ms=1000)
        assert (late.status_code, late.json()["error"]["code"]) == (503, "outcome_unknown")
        assert cluster.commits_that_wait() == 1
        assert 2 not in rows(client)
        eventually(lambda: health(client)["status"] == "degraded")
        assert "standby" in health(client)["checks"]["commits"]
        refused = query(client, "insert into t values (3)")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_unavailable")
        body = {"statements": [{"sql": "insert into t values (3)"}]}
        chosen = client.post("/v1/transaction", json=body, headers={ID: f"txn_{uuid.uuid4().hex}"}, timeout=60)
        assert (chosen.status_code, chosen.json()["error"]["code"]) == (503, "engine_unavailable")
        assert rows(client) == before
    finally:
        cluster.standby.thaw()
    eventually(lambda: health(client)["status"] == "ok")
    eventually(lambda: rows(client) == [*before, 2])
    assert query(client, "insert into t values (3)").status_code == 200


def test_what_would_wait_for_the_standby_is_refused(cluster: Cluster, service: Service, client: httpx.Client) -> None:
    """Everything that records something, also the service's own records; and a new worker serves reads."""
    before = rows(client)
    cluster.standby.freeze()
    try:
        query(client, "insert into t values (10)", timeout_ms=1000)
        body = {"statements": ["insert into t values (11)"]}
        with pytest.raises(httpx.ReadTimeout):  # it is prepared, and waits; no worker that starts can commit it
            client.post("/v1/transaction", json=body, timeout=1)
        eventually(lambda: health(client)["status"] == "degraded")
        token = {"authorization": client.headers["authorization"]}
        refused = [
            httpx.post(f"{service.control_url}/v1/session", headers=token, timeout=SOON_S, trust_env=False),
            client.post("/v1/query", json={"sql": "select 1"}, headers={"Idempotency-Key": "k"}, timeout=SOON_S),
            client.get("/storage/test", timeout=SOON_S),
            client.post("/v1/query", json={"sql": f"{STREAM} insert into t values (12) returning a"}, timeout=SOON_S),
        ]
        for answer in refused:
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_unavailable"), answer.text
            assert "standby" in answer.json()["error"]["message"]
        kill_worker(service)
        with service.client() as other:
            eventually(lambda: _reads(other))
            assert rows(other) == before
    finally:
        cluster.standby.thaw()
    eventually(lambda: health(client)["status"] == "ok")
    eventually(lambda: rows(client) == [*before, 10, 11])
    assert query(client, "delete from t where a >= 10").status_code == 200


def _reads(client: httpx.Client) -> bool:
    try:
        return client.post("/v1/query", json={"sql": "select 1"}, timeout=SOON_S).status_code == 200
    except httpx.RemoteProtocolError:
        return False  # the worker took the connection before it ended


def test_who_waits_for_more_than_the_service_does(cluster: Cluster, client: httpx.Client) -> None:
    """A commit that waits until a standby has replayed it holds up nobody else: no standby is away."""
    before = rows(client)
    cluster.standby.execute("select pg_wal_replay_pause()")
    eventually(lambda: cluster.standby.execute("select pg_get_wal_replay_pause_state()") == [("paused",)])
    more = (
        "with s as (select set_config('synchronous_commit', 'remote_apply', true)) select pg_current_xact_id() from s"
    )
    waiting = threading.Thread(target=cluster.primary.execute, args=(f"create table more as {more}",))
    written: list[int] = []
    try:
        # What a tenant sets for its session does not hold for the service's own COMMIT PREPARED.
        body = {"statements": ["set synchronous_commit = 'remote_apply'", "insert into t values (1000)"]}
        assert client.post("/v1/transaction", json=body, timeout=SOON_S).status_code == 200
        waiting.start()
        eventually(lambda: cluster.commits_that_wait() == 1)
        while not cluster.primary.execute(f"{WAITING} having min(query_start) < clock_timestamp() - interval '5 s'"):
            written.append(1001 + len(written))
            assert query(client, f"insert into t values ({written[-1]})", timeout_ms=3000).status_code == 200
        assert health(client)["checks"]["commits"] == "ok"
    finally:
        cluster.standby.execute("select pg_wal_replay_resume()")
    waiting.join()
    assert rows(client) == [*before, 1000, *written]
    assert query(client, "delete from t where a >= 10").status_code == 200


def test_a_transaction_that_no_standby_confirms(cluster: Cluster, service: Service, client: httpx.Client) -> None:
    """What became of it is told when it is certain, and not before."""
    answers: list[httpx.Response] = []
    id = f"txn_{uuid.uuid4().hex}"

    def commit() -> None:
        body = {"statements": [{"sql": "insert into t values (4)"}]}
        answers.append(client.post("/v1/transaction", json=body, headers={ID: id}, timeout=120))

    def outcome() -> str:
        with service.client() as other:
            return str(other.get(f"/v1/transaction/{id}").json()["state"])

    [(database,)] = cluster.primary.execute("select datname from pg_database where datname ~ '^tg_'")
    lock = psycopg.connect(cluster.primary.url(str(database)))
    begun = threading.Thread(target=commit)
    try:
        # The id is taken, and known to the standby, before the standby is away.
        lock.execute("lock table t in access exclusive mode")
        begun.start()
        eventually(lambda: cluster.primary.execute(_LOCKED) == [(1,)])
        cluster.standby.freeze()
        lock.rollback()
        eventually(lambda: cluster.commits_that_wait() == 1)
        assert outcome() == "in_progress"
    finally:
        lock.close()
        cluster.standby.thaw()
    begun.join()
    assert answers[0].status_code == 200, answers[0].text
    assert outcome() == "committed"


_LOCKED = "select count(*)::int from pg_stat_activity where wait_event_type = 'Lock'"


def test_a_transaction_whose_waits_are_cancelled(cluster: Cluster, client: httpx.Client) -> None:
    """An operator who cancels them again and again lets nobody see what no standby has, and a failover takes back:
    neither its own worker commits it, nor recovery."""
    answers: list[httpx.Response] = []
    body = {"statements": ["insert into t values (40)"], "timeout_ms": 1000}
    sent = threading.Thread(target=lambda: answers.append(client.post("/v1/transaction", json=body, timeout=60)))
    before = rows(client)
    cancelled: list[str] = []

    def is_recovered() -> bool:
        cancelled.extend(str(query) for query, _ in cluster.primary.execute(_CANCEL_WAITS))
        notes = [query for query in cancelled if "engine.recovered" in query]
        return len(notes) > 1 or any("COMMIT PREPARED" in query for query in cancelled)

    cluster.standby.freeze()
    try:
        sent.start()
        eventually(is_recovered)
        assert rows(client) == before, cancelled
    finally:
        cluster.standby.thaw()
    sent.join()
    assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (503, "outcome_unknown")
    id = answers[0].json()["transaction_id"]
    eventually(lambda: client.get(f"/v1/transaction/{id}").json()["state"] == "committed")
    assert rows(client) == [*before, 40]
    assert query(client, "delete from t where a = 40").status_code == 200


_CANCEL_WAITS = "select query, pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'"


def test_a_wait_that_was_cancelled_where_code_hides_it(cluster: Cluster, client: httpx.Client) -> None:
    """The server says with a warning that a wait was cut short. Code that silences warnings makes nobody trust it."""
    silent = "create function silent() returns trigger language plpgsql as $$ begin {}; return new; end $$"
    Sql(client)(silent.format("set client_min_messages = error"))
    Sql(client)("create trigger silent before insert on t for each row execute function silent()")
    answers: list[httpx.Response] = []
    for value in range(61, 65):  # by then the service knows what the trigger does
        assert query(client, f"insert into t values ({value})").status_code == 200
    insert = "insert into t values (60)"
    sent = threading.Thread(target=lambda: answers.append(query(client, insert, timeout_ms=30_000)))
    certain = "select count(*)::int from pg_stat_activity where wait_event = 'SyncRep' and query ~ 'logical_emit'"
    cluster.standby.freeze()
    try:
        sent.start()
        eventually(lambda: cluster.commits_that_wait() == 1)
        assert cluster.primary.execute(f"{_CANCEL_WAITS} and query !~ 'logical_emit'")[0][1]
        eventually(lambda: bool(answers) or cluster.primary.execute(certain) == [(1,)])
        assert answers == []
    finally:
        cluster.standby.thaw()
    sent.join()
    assert answers[0].status_code == 200, answers[0].text
    Sql(client)("drop function silent cascade")
    assert query(client, "delete from t where a >= 60").status_code == 200


def test_replicated_or_not_at_all(cluster: Cluster, client: httpx.Client) -> None:
    """Where the engine waits for no standby, a service that is told to acknowledge nothing less writes nothing."""
    strict = start_service(new_data_dir(), env={"TUPLEGATE_ENGINE": cluster.url, "TUPLEGATE_DURABILITY": "replicated"})
    try:
        strict.key = client.headers["authorization"].partition(" ")[2]
        with strict.client() as other:
            assert query(other, "insert into t values (5)").status_code == 200
            cluster.wait_for_standby("")
            try:
                eventually(lambda: health(other)["status"] == "degraded")
                refused = query(other, "insert into t values (6)")
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_unavailable")
                assert rows(other)[-1] == 5
                assert query(client, "insert into t values (7)").status_code == 200
                eventually(lambda: health(client)["engine"]["commits"] == "local")
            finally:
                cluster.wait_for_standby("*")
            eventually(lambda: health(other)["status"] == "ok")
            assert query(other, "insert into t values (6)").status_code == 200
    finally:
        assert strict.stop() == 0
        remove(strict.data_dir)


def test_reads_go_on_while_no_standby_confirms(cluster: Cluster, client: httpx.Client) -> None:
    """Also where the database stores code, which any read may call; a write is answered within its own time limit."""
    strict = start_service(new_data_dir(), env={"TUPLEGATE_ENGINE": cluster.url, "TUPLEGATE_DURABILITY": "replicated"})
    try:
        strict.key = client.headers["authorization"].partition(" ")[2]
        with strict.client() as other:
            other.timeout = httpx.Timeout(20)
            Sql(other)("create function f() returns int language plpgsql as 'begin return 1; end'")
            assert Sql(other).value("select f() as f") == 1
            cluster.standby.freeze()
            try:
                body = {"statements": ["insert into t values (50)", "select f()"], "timeout_ms": 1000}
                late = other.post("/v1/transaction", json=body)
                assert (late.status_code, late.json()["error"]["code"]) == (503, "outcome_unknown")
                id = late.json()["transaction_id"]
                is_known = False
                while not is_known:  # before and after it is known that commits stand still
                    is_known = health(other)["status"] != "ok"
                    assert other.get(f"/v1/transaction/{id}").json()["state"] == "in_progress"
                for read in (
                    "select f()",
                    "with f as (select f()) select * from f",
                    "select set_config('a.b', '1', false)",
                ):
                    answer = query(other, read)
                    assert answer.status_code == 200, answer.text
                    assert answer.json()["success"], answer.text
                    stream = query(other, f"{STREAM} {read}")
                    assert "event: done" in stream.text, stream.text
                for read in ("show server_version", "explain select f()"):
                    assert query(other, read).status_code == 200
                reading = other.post("/v1/transaction", json={"statements": ["select f()", "select a from t"]})
                assert reading.json()["success"], reading.text
            finally:
                cluster.standby.thaw()
            eventually(lambda: other.get(f"/v1/transaction/{id}").json()["state"] == "committed")
            eventually(lambda: health(other)["status"] == "ok")
            Sql(other)("drop function f")
    finally:
        assert strict.stop() == 0
        remove(strict.data_dir)


class _Between:
    """A proxy that does to a connection what poolers do: `change` gets each message of the start, and gives another."""

    def __init__(self, port: int, of_client: Callable[[bytes], bytes], of_server: Callable[[bytes], bytes]) -> None:
        self._port = port
        self._of_client = of_client
        self._of_server = of_server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._port))
            start = client.recv(1 << 16)
            server.sendall(self._of_client(start))
            threading.Thread(target=_pass_on, args=(client, server, bytes), daemon=True).start()
            threading.Thread(target=_pass_on, args=(server, client, self._of_server), daemon=True).start()

    def close(self) -> None:
        self._listener.close()


def _pass_on(source: socket.socket, sink: socket.socket, change: Callable[[bytes], bytes]) -> None:
    try:
        while data := source.recv(1 << 16):
            sink.sendall(change(data))
    except OSError:
        pass
    sink.close()


def _without_options(start: bytes) -> bytes:
    """The start-up packet as a pooler passes it on that ignores options."""
    parts = start[8:].split(b"\0")
    kept = [part for pair in zip(parts[::2], parts[1::2], strict=False) if pair[0] != b"options" for part in pair]
    body = start[4:8] + b"\0".join(kept).rstrip(b"\0") + b"\0\0"
    return struct.pack("!i", len(body) + 4) + body


def _other_process(data: bytes) -> bytes:
    """A pooler gives its clients numbers of its own."""
    place = data.find(b"K\0\0\0\x0c")
    return data if place < 0 else data[: place + 5] + struct.pack("!i", 77) + data[place + 9 :]


@pytest.mark.parametrize(
    ("of_client", "of_server", "said"),
    [
        (_without_options, bytes, "keeps back what the service sets when it connects"),
        (bytes, _other_process, "a pooler stands between the service and the engine"),
    ],
)
def test_a_pooler_is_refused(
    cluster: Cluster, of_client: Callable[[bytes], bytes], of_server: Callable[[bytes], bytes], said: str
) -> None:
    between = _Between(cluster.primary.port, of_client, of_server)
    try:
        done = run_serve(cluster.primary.url("pooled").replace(str(cluster.primary.port), str(between.port)))
    finally:
        between.close()
    assert done.returncode != 0
    assert said in done.stderr


def test_a_frozen_primary_is_left_for_the_next(cluster: Cluster, service: Service, client: httpx.Client) -> None:
    """And nothing is read from it when it wakes up."""
    cluster.wait_for_standby("")
    before = rows(client)
    cluster.primary.freeze()
    thawed = False
    try:
        eventually(lambda: health(client)["status"] == "failing")
        assert "no answer" in health(client)["checks"]["engine"]
        cluster.standby.execute("select pg_promote()")
        eventually(lambda: query(client, "insert into t values (100)").status_code == 200)
        cluster.primary.thaw()
        thawed = True
        with service.client() as other:
            for _ in range(50):
                assert rows(other) == [*before, 100]
        ours = "select count(*)::int from pg_stat_activity where usename ~ '^(tg_|cluster)'"
        eventually(lambda: cluster.primary.execute(ours) == [(0,)])
        assert health(client)["status"] == "ok"
    finally:
        if not thawed:
            cluster.primary.thaw()
