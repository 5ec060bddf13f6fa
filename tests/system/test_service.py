"""The service as a process: started, stopped, and told nonsense. Kills are in tests/extended/test_service_kills.py."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tests import preloaded
from tests.processes import alive, children, descendants, is_worker, program
from tests.servers import needs_linux, needs_root
from tests.service import Service, Sql, needs_bundled, new_data_dir, remove, start_service
from tests.streams import Stream
from tests.waiting import eventually
from tuplegate.settings import list_settings

COMMAND = [sys.executable, "-m", "tuplegate"]
RUN_S = 60

Start = Callable[..., Service]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts services of the test's own on one data directory; none is left at the end."""
    data_dir = new_data_dir()
    running: list[Service] = []

    def start(*flags: str, initialized: bool = True) -> Service:
        running.append(start_service(data_dir, *flags, initialized=initialized))
        return running[-1]

    yield start
    for service in running:
        family = descendants(service.process.pid) if service.process.poll() is None else []
        service.stop()
        eventually(lambda family=family: not any(map(alive, family)))  # type: ignore[misc]
    remove(data_dir)


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A command that must end by itself."""
    return preloaded.run(arguments, {**os.environ, **(env or {})}, timeout=RUN_S)


def child(service: Service, *, engine: bool) -> int:
    """The engine's first process, or the worker."""
    for found in children(service.process.pid):
        if program(found) == "postgres" if engine else is_worker(found):
            return found
    raise AssertionError("there is none")


def clear(failed: subprocess.CompletedProcess[str], *words: str) -> None:
    """It failed with one message for a person: the words are in it, a traceback is not."""
    assert failed.returncode != 0, failed.stdout
    assert "Traceback" not in failed.stderr, failed.stderr
    assert failed.stderr.startswith(("Error: ", "Usage: ")), failed.stderr
    for word in words:
        assert word in failed.stderr, failed.stderr
    assert failed.stdout == ""


def in_background(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Runs a call in a thread; its result or exception is put in the list."""
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.append(call())
        except Exception as exc:  # noqa: BLE001 - the test looks at it
            outcome.append(exc)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, outcome


def sleeping(service: Service) -> int:
    """How many statements sleep in the engine, as its superuser sees it."""
    with psycopg.connect(service.server_of()) as connection:
        row = connection.execute("select count(*) from pg_stat_activity where wait_event = 'PgSleep'").fetchone()
    assert row is not None
    number: int = row[0]
    return number


def waiting(service: Service) -> int:
    """How many statements wait for a lock."""
    with psycopg.connect(service.server_of()) as connection:
        return len(connection.execute("select from pg_stat_activity where wait_event_type = 'Lock'").fetchall())


# -- starting -----------------------------------------------------------------------------------------------------


def test_first_and_later_starts(start: Start) -> None:
    """The first start prints address, key and a line that works when pasted; later ones print no key, and it works."""
    first = start(initialized=False)
    names = [line.split(": ")[0] for line in first.output]
    assert names == ["data", "alias", "control", "console", "key", "try"]
    assert re.fullmatch(r"svc_k_[0-9A-Za-z]{30,}", first.key)
    curl = first.output[-1].removeprefix("try: ")
    assert curl.startswith("curl ")
    if shutil.which("curl"):
        pasted = subprocess.run(curl, shell=True, capture_output=True, text=True, timeout=RUN_S)
        assert '"success":true' in pasted.stdout, pasted
    with first.client() as client:
        Sql(client)("create table kept as select 7 as n")
    assert first.stop() == 0
    second = start()
    assert [line.split(": ")[0] for line in second.output] == ["data", "alias", "control", "console"]
    with second.client(first.key) as client:
        assert Sql(client).value("select n from kept") == 7
    assert first.key not in second.log


@needs_bundled
def test_a_second_service_on_the_same_data(service: Service) -> None:
    """It ends with a message that names the first one's pid and the directory; the first one goes on."""
    second = run("serve", "--data-dir", str(service.data_dir), "--data-port", "0")
    clear(second, f"pid {service.process.pid}", str(service.data_dir), "--data-dir")
    with service.client() as client:
        assert Sql(client).value("select 1") == 1


def test_a_port_in_use(service: Service) -> None:
    """The message names the port and the flag, and no data directory is made."""
    port = service.url.rsplit(":", 1)[1]
    data_dir = new_data_dir()
    try:
        clear(run("serve", "--data-dir", str(data_dir), "--data-port", port), port, "--data-port", "in use")
        assert not data_dir.exists()
    finally:
        remove(data_dir)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--host", "0.0.0.0"], ["0.0.0.0", "--behind-proxy", "127.0.0.1"]),
        (["--host", "::"], ["::", "--behind-proxy"]),
        (["--host", "example.org"], ["--host", "example.org"]),
        (["--data-port", "70000"], ["data_port", "70000"]),
        (["--data-port", "-1"], ["data_port", "-1"]),
        (["--data-port", "http"], ["data_port", "http"]),
        (["--statement-timeout-ms", "0"], ["statement_timeout_ms", "at least 1"]),
        (["--log-level", "loud"], ["--log-level", "loud"]),
        (["--no-such-flag"], ["--no-such-flag"]),
        (["--config", "/nowhere/tuplegate.toml"], ["/nowhere/tuplegate.toml"]),
        (["--engine-bin", "/nowhere"], ["/nowhere", "--engine-bin"]),
    ],
)
def test_bad_flags(flags: list[str], words: list[str]) -> None:
    """A setting that cannot be used ends the start with its name and what is wrong with it."""
    data_dir = new_data_dir()
    try:
        clear(
            run(
                "serve", "--data-dir", str(data_dir), *(["--data-port", "0"] if "port" not in flags[0] else []), *flags
            ),
            *words,
        )
        assert not (data_dir / "catalog").exists()
    finally:
        remove(data_dir)


def test_bad_settings_from_elsewhere() -> None:
    """A wrong setting of the environment or the file is named together with where it stands."""
    data_dir = new_data_dir()
    config = data_dir.parent / "tuplegate.toml"
    serve = ("serve", "--data-dir", str(data_dir), "--data-port", "0")
    try:
        wrong = run(*serve, env={"TUPLEGATE_QUEUE_MAX": "many"})
        clear(wrong, "TUPLEGATE_QUEUE_MAX", "many")
        config.write_text("queue_maximum = 3\n")
        clear(run(*serve, "--config", str(config)), str(config), "queue_maximum")
        config.write_text('queue_max = "three"\n')
        clear(run(*serve, "--config", str(config)), str(config), "queue_max", "three")
        config.write_text("queue_max = \n")
        clear(run(*serve, "--config", str(config)), str(config), "TOML")
        assert not data_dir.exists()
    finally:
        remove(data_dir)


def test_help_lists_every_setting() -> None:
    """Each row of the table of settings is in the help, with its flag, variable and text."""
    shown = run("serve", "--help")
    assert shown.returncode == 0
    text = " ".join(shown.stdout.split())
    for entry in list_settings():
        assert f"{entry.flag} " in text
        assert entry.variable in text
        assert entry.help in text


@needs_root
@needs_bundled
def test_a_disk_that_is_full() -> None:
    """When there is no room for the data the message says so, and a start after that works."""
    data_dir = new_data_dir()
    data_dir.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", str(data_dir)], capture_output=True
    )
    try:
        if mounted.returncode:
            pytest.skip("this machine lets nobody mount a small disk")
        clear(run("serve", "--data-dir", str(data_dir), "--data-port", "0"), str(data_dir), "No space left on device")
        subprocess.run(["mount", "-o", "remount,size=500m", str(data_dir)], check=True)
        service = start_service(data_dir)
        with service.client() as client:
            assert Sql(client).value("select 1") == 1
        assert service.stop() == 0
    finally:
        subprocess.run(["umount", str(data_dir)], capture_output=True)
        remove(data_dir)


def ordinary() -> dict[str, Any]:
    """How to run a command as an ordinary user: as ourselves, or for root as nobody, if that one can run Python."""
    if os.geteuid() != 0:
        return {}
    options: dict[str, Any] = {"user": "nobody", "group": "nogroup", "extra_groups": []}
    try:
        usable = subprocess.run([*COMMAND, "--version"], capture_output=True, **options).returncode == 0
    except PermissionError:
        usable = False
    if not usable:
        pytest.skip("nobody cannot run this Python or read this checkout")
    return options


def test_a_directory_that_cannot_be_written() -> None:
    """An ordinary user who may not write where the data should be is told so in one line."""
    options = ordinary()
    data_dir = new_data_dir()
    data_dir.parent.chmod(0o555)
    try:
        serve = [*COMMAND, "serve", "--data-dir", str(data_dir), "--data-port", "0"]
        clear(subprocess.run(serve, capture_output=True, text=True, timeout=RUN_S, **options), str(data_dir))
    finally:
        data_dir.parent.chmod(0o755)
        remove(data_dir)


# -- keys from the machine itself ---------------------------------------------------------------------------------


def create_key(service: Service, scope: str) -> str:
    place = ("--data-dir", str(service.data_dir))
    made = run("key", "create", *place, "--name", "test", "--scope", scope, env=service.environment)
    assert made.returncode == 0, made.stderr
    assert re.fullmatch(r"key: svc_k_[0-9A-Za-z]{30,}\n", made.stdout)
    return made.stdout.removeprefix("key: ").strip()


def test_keys_made_on_the_machine(start: Start) -> None:
    """A key can be made while the service runs and while it does not, and each has only the scope it was given."""
    service = start()
    reader = create_key(service, "read")
    assert service.stop() == 0
    writer = create_key(service, "write")
    again = start()
    with again.client(writer) as client:
        Sql(client)("create table made (n int)")
    with again.client(reader) as client:
        assert Sql(client).value("select count(*) from made") == 0
        assert Sql(client).fails("insert into made values (1)")["sqlstate"] in ("25006", "42501")
    assert reader not in again.log
    assert writer not in again.log


def test_settings_are_judged_before_anything_is_made(tmp_path: Path) -> None:
    """So that the first key is not lost with a start that fails."""
    data_dir = tmp_path / "data"
    clear(run("serve", "--data-dir", str(data_dir), "--tiers", "free=abc"), "--tiers", "free", "'abc'")
    assert not data_dir.exists()


def test_a_first_key_that_was_never_shown_is_made_anew(start: Start) -> None:
    """As after a start that was killed before it could say what the key is; nobody has the other one."""
    first = start()
    with psycopg.connect(first.conninfo("tuplegate"), autocommit=True) as catalog:
        assert catalog.execute("select unseen_key from installation").fetchall() == [(None,)]
        catalog.execute("update installation set unseen_key = (select id from api_key)")
    assert first.stop() == 0
    second = start()
    assert second.key not in ("", first.key)
    with second.client() as client, second.client(first.key) as lost:
        assert Sql(client).value("select 7") == 7
        assert lost.post("/v1/query", json={"sql": "select 7"}).status_code == 401
    assert second.stop() == 0
    third = start()
    assert third.key == ""
    with third.client(second.key) as client:
        assert client.get("/tables").status_code == 200


def test_a_key_for_a_wrong_directory(tmp_path: Path) -> None:
    """A directory that is not there or not Tuplegate's is refused by name, and nothing is made in it."""
    for directory in (tmp_path / "missing", tmp_path):
        clear(run("key", "create", "--data-dir", str(directory), "--name", "n", "--scope", "admin"), str(directory))
    assert list(tmp_path.iterdir()) == []


def test_a_key_with_a_wrong_scope(service: Service) -> None:
    """An unknown scope is refused with the ones there are."""
    made = run("key", "create", "--data-dir", str(service.data_dir), "--name", "n", "--scope", "root")
    clear(made, "root", "operator")


# -- stopping -----------------------------------------------------------------------------------------------------


def slow_answer(service: Service, statement: str) -> httpx.Response:
    with service.client() as client:
        return Sql(client).answer(statement)


@needs_linux
def test_a_stop_finishes_what_runs(start: Start) -> None:
    """SIGTERM lets a query and a stream finish, closes idle connections, takes no new one, and leaves no process."""
    service = start()
    idle = socket.create_connection(("127.0.0.1", int(service.url.rsplit(":", 1)[1])), RUN_S)
    family = descendants(service.process.pid)
    with service.client() as client:
        Sql(client)("create table gate ()")
        database = Sql(client).value("select current_database()")
    with psycopg.connect(service.conninfo(database)) as holder:
        holder.execute("lock table public.gate")
        query, answered = in_background(lambda: slow_answer(service, "select count(*) from gate"))
        with Stream(service, "select g, (select count(*) from gate) from generate_series(1, 2) g") as stream:
            eventually(lambda: waiting(service) == 2)
            service.process.send_signal(signal.SIGTERM)
            with idle:
                assert idle.recv(1) == b""
            holder.rollback()
            events = stream.rest()
    assert [event.kind for event in events] == ["columns", "row", "row", "done"]
    query.join(RUN_S)
    assert answered[0].json()["rows"] == [{"count": 0}]
    assert service.process.wait(RUN_S) == 0
    eventually(lambda: not any(map(alive, family)))
    with pytest.raises(httpx.ConnectError):
        httpx.get(service.url, trust_env=False, verify=False)


@needs_linux
def test_a_stop_has_a_limit(start: Start) -> None:
    """What runs longer than the limit is cancelled: 503 for a query, an `error` event that counts rows for a stream."""
    service = start("--stop-timeout-s", "1")
    family = descendants(service.process.pid)
    query, answered = in_background(lambda: slow_answer(service, "select pg_sleep(60)"))
    statement = "select g, case when g > 2 then pg_sleep(60) end from generate_series(1, 5) g"
    with Stream(service, statement) as stream:
        events = stream.events()
        assert next(events).kind == "columns"
        rows = [next(events).data["g"]]
        eventually(lambda: sleeping(service) == 2)
        service.process.send_signal(signal.SIGTERM)
        rest = list(events)
    rows += [event.data["g"] for event in rest if event.kind == "row"]
    assert rest, "the stream was cut off without an end"
    assert rest[-1].kind == "error"
    assert rest[-1].data["error"]["code"] == "shutting_down"
    query.join(RUN_S)
    assert isinstance(answered[0], httpx.Response), answered
    assert (answered[0].status_code, answered[0].json()["error"]["code"]) == (503, "shutting_down")
    assert service.process.wait(RUN_S) == 0
    eventually(lambda: not any(map(alive, family)))
    assert rest[-1].data["rows_sent"] == len(rows)


@needs_linux
def test_a_stop_does_not_wait_for_a_reader(start: Start) -> None:
    """A stream whose reader takes nothing does not hold a stop up beyond its limit."""
    service = start("--stop-timeout-s", "1")
    statement = "select generate_series(1, 100000000), repeat('x', 1000)"
    with Stream(service, statement, receive_buffer=4096) as stream:
        assert stream.answer.status == 200
        started = time.monotonic()
        assert service.stop() == 0
        # Before the reader is given up for its own sake, after 30 s.
        assert time.monotonic() - started < 25


@needs_bundled
def test_a_stop_while_it_starts() -> None:
    """Ctrl-C in the midst of the first start ends it in order, and the next start works."""
    data_dir = new_data_dir()
    try:
        process = subprocess.Popen([*COMMAND, "serve", "--data-dir", str(data_dir), "--data-port", "0"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
        eventually(lambda: bool(list(data_dir.glob("prepared/*"))))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=RUN_S)
        assert process.returncode == 0, said
        assert "Traceback" not in said
        service = start_service(data_dir)
        assert service.stop() == 0
    finally:
        remove(data_dir)


# -- logs ---------------------------------------------------------------------------------------------------------


def test_logs_keep_secrets(start: Start) -> None:
    """Whatever goes wrong, no log line has a key, a statement's literal or a parameter; nor has the engine's log."""
    service = start("--log-level", "debug")
    with service.client() as client:
        sql = Sql(client)
        sql("create table secret_table (id int primary key)")
        for statement in (
            "select 'hidden-literal'",
            "select 'hidden-literal'::int",
            "selec 'hidden-literal'",
            "select pg_sleep(10), 'hidden-literal'",
            "copy (select 'hidden-literal') to stdout",
            "do $$ begin raise log 'hidden-literal'; raise exception 'hidden-literal'; end $$",
        ):
            sql.answer(statement, timeout_ms=200)
            with Stream(service, statement, timeout_ms=200) as stream:
                stream.answer.read()
        sql.answer("select $1::int", ["hidden-literal"])
        client.post("/v1/query", content=b'{"sql": "hidden-literal", "x": "hidden-literal"')
        client.get("/hidden-literal")
        client.post("/v1/query", headers={"Authorization": "Bearer svc_k_hidden-literal"})
    assert service.stop() == 0
    engine_logs = service.data_dir.glob("**/server.log")
    for text in (service.log, *(log.read_text() for log in engine_logs if not service.engine)):
        assert "hidden-literal" not in text
        assert service.key not in text
        assert service.key.removeprefix("svc_k_")[-20:] not in text


@needs_linux
def test_a_key_is_in_no_process_list(service: Service) -> None:
    """Neither the service's nor the engine's command line or environment shows the key."""
    for pid in [service.process.pid, *descendants(service.process.pid)]:
        for name in ("cmdline", "environ"):
            assert service.key.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
