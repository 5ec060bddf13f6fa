"""`GET /v1/databases/{name}/dump`: who gets it, what is in it, and what becomes of it when something is in the way."""

import http.client
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.control import Control, Organization, engine, engine_name, new_organization
from tests.dumps import LARGE, PROGRAMS, backends, begun, dump_of, dumping
from tests.waiting import eventually

DUMP = "/v1/databases/main/dump"
PATIENCE_S = 30.0


def listed(file: Path) -> str:
    done = subprocess.run([PROGRAMS / "pg_restore", "--list", file], capture_output=True, check=True)
    return done.stdout.decode()


@pytest.fixture
def large(control: Control) -> Iterator[str]:
    """The id of a database `large` that takes a while to be dumped."""
    made = control.post("/v1/databases", {"name": "large"})
    control.sql(database="large")(LARGE)
    yield made["id"]
    control.delete("/v1/databases/large")


# -- who ------------------------------------------------------------------------------------------------------------


def test_only_who_manages_the_organization_gets_a_dump(control: Control, other: Organization) -> None:
    """And nobody hears of another's database."""
    for scope in ("read", "write"):
        key = control.post("/v1/keys", {"name": scope, "scopes": [scope]})["key"]
        control.with_token(key).refused(403, "forbidden", "GET", DUMP)
    control.with_token(None).refused(401, "unauthenticated", "GET", DUMP)
    control.refused(404, "not_found", "GET", "/v1/databases/secret-plans/dump")
    id = other.control.get("/v1/databases/secret-plans")["id"]
    control.refused(404, "not_found", "GET", f"/v1/databases/{id}/dump")
    control.refused(400, "malformed_request", "GET", DUMP + "?format=plain")


def test_a_key_of_one_database_dumps_that_one_alone(control: Control, tmp_path: Path) -> None:
    control.post("/v1/databases", {"name": "mine"})
    key = control.post("/v1/keys", {"name": "bound", "scopes": ["admin"], "database": "mine"})["key"]
    bound = control.with_token(key)
    assert "Format: CUSTOM" in listed(dump_of(bound, "mine", tmp_path / "mine"))
    bound.refused(404, "not_found", "GET", DUMP)


def test_the_answer_is_a_file_and_the_audit_knows_who_got_it(control: Control) -> None:
    """Asked for its head alone, nothing is dumped."""
    answer = control.client.get(DUMP)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == 'attachment; filename="main.dump"'
    assert answer.content.startswith(b"PGDMP")
    newest = control.get("/v1/audit", limit=1)["items"][0]
    assert (newest["action"], newest["subject"]) == ("database.dump", "main")
    assert newest["request_id"] == answer.headers["x-request-id"]
    head = control.client.head(DUMP)
    assert (head.status_code, head.content) == (200, b"")
    assert control.get("/v1/audit", limit=1)["items"][0] == newest


def test_a_client_that_could_not_see_a_cut_is_refused(control: Control) -> None:
    """The end of an answer to HTTP/1.0 is the end of its connection, whatever ended it."""
    address = urlsplit(control.service.control_url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port)
    connection._http_vsn, connection._http_vsn_str = 10, "HTTP/1.0"  # type: ignore[attr-defined]
    connection.request("GET", DUMP, headers={"Authorization": f"Bearer {control.token}"})
    answer = connection.getresponse()
    assert answer.status == 400
    assert b"HTTP/1.1" in answer.read()
    connection.close()


# -- what -----------------------------------------------------------------------------------------------------------


def test_nothing_of_the_services_own_is_in_it(control: Control, tmp_path: Path) -> None:
    """No schema, no right, no scratch schema of a benchmark; but the tenant's own of such a name."""
    sql = control.sql()
    sql("create schema tuplegate_scratch_mine")
    sql("create table tuplegate_scratch_mine.t (a int)")
    with httpx.stream(
        "GET",
        f"{control.service.url}/bench?workload=point_read&seconds=2",
        headers={"Authorization": f"Bearer {control.token}"},
        timeout=60,
    ):
        said = listed(dump_of(control, "main", tmp_path / "x"))
    assert "tuplegate_scratch_mine t" in said
    assert "ACL" not in said
    assert " tuplegate " not in said
    assert "secret" not in said
    names = [line for line in said.splitlines() if "tuplegate_scratch_" in line and "_mine" not in line]
    assert names == []


def test_hostile_names_harm_nobody(control: Control, tmp_path: Path) -> None:
    """Whatever tables, schemas, types, functions and comments are called."""
    sql = control.sql()
    names = [
        "a\nb",
        "x'; drop table y; --",
        '"',
        "$(touch /tmp/x)",
        "\\! touch /tmp/x",
        "--format=plain",
        "é😀" * 8,
        "%s",
    ]
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    for name in quoted:
        sql(f"create schema {name}")
        sql(f"create table {name}.{name} ({name} int)")
        sql(f"create function {name}.{name}() returns int language sql as 'select 1'")
        sql(f"comment on table {name}.{name} is 'x\n\\! touch y'")
    file = dump_of(control, "main", tmp_path / "x")
    assert listed(file).count(" FUNCTION ") == len(names)
    for name in quoted:
        sql(f"drop schema {name} cascade")


def test_the_role_of_a_dump_is_nobodys(control: Control, tmp_path: Path, large: str) -> None:
    """It is there while the dump is, and no statement of the tenant's can become it, or read what it may."""
    service = control.service
    role = engine_name(service, large) + "_d"
    sql = control.sql(database="large")
    with begun(control, "large"):
        assert backends(service, large) == [role]
        assert sql.fails(f"set role {role}")["sqlstate"] == "42501"
        assert sql.fails("select * from pg_db_role_setting")["sqlstate"] == "42501"
        assert sql.fails(f"drop role {role}")["sqlstate"] == "42501"
        with engine(service, engine_name(service, large)) as outside:
            rights = outside.execute(
                "select rolsuper or rolcreaterole or rolcreatedb or rolbypassrls or rolreplication from pg_roles"
                " where rolname = %s",
                [role],
            ).fetchone()
            isolation = outside.execute(
                "select count(*) from pg_locks where mode = 'SIReadLock' and pid in"
                " (select pid from pg_stat_activity where usename = %s)",
                [role],
            ).fetchone()
        assert rights == (False,)
        assert isolation == (0,), "it takes no part in the check of SERIALIZABLE"
    with engine(service, engine_name(service, large)) as outside:
        dumps = "select from pg_roles where rolname like 'tg%%_d'"
        eventually(lambda: not dumping(service) and not outside.execute(dumps).fetchall(), PATIENCE_S)


# -- what is in the way ---------------------------------------------------------------------------------------------


def test_a_table_that_stays_locked_ends_the_dump_with_a_word(control: Control) -> None:
    """After a bounded wait, and it can be tried again."""
    service = control.service
    control.sql()("create table locked (a int)")
    name = engine_name(service, control.get("/v1/databases/main")["id"])
    with engine(service, name) as holder, holder.transaction():
        holder.execute("lock table locked")
        error = control.refused(503, "busy", "GET", DUMP)
    assert "locked" in error["message"]
    assert error["retryable"]
    assert control.client.get(DUMP).status_code == 200


def test_what_cannot_be_dumped_is_said_before_the_first_byte(control: Control) -> None:
    """A table whose owner is subject to its policies: rows could be missing without anybody knowing."""
    sql = control.sql()
    sql("create table forced (a int)")
    sql("alter table forced enable row level security")
    sql("alter table forced force row level security")
    error = control.refused(409, "dump_failed", "GET", DUMP)
    assert "forced" in error["message"]
    assert "FORCE ROW LEVEL SECURITY" in error["hint"]
    sql("drop table forced")
    assert control.client.get(DUMP).status_code == 200


def test_one_dump_of_a_database_runs_at_a_time(control: Control, large: str) -> None:
    with begun(control, "large"):
        control.refused(409, "already_running", "GET", "/v1/databases/large/dump")

    def begins_again() -> bool:
        with control.client.stream("GET", "/v1/databases/large/dump") as again:
            return again.status_code == 200

    eventually(begins_again, PATIENCE_S)


def test_an_organization_has_half_of_the_places_for_dumps(control: Control, large: str) -> None:
    """However slowly it takes its dumps, another gets its own. There are two places as a rule."""
    second, third = new_organization(control.service), new_organization(control.service)
    second.control.sql()(LARGE)
    with begun(control, "large"):
        error = control.refused(503, "busy", "GET", DUMP)
        assert "of this organization" in error["message"]
        with begun(second.control, "main"):
            assert "2 dumps" in third.control.refused(503, "busy", "GET", DUMP)["message"]
    eventually(lambda: third.control.client.get(DUMP).status_code == 200, PATIENCE_S)


def test_a_client_that_leaves_takes_its_dump_with_it(control: Control, large: str) -> None:
    """The program and its server process are gone."""
    service = control.service
    with begun(control, "large"):
        assert len(dumping(service)) == 1
        assert len(backends(service, large)) == 1
    eventually(lambda: not dumping(service) and not backends(service, large), PATIENCE_S)


def test_a_slow_reader_slows_the_engine_down(control: Control, large: str) -> None:
    """What was not read is not kept in the worker's memory: the program waits, and the file is whole in the end."""
    service = control.service
    with begun(control, "large") as rest:
        [program] = dumping(service)
        eventually(lambda: _is_stuck(program), PATIENCE_S)
        assert sum(map(len, rest)) > 10_000_000


def test_a_dump_that_will_not_end_goes_with_a_reader_that_took_its_time(control: Control, large: str) -> None:
    """The service waits for the reader when that leaves, and for the program when it is told to end."""
    service = control.service
    with begun(control, "large"):
        [program] = dumping(service)
        eventually(lambda: _is_stuck(program), PATIENCE_S)
        os.kill(program, signal.SIGSTOP)
    eventually(lambda: not dumping(service) and not backends(service, large), PATIENCE_S)


def _is_stuck(pid: int) -> bool:
    """It writes to a pipe that nobody reads."""
    return b"pipe" in Path(f"/proc/{pid}/wchan").read_bytes()


def test_a_database_that_is_deleted_cuts_its_dump_off(control: Control) -> None:
    """An answer that has begun cannot become an error: it ends without the end that it should have."""
    control.post("/v1/databases", {"name": "doomed"})
    control.sql(database="doomed")(LARGE)
    with begun(control, "doomed") as rest:
        control.delete("/v1/databases/doomed")
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"):
            for _ in rest:
                pass
    assert "a dump was cut off" in control.service.log
