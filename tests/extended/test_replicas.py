"""Reads from a standby: as new as the client has seen, and answered by the primary wherever the standby cannot.

A primary, a standby that streams its log, and one service, for the whole module; a second standby and a second service
for the tests at the end, of which one promotes the first standby.
"""

import asyncio
import json
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import httpx
import psycopg
import pytest

from tests.control import Control
from tests.external import ExternalServer, Standby
from tests.metrics import Page
from tests.servers import needs_linux
from tests.service import Service, new_data_dir, remove, start_service
from tests.waiting import eventually
from tuplegate.client import AsyncClient, Client

SNAPSHOT = {"Tuplegate-Consistency": "snapshot"}
POSITION = "Tuplegate-Position"
SERVED_BY = "Tuplegate-Served-By"
WHERE = "select pg_is_in_recovery() as standby, current_setting('transaction_isolation') as level"

pytestmark = needs_linux


@dataclass
class Cluster:
    primary: ExternalServer
    standby: Standby
    service: Service
    client: httpx.Client

    def query(self, sql: str, *, after: str | None = None, snapshot: bool = True, **more: Any) -> httpx.Response:
        headers = {**(SNAPSHOT if snapshot else {}), **({} if after is None else {POSITION: after})}
        answer = self.client.post("/v1/query", json={"sql": sql, **more}, headers=headers)
        assert answer.json()["success"], answer.json()
        return answer

    def write(self, sql: str) -> str:
        """The position behind it."""
        return self.query(sql, snapshot=False).headers[POSITION]

    def read(self, sql: str, after: str | None = None) -> tuple[Any, str]:
        """The only value, and who answered."""
        answer = self.query(sql, after=after, row_mode="arrays")
        [[value]] = answer.json()["rows"]
        return value, answer.headers[SERVED_BY]

    @property
    def health(self) -> dict[str, Any]:
        answer = self.client.get("/health")
        assert answer.status_code == 200
        body: dict[str, Any] = answer.json()
        return body

    def said(self, number: int = 1) -> str:
        """What keeps a replica from being used, or "ok"."""
        said: str = self.health["checks"][f"replica {number}"]
        return said

    def wait_until_usable(self) -> None:
        eventually(lambda: self.said() == "ok")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The standby gets what is committed, and shows none of it before the end."""
        pause(self.standby)
        try:
            yield
        finally:
            self.standby.execute("select pg_wal_replay_resume()")
        self.standby.catch_up()

    def metric(self, name: str, **labels: str) -> float:
        headers = {"Authorization": f"Bearer {self.service.key}"}
        page = httpx.get(f"{self.service.control_url}/metrics", headers=headers, trust_env=False)
        return Page(page.text).value(name, **labels)


def pause(standby: Standby) -> None:
    standby.execute("select pg_wal_replay_pause()")
    eventually(lambda: standby.execute("select pg_get_wal_replay_pause_state()") == [("paused",)])


def change(standby: Standby, setting: str, value: str) -> None:
    standby.execute(f"alter system set {setting} = '{value}'")
    standby.execute("select pg_reload_conf()")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    primary = ExternalServer()
    standby = Standby(primary)
    change(standby, "max_standby_streaming_delay", "0")
    data_dir = new_data_dir()
    env = {"TUPLEGATE_ENGINE": primary.url(), "TUPLEGATE_REPLICAS": f"postgresql://127.0.0.1:{standby.port}"}
    service = start_service(data_dir, env=env)
    with service.client() as client:
        made = Cluster(primary, standby, service, client)
        made.write("create table t (a int)")
        made.write("insert into t values (1)")
        made.wait_until_usable()
        eventually(lambda: made.read("select count(*) from t", made.write("select 1")) == (1, "replica"))
        yield made
    assert service.stop() == 0
    standby.remove(signal.SIGQUIT)  # nobody needs what they hold
    primary.remove(signal.SIGQUIT)
    remove(data_dir)


def test_a_snapshot_is_read_from_the_standby(cluster: Cluster) -> None:
    """At REPEATABLE READ; everything else is serializable, on the primary, and says nothing of who answered."""
    before = cluster.metric("snapshot_reads_total", served_by="replica")
    answer = cluster.query(WHERE)
    assert answer.json()["rows"] == [{"standby": True, "level": "repeatable read"}]
    assert answer.headers[SERVED_BY] == "replica"
    assert cluster.metric("snapshot_reads_total", served_by="replica") == before + 1
    assert cluster.metric("replica_usable", replica="1") == 1
    assert cluster.metric("replica_lag_seconds", replica="1") < 5
    plain = cluster.query(WHERE, snapshot=False)
    assert plain.json()["rows"] == [{"standby": False, "level": "serializable"}]
    assert SERVED_BY not in plain.headers
    assert plain.headers[POSITION] >= answer.headers[POSITION]


def test_many_reads_with_positions_are_the_standbys(cluster: Cluster) -> None:
    """Also of statements that come often, and with parameters of types that are asked for."""
    position = cluster.write("create table often (a int primary key, b jsonb)")
    for number in range(8):
        position = cluster.write(f"insert into often values ({number}, '[1]')")
        eventually(lambda position=position: cluster.read("select max(a) from often", position)[1] == "replica")  # type: ignore[misc]
        found = cluster.query("select a from often where a = $1 and b = $2", after=position, params=[number, [1]])
        assert found.json()["rows"] == [{"a": number}]
        assert cluster.read(f"select a from often where a = {number}", found.headers[POSITION])[0] == number


@pytest.mark.parametrize("saw", ["wrote", "read", "failed", "transaction", "keyed", "streamed"])
def test_nobody_reads_what_was_before_their_own(cluster: Cluster, saw: str) -> None:
    """Whatever told the client of a row: with that answer's position the row is there, while the standby lacks it."""
    cluster.write(f"create table {saw} (a int primary key)")
    eventually(lambda: cluster.read(f"select count(*) from {saw}")[1] == "replica")
    with cluster.paused():
        insert = f"insert into {saw} values (1)"
        position = ""
        if saw in ("wrote", "read", "failed"):
            position = cluster.write(insert)
        if saw == "read":
            position = cluster.write(f"select * from {saw}")
        elif saw == "failed":
            again = cluster.client.post("/v1/query", json={"sql": insert})
            assert again.json()["error"]["sqlstate"] == "23505"
            position = again.headers[POSITION]
        elif saw == "transaction":
            position = cluster.client.post("/v1/transaction", json={"statements": [insert]}).headers[POSITION]
        elif saw == "keyed":
            for _ in range(2):
                done = cluster.client.post("/v1/query", json={"sql": insert}, headers={"Idempotency-Key": "once"})
            assert done.headers["Idempotency-Replayed"] == "true"
            position = done.headers[POSITION]
        elif saw == "streamed":
            events = stream(cluster, insert)[1]
            position = events[-1]["data"]["position"]
        assert cluster.read(f"select count(*) from {saw}", position) == (1, "primary")
        assert cluster.read(f"select count(*) from {saw}") == (0, "replica")
    eventually(lambda: cluster.read(f"select count(*) from {saw}", position) == (1, "replica"))


def test_a_standby_that_is_a_moment_behind_is_waited_for(cluster: Cluster) -> None:
    """The replay goes on while the read waits: it need not go to the primary."""
    cluster.write("create table moment (a int)")
    answers = []
    for _ in range(10):
        with cluster.paused():
            position = cluster.write("insert into moment values (1)")
            reading = threading.Thread(target=lambda at=position: answers.append(cluster.read("select 1", at)))
            reading.start()
        reading.join()
    assert (1, "replica") in answers


def stream(cluster: Cluster, sql: str, **headers: str) -> tuple[httpx.Response, list[dict[str, Any]]]:
    accept = {"Accept": "application/x-ndjson", **headers}
    answer = cluster.client.post("/v1/query", json={"sql": sql}, headers=accept)
    return answer, [json.loads(line) for line in answer.text.splitlines()]


def test_streams_are_read_from_the_standby(cluster: Cluster) -> None:
    """To their end; one that the standby refuses at its first row comes from the primary, whole."""
    answer, events = stream(cluster, "select n from generate_series(1, 1000) n", **SNAPSHOT)
    assert answer.headers[SERVED_BY] == "replica"
    assert [event["data"]["n"] for event in events[1:-1]] == list(range(1, 1001))
    assert events[-1]["event"] == "done"
    assert events[-1]["data"]["position"] == answer.headers[POSITION]
    cluster.write("create unlogged table held as select n from generate_series(1, 3) n")
    answer, events = stream(cluster, "select n from held order by n", **SNAPSHOT)
    assert answer.headers[SERVED_BY] == "primary"
    assert [event["data"]["n"] for event in events[1:-1]] == [1, 2, 3]


def test_transactions_that_only_read_are_read_from_the_standby(cluster: Cluster) -> None:
    """All their statements show one moment; one that may write is the primary's."""
    body = {"statements": [WHERE, {"sql": "select $1::int as n", "params": [7]}], "read_only": True}
    answer = cluster.client.post("/v1/transaction", json=body, headers=SNAPSHOT)
    results = answer.json()["results"]
    assert (answer.json()["commit"], answer.headers[SERVED_BY]) == ("read_only", "replica")
    assert [result["rows"][0] for result in results] == [{"standby": True, "level": "repeatable read"}, {"n": 7}]
    writing = cluster.client.post("/v1/transaction", json={"statements": [WHERE]}, headers=SNAPSHOT)
    assert writing.json()["results"][0]["rows"][0]["standby"] is False
    assert writing.headers[SERVED_BY] == "primary"


@pytest.mark.parametrize(
    "sql",
    [
        "select nextval('numbers')",
        "select writes()",
        "with w as (insert into t2 values (1) returning a) select a from w",
        "select a from t2 for update",
        "select a into temporary made from t2",
        "select pg_try_advisory_xact_lock(1)",
        "select a from unlogged_t",
        "select a from arrived_just_now",
        "insert into t2 values (2)",
        "create temporary table temporary_t (a int)",
        "select pg_current_xact_id()",
    ],
)
def test_what_only_the_primary_can_do_goes_on(cluster: Cluster, sql: str) -> None:
    """As if there were no standby."""
    cluster.write("create table if not exists t2 (a int)")
    cluster.write("create unlogged table if not exists unlogged_t (a int)")
    cluster.write("create sequence if not exists numbers")
    cluster.write(
        "create or replace function writes() returns int language plpgsql as"
        " $$ begin insert into t2 values (3); return 1; end $$"
    )
    if "arrived" in sql:
        with cluster.paused():
            cluster.write("create table arrived_just_now (a int)")
            assert cluster.query(sql).headers[SERVED_BY] == "primary"
    assert cluster.query(sql).headers[SERVED_BY] == ("replica" if "arrived" in sql else "primary")


def test_an_error_is_the_primarys(cluster: Cluster) -> None:
    """With its own words and position."""
    answer = cluster.client.post("/v1/query", json={"sql": "select 1 / 0"}, headers=SNAPSHOT).json()
    assert answer["error"]["sqlstate"] == "22012"
    answer = cluster.client.post("/v1/query", json={"sql": "select 1 +"}, headers=SNAPSHOT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "parse_error")


def test_the_time_limit_is_for_both_together(cluster: Cluster) -> None:
    """One that takes too long is cancelled on the standby, and not begun again."""
    answer = cluster.client.post("/v1/query", json={"sql": "select pg_sleep(60)", "timeout_ms": 300}, headers=SNAPSHOT)
    assert answer.headers[SERVED_BY] == "replica"
    error = answer.json()["error"]
    assert error["code"] == "timeout"
    assert "300 ms" in error["message"]
    eventually(lambda: cluster.standby.execute(SLEEPING) == [(0,)])


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
def test_the_wait_for_a_standby_is_part_of_the_time_limit(cluster: Cluster, accept: str) -> None:
    """It takes a part of a short one only. When the time is over, the error names the limit that was asked for."""
    headers = {**SNAPSHOT, POSITION: "00000001-ffffffffffffffff", "Accept": accept}
    for sql, message in (("select 7 as n, pg_sleep(0.05)", '"n":7'), ("select pg_sleep(60)", "after 1500 ms")):
        answer = cluster.client.post("/v1/query", json={"sql": sql, "timeout_ms": 1500}, headers=headers)
        assert message in answer.text
        assert answer.headers[SERVED_BY] == "primary"


SLEEPING = (
    "select count(*) from pg_stat_activity"
    " where query like '%pg_sleep%' and state = 'active' and pid <> pg_backend_pid()"
)


def test_what_the_replay_ends_is_run_on_the_primary(cluster: Cluster) -> None:
    """The standby cancels a read that is in the way of a change."""
    cluster.write("create table emptied as select 1 as a")
    eventually(lambda: cluster.read("select count(*) from emptied") == (1, "replica"))
    found: list[tuple[Any, str]] = []
    sql = "select (select count(*) from emptied) + (select 0 from (select pg_sleep(1)) s)"
    reading = threading.Thread(target=lambda: found.append(cluster.read(sql)))
    reading.start()
    eventually(lambda: cluster.standby.execute(SLEEPING) == [(1,)])
    with cluster.service.client() as other:
        assert other.post("/v1/query", json={"sql": "truncate emptied"}).json()["success"]
    reading.join()
    assert found == [(0, "primary")]


@pytest.mark.parametrize("after", ["ffffffff-ffffffffffffffff", "00000001-ffffffffffffffff", "unknown"])
def test_a_position_that_was_made_up_is_the_primarys(cluster: Cluster, after: str) -> None:
    """It costs a moment at most, and does no harm."""
    assert cluster.read("select 1", after) == (1, "primary")


def test_a_key_can_be_made_so(cluster: Cluster) -> None:
    """Its sessions read from the standby too, unless a request says otherwise."""
    control = Control(cluster.service, cluster.service.key)
    made = control.post("/v1/keys", {"name": "reports", "scopes": ["read"], "consistency": "snapshot"})
    session = Control(cluster.service, made["key"]).post("/v1/session")
    for token in (made["key"], session["token"]):
        with cluster.service.client(token) as client:
            answer = client.post("/v1/query", json={"sql": "select 1"})
            assert answer.headers[SERVED_BY] == "replica"
            serializable = {"Tuplegate-Consistency": "serializable"}
            assert SERVED_BY not in client.post("/v1/query", json={"sql": "select 1"}, headers=serializable).headers


def test_the_client_reads_its_own_writes(cluster: Cluster) -> None:
    """By itself: it sends back the latest position that it has seen."""
    count = "select count(*) from seen"
    with Client(cluster.service.url, cluster.service.key, consistency="snapshot") as client:
        client.query("create table seen (a int)")
        eventually(lambda: bool(client.query(WHERE).column("standby")[0]))
        with cluster.paused():
            client.query("insert into seen values (1)")
            assert client.query(count).value() == 1
            for _ in client.stream("insert into seen values (2)"):
                pass
            assert client.query(count).value() == 2
            client.transaction(["insert into seen values (3)"])
            assert [row["n"] for row in client.stream("select count(*) as n from seen")] == [3]
            assert client.transaction([count], read_only=True).results[0].value() == 3
            with Client(cluster.service.url, cluster.service.key) as other:
                assert other.query(count, consistency="snapshot").value() == 0
            assert client.query("select pg_is_in_recovery()", consistency="serializable").value() is False
    asyncio.run(_asynchronously(cluster, count))


async def _asynchronously(cluster: Cluster, count: str) -> None:
    async with AsyncClient(cluster.service.url, cluster.service.key, consistency="snapshot") as client:
        with cluster.paused():
            await client.query("insert into seen values (4)")
            assert (await client.query(count)).value() == 4


def test_a_standby_whose_replay_any_read_can_stop_is_refused(cluster: Cluster) -> None:
    """And the reason says what to set."""
    change(cluster.standby, "max_standby_streaming_delay", "-1")
    eventually(lambda: "max_standby_streaming_delay is -1" in cluster.said())
    assert cluster.read("select 1") == (1, "primary")
    change(cluster.standby, "max_standby_streaming_delay", "0")
    cluster.wait_until_usable()


def test_a_standby_that_goes_and_comes_back(cluster: Cluster) -> None:
    """Reads go on meanwhile, and health only warns."""
    cluster.standby.stop()
    assert cluster.read("select 1") == (1, "primary")
    eventually(lambda: cluster.health["status"] == "degraded")
    assert "does not answer" in cluster.health["checks"]["replica 1"]
    cluster.standby.start()
    cluster.wait_until_usable()
    assert cluster.read("select 1") == (1, "replica")


def test_a_standby_that_stands_still(cluster: Cluster) -> None:
    """It takes connections and answers nobody. Who waits for it is answered by the primary, long before its time is
    over."""
    assert cluster.read("select 1") == (1, "replica")
    cluster.standby.freeze()
    try:
        assert cluster.read("select 1") == (1, "primary")
        assert cluster.health["status"] == "degraded"
        assert cluster.read("select 1") == (1, "primary")
    finally:
        cluster.standby.thaw()
    cluster.wait_until_usable()
    assert cluster.read("select 1") == (1, "replica")


class Balancer:
    """Leads each connection to the next of several servers."""

    def __init__(self, *servers: ExternalServer) -> None:
        self._ports = cycle(server.port for server in servers)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with self._listener, suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._lead, args=(near, next(self._ports))))
                self._threads[-1].start()

    def _lead(self, near: socket.socket, port: int) -> None:
        with near, suppress(OSError), socket.create_connection(("127.0.0.1", port)) as far:
            back = threading.Thread(target=_pass_on, args=(far, near))
            back.start()
            _pass_on(near, far)
            back.join()

    def close(self) -> None:
        """When nobody uses it any more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def other(cluster: Cluster) -> Iterator[Cluster]:
    """Another service, whose first replica is far behind when it starts. The second is the standby of the tests before,
    and the third leads to both."""
    standby = Standby(cluster.primary)
    pause(standby)
    cluster.write("create table late as select 1 as a")
    balancer = Balancer(cluster.standby, standby)
    ports = (standby.port, cluster.standby.port, balancer.port)
    env = {
        "TUPLEGATE_ENGINE": cluster.primary.url(),
        "TUPLEGATE_REPLICAS": ",".join(f"postgresql://127.0.0.1:{port}" for port in ports),
    }
    data_dir = new_data_dir()
    service = start_service(data_dir, env=env)
    with service.client(cluster.service.key) as client:
        yield Cluster(cluster.primary, standby, service, client)
    assert service.stop() == 0
    balancer.close()
    standby.remove(signal.SIGQUIT)
    remove(data_dir)


def test_a_standby_whose_lag_is_unknown_is_not_read_from(other: Cluster) -> None:
    """What it lacks was there before the service was. It is read from when it has caught up."""
    eventually(lambda: other.said(2) == "ok")
    assert "has not caught up" in other.said(1)
    assert [other.read("select count(*) from late") for _ in range(6)] == [(1, "replica")] * 6
    other.standby.execute("select pg_wal_replay_resume()")
    other.wait_until_usable()


def test_an_address_of_several_servers_is_refused(other: Cluster) -> None:
    """What is known of one would be taken for what another shows."""
    assert "leads to several servers" in other.said(3)


def test_a_read_that_a_standby_fails_is_another_standbys(cluster: Cluster, other: Cluster) -> None:
    """The primary is asked when no other is left. Two reads, one on each standby, wait for a lock that was replayed
    there; then one standby ends."""
    other.write("create table locked as select 1 as a")
    count = "select count(*) from locked"
    eventually(lambda: [other.read(count) for _ in range(2)] == [(1, "replica")] * 2)
    [database] = other.query("select current_database()", row_mode="arrays").json()["rows"][0]
    answers: list[tuple[Any, str]] = []
    readings = [threading.Thread(target=lambda: answers.append(other.read(count))) for _ in range(2)]
    with psycopg.connect(cluster.primary.url(database)) as owner:
        owner.execute("lock table locked")
        other.write("create table after_lock (a int)")  # a commit takes the lock along
        eventually(lambda: [standby.execute(LOCKED) for standby in (cluster.standby, other.standby)] == [[(1,)]] * 2)
        for reading in readings:
            reading.start()
        eventually(lambda: [standby.execute(WAITING) for standby in (cluster.standby, other.standby)] == [[(1,)]] * 2)
        other.standby.stop(signal.SIGQUIT)
    for reading in readings:
        reading.join()
    assert answers == [(1, "replica")] * 2
    other.standby.start()
    other.wait_until_usable()


LOCKED = "select count(*) from pg_locks where mode = 'AccessExclusiveLock' and locktype = 'relation'"
WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and backend_type = 'client backend'"


def follow(standby: Standby, server: ExternalServer) -> None:
    """Stream the log of another server from now on."""
    [(conninfo,)] = standby.execute("show primary_conninfo")
    change(standby, "primary_conninfo", f"{conninfo} port={server.port}".replace("'", "''"))
    eventually(lambda: standby.execute("select sender_port from pg_stat_wal_receiver") == [(server.port,)])


def test_a_standby_that_is_promoted(cluster: Cluster, other: Cluster) -> None:
    """From that moment on it is another server, whose connections are still open. One that follows it is not read from
    either, also when it follows nobody any more."""
    follow(other.standby, cluster.standby)
    eventually(lambda: cluster.read("select 1") == (1, "replica"))
    with psycopg.connect(cluster.standby.url("postgres"), autocommit=True) as server:
        server.execute("select pg_promote()")
        assert cluster.read("select pg_is_in_recovery()") == (False, "primary")
    eventually(lambda: cluster.said() == "it is no standby")
    assert cluster.read("select 1") == (1, "primary")
    eventually(lambda: other.said() == "it follows timeline 2, and the engine is on 1")
    cluster.standby.stop(signal.SIGQUIT)
    eventually(lambda: other.said() == "the timeline that it follows is not known: it streams no log just now")
    assert other.read("select 1") == (1, "primary")
