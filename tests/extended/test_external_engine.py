"""An engine of the user's own, and two service processes on it."""

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests.external import OWNER, PASSWORD, ExternalServer
from tests.http.test_serializable_pool import SLOTS, fill, shut
from tests.servers import needs_linux
from tests.service import Service, Sql, new_data_dir, remove, remove_installation, start_service
from tests.tunnel import Tunnel
from tests.waiting import eventually
from tests.workers import workers

ID = "Tuplegate-Transaction-Id"


@pytest.fixture(scope="module")
def engine() -> Iterator[ExternalServer]:
    server = ExternalServer(max_connections="200", max_prepared_transactions="200")
    yield server
    server.remove()


@pytest.fixture(scope="module")
def pair(engine: ExternalServer) -> Iterator[list[Service]]:
    """Two services on one engine, both started for the first time and at the same time. The key is for both."""
    env = {"TUPLEGATE_ENGINE": engine.url("pair"), "TUPLEGATE_ENGINE_CONNECTIONS_MAX": "60"}
    with ThreadPoolExecutor(2) as pool:
        started = [pool.submit(start_service, new_data_dir(), "--workers", "2", env=env) for _ in range(2)]
        services = [each.result() for each in started]
    keys = [service.key for service in services if service.key]
    assert len(keys) == 1, "one of them makes the installation, the other joins it"
    for service in services:
        service.key = keys[0]
    yield services
    for service in services:
        if service.process.poll() is None:
            assert service.stop() == 0
        remove(service.data_dir)
    remove_installation(engine.url("pair"))


@pytest.fixture
def t(pair: list[Service]) -> str:
    name = f"t_{uuid.uuid4().hex[:12]}"
    with pair[0].client() as client:
        Sql(client)(f"create table {name} (a int primary key, b text)")
    return name


def run_serve(url: str, *flags: str, as_flag: bool = False) -> subprocess.CompletedProcess[str]:
    """Starts a service that is expected to give up."""
    command = [sys.executable, "-m", "tuplegate", "serve", "--data-dir", str(new_data_dir()), *flags]
    command += ["--engine", url] if as_flag else []
    env = {**os.environ, **({} if as_flag else {"TUPLEGATE_ENGINE": url})}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    remove(Path(command[5]))
    return done


def waiting(engine: ExternalServer, mark: str) -> bool:
    query = f"select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%{mark}%'"
    return bool(engine.execute(query))


@contextmanager
def gate(engine: ExternalServer, sql: Sql, t: str) -> Iterator[None]:
    """A table that holds up whoever reads it meanwhile."""
    sql(f"create table gate_{t} ()")
    with shut(engine.url(str(sql.value("select current_database()"))), f"gate_{t}"):
        yield


# -- clients of PostgreSQL ------------------------------------------------------------------------------------------


def test_settings_that_the_engine_refuses_are_nobody_elses_matter(engine: ExternalServer, pair: list[Service]) -> None:
    """The client has the engine's words. Its role keeps its password: a refused login alone says nothing of that."""
    passwords = "select rolname, rolpassword from pg_authid where rolname like 'tg%' order by 1"
    with Tunnel(pair[0]) as tunnel:
        tunnel.connect().close()
        before = engine.execute(passwords)
        assert before
        for value in ("garbage", "nonsense"):
            with pytest.raises(psycopg.OperationalError, match=f'invalid value for parameter "DateStyle": "{value}"'):
                tunnel.connect(options=f"-c DateStyle={value}")
        tunnel.connect().close()
    assert engine.execute(passwords) == before


# -- one service ----------------------------------------------------------------------------------------------------


def test_no_data_directory_is_made(pair: list[Service]) -> None:
    assert not any(service.data_dir.exists() for service in pair)


def test_the_server_stays_its_owners(engine: ExternalServer, pair: list[Service]) -> None:
    """Databases that are not the service's keep the rights that they had."""
    connect = "select has_database_privilege('public', 'postgres', 'connect')"
    engine.execute("do $$ begin create role public_like; exception when duplicate_object then null; end $$")
    assert engine.execute(connect.replace("'public'", "'public_like'")) == [(True,)]


def test_the_password_is_nowhere(pair: list[Service]) -> None:
    """Neither in the logs, nor in a list of processes."""
    for service in pair:
        assert PASSWORD not in service.log
        assert "secret" not in service.log
        for pid in (service.process.pid, *workers(service)):
            assert b"secret" not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_password_in_a_flag_is_warned_of(engine: ExternalServer) -> None:
    done = run_serve(engine.url("pair", password="wrong one"), as_flag=True)
    assert "visible in the list of processes" in done.stderr
    assert "wrong" not in done.stderr.replace("Warning", "")


def test_a_server_that_writes_times_in_its_own_way() -> None:
    """Neither its time zone nor its style of dates makes it another server."""
    server = ExternalServer(timezone="Asia/Tokyo", datestyle="German, DMY")
    running = start_service(new_data_dir(), env={"TUPLEGATE_ENGINE": server.url()})
    try:
        with running.client() as client:
            assert Sql(client).value("select now()::text ~ '^2'") is True
    finally:
        running.stop()
        remove(running.data_dir)
        server.remove()


def test_a_wrong_password(engine: ExternalServer) -> None:
    done = run_serve(engine.url("pair", password="wrong one"))
    assert done.returncode == 1
    assert f"the engine at 127.0.0.1:{engine.port} cannot be prepared" in done.stderr
    assert "password authentication failed" in done.stderr
    assert "wrong one" not in done.stderr


@pytest.mark.parametrize(
    "url", ["nonsense with a secret", "mysql://a:secret@b/c", "postgresql://u:secret@h/d?options=-csecret%3D1"]
)
def test_a_bad_url(url: str) -> None:
    done = run_serve(url)
    assert done.returncode == 1
    assert "--engine cannot be used" in done.stderr
    assert "secret" not in done.stderr


def test_nobody_there() -> None:
    done = run_serve("postgresql://u:secret@127.0.0.1:1/d")
    assert done.returncode == 1
    assert "the engine at 127.0.0.1:1 cannot be" in done.stderr
    assert "secret" not in done.stderr


def test_missing_rights_are_named(engine: ExternalServer) -> None:
    engine.execute("create role poor login password 'poor'")
    done = run_serve(engine.url("postgres", user="poor", password="poor"))
    assert done.returncode == 1
    assert "the role poor is no superuser" in done.stderr
    assert "ALTER ROLE poor CREATEDB CREATEROLE" in done.stderr


def test_rules_of_access_that_keep_tenants_out(engine: ExternalServer) -> None:
    """Without a line for tenants' roles in pg_hba.conf the service says so, instead of failing later."""
    rules = engine.pgdata / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"host all {OWNER} 127.0.0.1/32 scram-sha-256\n")
    engine.execute("select pg_reload_conf()")
    eventually(lambda: engine.execute("select count(*) from pg_hba_file_rules") == [(1,)])
    try:
        done = run_serve(engine.url("kept_out"))
        assert done.returncode == 1
        assert "does not let the roles of the service and of tenants' databases log in" in done.stderr
        assert "pg_hba.conf" in done.stderr
    finally:
        rules.write_text(before)
        engine.execute("select pg_reload_conf()")
        eventually(lambda: engine.execute("select count(*) from pg_hba_file_rules") != [(1,)])
        remove_installation(engine.url("kept_out"))


@pytest.mark.parametrize("level", ["log", "warning", "exception"])
def test_tenants_write_nothing_into_the_log_of_the_server(
    engine: ExternalServer, pair: list[Service], level: str
) -> None:
    """Neither what they raise, nor their statements: also in a database that is a copy, or that was reset."""
    headers = {"Authorization": f"Bearer {pair[0].key}"}
    with httpx.Client(base_url=pair[0].control_url, headers=headers, timeout=60, trust_env=False) as control:
        made = control.post("/v1/databases", json={"name": f"copy-{level}", "clone_of": "main"})
        assert made.status_code == 201, made.text
    with pair[0].client() as client:
        for name, reset in (("main", False), (f"copy-{level}", False), (f"copy-{level}", True)):
            client.headers["Tuplegate-Database"] = name
            if reset:
                assert client.post("/admin/reset").status_code == 200
            sql = Sql(client)
            sql.answer(f"do $$ begin for i in 1..1000 loop raise {level} 'words of a tenant'; end loop; end $$")
            sql.fails("select 'a literal of a tenant'::int")
    assert "of a tenant" not in engine.log


def test_temporary_files_of_a_tenant_are_bounded(engine: ExternalServer) -> None:
    """By the service's setting, and by another value after a restart; the server itself has no bound."""
    assert engine.execute("show temp_file_limit") == [("-1",)]
    url = engine.url("temporary")
    data_dir = new_data_dir()
    sort = "select count(*) from (select repeat(i::text, 100) as a from generate_series(1, 200000) i order by a) x"
    key = ""
    try:
        for limit, is_refused in ((16, True), (1024, False)):
            service = start_service(data_dir, "--engine-temp-mb", str(limit), env={"TUPLEGATE_ENGINE": url})
            key = service.key or key
            with service.client(key) as client:
                if is_refused:
                    assert Sql(client).fails(sort)["sqlstate"] == "53400"
                    assert Sql(client).fails("set temp_file_limit = -1")["sqlstate"] == "42501"
                else:
                    assert Sql(client).value(sort) == 200_000
            assert service.stop() == 0
    finally:
        remove(data_dir)
        remove_installation(url)


def test_tenants_cannot_log_in_by_themselves(engine: ExternalServer, pair: list[Service]) -> None:
    """Their roles have passwords that nobody is told."""
    with pair[0].client() as client:
        database, role = Sql(client).rows("select current_database() as d, current_user::text as u")[0].values()
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(engine.url(str(database), user=str(role), password="guess"))


def test_an_engine_that_cannot_prepare() -> None:
    """Transactions are committed in one phase, and say so; outcomes are known all the same."""
    server = ExternalServer(max_prepared_transactions="0")
    data_dir = new_data_dir()
    try:
        service = start_service(data_dir, env={"TUPLEGATE_ENGINE": server.url()})
        assert "max_prepared_transactions is 0" in service.log
        with service.client() as client:
            Sql(client)("create table t (a int)")
            id = f"txn_{uuid.uuid4().hex}"
            for headers in ({}, {ID: id}):
                body = client.post(
                    "/v1/transaction", json={"statements": ["insert into t values (1)"]}, headers=headers
                )
                assert (body.json()["success"], body.json()["commit"]) == (True, "one_phase"), body.text
                state = client.get(f"/v1/transaction/{body.json()['transaction_id']}").json()["state"]
                assert state == "committed"
            assert Sql(client).value("select count(*) from t") == 2
        assert service.stop() == 0
    finally:
        server.remove()
        remove(data_dir)


def test_an_engine_that_goes_and_comes_back() -> None:
    """While it is gone requests get 503; when it is back they are served, without a restart of the service."""
    server = ExternalServer()
    data_dir = new_data_dir()
    try:
        service = start_service(data_dir, env={"TUPLEGATE_ENGINE": server.url()})
        with service.client() as client:
            Sql(client)("create table t (a int)")
            server.stop()
            assert Sql(client).answer("select 1").status_code == 503
            server.start()
            write = {"statements": ["insert into t values (1)"]}
            eventually(lambda: client.post("/v1/transaction", json=write).status_code == 200)
            assert Sql(client).value("select count(*) from t") == 1
        assert service.stop() == 0
    finally:
        server.remove()
        remove(data_dir)


# -- two services ---------------------------------------------------------------------------------------------------


def test_both_serve_the_same_data(pair: list[Service], t: str) -> None:
    with pair[0].client() as one, pair[1].client() as two:
        Sql(one)(f"insert into {t} values (1, 'x')")
        assert Sql(two).rows(f"select * from {t}") == [{"a": 1, "b": "x"}]


def test_a_key_made_for_one_works_in_both(pair: list[Service]) -> None:
    command = [sys.executable, "-m", "tuplegate", "key", "create", "--name", "second", "--scope", "write"]
    made = subprocess.run(command, capture_output=True, text=True, check=True, env=pair[0].environment)
    key = made.stdout.removeprefix("key: ").strip()
    for service in pair:
        with service.client(key) as client:
            assert Sql(client).value("select 1") == 1


def test_a_key_revoked_in_one_is_refused_by_both(pair: list[Service]) -> None:
    headers = {"Authorization": f"Bearer {pair[0].key}"}
    with httpx.Client(
        base_url=pair[0].control_url, headers=headers, timeout=60, trust_env=False, verify=False
    ) as control:
        made = control.post("/v1/keys", json={"name": "gone soon", "scopes": ["read"]}).json()
        with pair[1].client(made["key"]) as client:
            assert Sql(client).value("select 1") == 1
            assert control.delete(f"/v1/keys/{made['id']}").status_code == 200
            eventually(lambda: Sql(client).answer("select 1").status_code == 401)


def test_outcome_and_abort_through_the_other(engine: ExternalServer, pair: list[Service], t: str) -> None:
    id = f"txn_{uuid.uuid4().hex}"
    statements = [f"insert into {t} values (1, 'x')", f"select count(*) from gate_{t} /* {id} */"]
    with pair[0].client() as one, pair[1].client() as two, ThreadPoolExecutor(1) as pool:
        with gate(engine, Sql(two), t):
            answer = pool.submit(one.post, "/v1/transaction", json={"statements": statements}, headers={ID: id})
            eventually(lambda: waiting(engine, id))
            assert two.get(f"/v1/transaction/{id}").json()["state"] == "in_progress"
            assert two.post(f"/v1/transaction/{id}/abort").json()["state"] == "aborted"
        assert answer.result().json()["error"]["code"] == "transaction_aborted"
        assert Sql(two).value(f"select count(*) from {t}") == 0


def test_idempotency_across_both(engine: ExternalServer, pair: list[Service], t: str) -> None:
    key = uuid.uuid4().hex
    body = {"statements": [f"insert into {t} values (1, 'x')", f"select count(*) from gate_{t} /* {key} */"]}
    with pair[0].client() as one, pair[1].client() as two, ThreadPoolExecutor(1) as pool:
        for client in (one, two):
            client.headers["Idempotency-Key"] = key
        with pair[0].client() as plain, gate(engine, Sql(plain), t):
            answer = pool.submit(one.post, "/v1/transaction", json=body)
            eventually(lambda: waiting(engine, key))
            assert two.post("/v1/transaction", json=body).json()["error"]["code"] == "idempotency_in_progress"
        first = answer.result()
        again = two.post("/v1/transaction", json=body)
        assert (again.json(), again.headers["Idempotency-Replayed"]) == (first.json(), "true")


def test_write_skew_behind_the_load_of_the_other(engine: ExternalServer, pair: list[Service], t: str) -> None:
    """A transaction of one service is run again when the other has begun more than the engine remembers."""
    one, two = pair
    [(slots,)] = engine.execute(SLOTS)
    total = f"select sum(b::int) from {t}"
    statements = [total, f"select count(*) from gate_{t}", f"update {t} set b = '0' where a = 2"]
    with one.client() as first, two.client() as second, ThreadPoolExecutor(1) as pool:
        Sql(second)(f"insert into {t} values (1, '1'), (2, '1')")
        Sql(second)(f"create table gate_{t} ()")
        with shut(engine.url(str(Sql(second).value("select current_database()"))), f"gate_{t}"):
            answer = pool.submit(first.post, "/v1/transaction", json={"statements": statements})
            eventually(lambda: waiting(engine, f"gate_{t}"))
            Sql(second)(f"update {t} set b = '0' where a = 1 and ({total}) = 2")
            fill(two, int(str(slots)) + 100)
        body = answer.result().json()
    assert body["success"], body
    assert body["attempts"] > 1
    assert body["results"][0]["rows"] == [{"sum": 1}]


def test_a_long_transaction_on_a_quiet_engine(pair: list[Service], t: str) -> None:
    """Time alone ends nothing: only many others do."""
    statements = [f"select count(*) from {t}", "select pg_sleep(3)", f"insert into {t} values (1, 'x')"]
    with pair[0].client() as client:
        body = client.post("/v1/transaction", json={"statements": statements}).json()
    assert (body["success"], body["attempts"]) == (True, 1), body


@needs_linux
def test_a_service_killed_between_prepare_and_commit(engine: ExternalServer, pair: list[Service], t: str) -> None:
    """The other service commits what it had prepared, and goes on writing."""
    one, two = pair
    stopping = threading.Event()

    def work(first: int) -> None:
        number = first
        while not stopping.is_set():
            try:
                with one.client() as client:
                    client.post("/v1/transaction", json={"statements": [f"insert into {t} values ({number}, 'x')"]})
            except httpx.TransportError:
                return  # the service was killed
            number += 4

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    gids: list[Any] = []

    def caught() -> bool:
        pids = workers(one)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        gids[:] = [gid for (gid,) in engine.execute("select gid from pg_prepared_xacts")]
        if gids:
            one.kill()
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            return True
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        return False

    try:
        eventually(caught)
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
    eventually(lambda: engine.execute("select gid from pg_prepared_xacts") == [])
    assert any(str(gid) in two.log for gid in gids)
    with two.client() as client:
        body = client.post("/v1/transaction", json={"statements": [f"insert into {t} values (-1, 'y')"]}).json()
        assert body["success"], body
