"""An engine of the user's own without a superuser, as managed services give one: what works, and what the walls hold.

The server is an ordinary PostgreSQL, with roles that have what such services give to their owners.
"""

import asyncio
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.control import Control, engine_name
from tests.dumps import dump_of
from tests.extended.test_external_engine import run_serve
from tests.external import ExternalServer
from tests.service import Service, make_key, needs_bundled, running_service
from tests.tenants import Tenant, tenant_of
from tests.waiting import eventually
from tuplegate.engine.libpq.connections.logins import derive_password, read_url
from tuplegate.engine.port import EngineRefused
from tuplegate.engine.postgres.preparation.foundation import NameTaken
from tuplegate.engine.postgres.preparation.installing import PostgresLogin, PostgresOwner
from tuplegate.engine.postgres.preparation.weaknesses import SHARED, TRIED
from tuplegate.installation import Installed, install

pytestmark = needs_bundled

DENIED = "42501"
ID = "Tuplegate-Transaction-Id"
ROLES = (
    # Nothing but what is needed.
    "create role managed login createdb createrole password 'managed'",
    # As the owner of a managed server often is: a member of roles that it can give on, and allowed some settings.
    "create role privileged login createdb createrole password 'privileged'",
    "grant pg_monitor, pg_signal_backend, pg_read_all_stats, pg_read_all_settings to privileged with admin option",
    "grant set on parameter lc_messages, log_min_messages, log_min_error_statement, temp_file_limit to privileged"
    " with grant option",
    # Too little.
    "create role makes_databases login createdb password 'makes_databases'",
    "create role makes_roles login createrole password 'makes_roles'",
)
NAMES = {weakness.name for weakness in (*SHARED, *TRIED)}


@pytest.fixture(scope="module")
def server() -> Iterator[ExternalServer]:
    running = ExternalServer(max_connections="150")
    for statement in ROLES:
        running.execute(statement)
    yield running
    running.remove()


def url(server: ExternalServer, database: str, role: str = "managed") -> str:
    return server.url(database, user=role, password=role)


def started(server: ExternalServer, database: str, *flags: str) -> Iterator[Service]:
    env = {"TUPLEGATE_ENGINE": url(server, database), "TUPLEGATE_ACCEPT_WEAKER_WALLS": "false"}
    with running_service(*flags, env=env) as running:
        yield running


@pytest.fixture(scope="module")
def alone(server: ExternalServer) -> Iterator[Service]:
    """With one organization."""
    yield from started(server, "alone", "--tiers", "free=200, small=/16MB, unlimited")


@pytest.fixture(scope="module")
def several(server: ExternalServer) -> Iterator[Service]:
    """With several organizations, which the operator has accepted."""
    yield from started(server, "several", "--accept-weaker-walls")


@pytest.fixture(scope="module")
def one(several: Service) -> Iterator[Tenant]:
    """Who attacks."""
    with tenant_of(several, "tenant-one") as tenant:
        yield tenant


@pytest.fixture(scope="module")
def two(several: Service) -> Iterator[Tenant]:
    """Who must not notice."""
    with tenant_of(several, "tenant-two") as tenant:
        tenant.write("create table kept as select 'a secret of two' as a")
        yield tenant


@pytest.fixture
def control(alone: Service) -> Control:
    return Control(alone, alone.key)


def login(server: ExternalServer, metadata: str, database: str) -> str:
    """That of the service for a tenant's writing role."""
    role = f"{database}_w"
    return server.url(database, user=role, password=password(server, metadata, role))


def password(server: ExternalServer, metadata: str, role: str) -> str:
    [(secret,)] = server.execute("select secret from installation", metadata)
    assert isinstance(secret, bytes)
    return derive_password(secret, role)


def open_ones(server: ExternalServer) -> set[str]:
    """What is open to tenants where the role has nothing but what is needed."""
    [(major,)] = server.execute("select current_setting('server_version_num')::int / 10000")
    # Before 16 whoever makes roles can give on any role of the server's own, and large objects know no read-only.
    return NAMES - {"read_keys_write_large_objects" if int(str(major)) >= 16 else "standbys_unseen"}


def always_open(server: ExternalServer) -> set[str]:
    """What not even a superuser closes."""
    [(major,)] = server.execute("select current_setting('server_version_num')::int / 10000")
    return {weakness.name for weakness in SHARED} | (set() if int(str(major)) >= 16 else {"settings_unseen"})


# -- one organization ------------------------------------------------------------------------------------------------


def test_what_is_open_is_named_at_the_start_and_by_the_matrix(alone: Service, server: ExternalServer) -> None:
    with alone.client() as client:
        answer = client.get("/capabilities").json()
    assert all(probe["supported"] for probe in answer["probes"] if probe["group"] in ("service", "isolation"))
    found = {weakness["name"]: weakness for weakness in answer["weaknesses"]}
    expected = open_ones(server)
    assert set(found) == expected
    for name in expected:
        assert found[name]["meaning"]
        assert found[name]["remedy"]
        assert name in alone.log


def test_transactions_keys_and_outcomes(alone: Service, control: Control) -> None:
    sql = control.sql()
    sql("create table t (a int primary key)")
    with alone.client() as client:
        id, key = f"txn_{uuid.uuid4().hex}", uuid.uuid4().hex
        body = {"statements": ["insert into t values (1)", "select count(*) from t"]}
        done = client.post("/v1/transaction", json=body, headers={ID: id, "Idempotency-Key": key})
        assert (done.json()["success"], done.json()["commit"]) == (True, "two_phase"), done.text
        again = client.post("/v1/transaction", json=body, headers={ID: id, "Idempotency-Key": key})
        assert (again.json(), again.headers["Idempotency-Replayed"]) == (done.json(), "true")
        assert client.get(f"/v1/transaction/{id}").json()["state"] == "committed"
    read = control.sql(make_key(alone, "read"))
    assert read.value("select count(*) from t") == 1
    assert read.fails("insert into t values (2)")["sqlstate"] == "25006"
    assert sql.fails("insert into t values (1)")["sqlstate"] == "23505"
    assert sql.answer("select pg_sleep(60)", timeout_ms=200).json()["error"]["code"] == "timeout"


def test_what_was_left_prepared_is_committed(alone: Service, control: Control, server: ExternalServer) -> None:
    """As a service leaves it that is killed between the two phases."""
    sql = control.sql()
    sql("create table left_prepared (a int)")
    database = str(sql.value("select current_database()"))
    [(id,)] = server.execute("select id from installation", "alone")
    with psycopg.connect(login(server, "alone", database)) as tenant:
        tenant.execute("insert into left_prepared values (1)")
        tenant.execute(f"prepare transaction 'tuplegate_{id}_1_left'".encode())
    eventually(lambda: sql.value("select count(*) from left_prepared") == 1)
    assert "a transaction in doubt was committed" in alone.log


def test_databases_are_copied_reset_dumped_and_deleted(alone: Service, control: Control, tmp_path: Any) -> None:
    made = control.post("/v1/databases", {"name": "made"})
    sql = control.sql(database="made")
    sql("create table t as select 1 as a")
    sql("create function f() returns int language plpgsql as 'begin execute ''select 1''; return 1; end'")
    control.post("/v1/databases", {"name": "copy", "clone_of": "made"})
    copy = control.sql(database="copy")
    assert copy.value("select a + f() from t") == 2
    copy("insert into t values (2)")
    assert dump_of(control, "copy", tmp_path / "dump").stat().st_size > 0
    with alone.client() as client:
        client.headers["Tuplegate-Database"] = "copy"
        assert client.post("/admin/reset").status_code == 200
    assert copy.value("select to_regclass('t') is null") is True
    name = engine_name(alone, made["id"])
    held = threading.Thread(target=lambda: sql.answer("select pg_sleep(60)"))
    held.start()
    with psycopg.connect(alone.conninfo("tuplegate"), autocommit=True) as engine:
        asleep = "select 1 from pg_stat_activity where datname = %s and wait_event = 'PgSleep'"
        eventually(lambda: bool(engine.execute(asleep, [name]).fetchall()))
        assert control.delete("/v1/databases/made")["state"] == "gone"
        held.join()
        assert engine.execute("select 1 from pg_roles where rolname ~ %s", [f"^{name}_"]).fetchall() == []
    control.delete("/v1/databases/copy")


def test_a_setting_of_one_request_is_not_there_in_the_next(control: Control) -> None:
    """Though the engine does not say how much memory its settings take."""
    sql = control.sql()
    for making in ("select set_config('a.b', 'left', false)", "set a.b = 'left'", "select setseed(0.5)"):
        sql(making)
        assert sql.value("select current_setting('a.b', true)") is None
    sql("create function leaves() returns text language sql as 'select set_config(''a.b'', ''left'', false)'")
    assert sql.value("select leaves()") == "left"
    assert sql.value("select current_setting('a.b', true)") is None
    sql("drop function leaves")


def test_plain_requests_keep_their_connections(control: Control) -> None:
    """Also those that fail: whatever their text is, nothing of it can be left."""
    control.post("/v1/databases", {"name": "plain"})
    sql = control.sql(database="plain")
    sql("create table t (a int primary key)")
    sql("insert into t values (1)")
    processes = set()
    for _ in range(16):
        assert sql.fails("insert into t values (1)")["sqlstate"] == "23505"
        processes.add(sql.value("select pg_backend_pid()"))
    assert len(processes) < 8, "one is inspected while another is used"
    control.delete("/v1/databases/plain")


def test_a_database_is_bounded(control: Control) -> None:
    [organization] = control.get("/v1/organizations")["items"]
    path = f"/v1/organizations/{organization['id']}"
    sql = control.sql()
    sql("create table filled (a text)")
    control.patch(path, {"tier": "small"})
    grow = "insert into filled select string_agg(md5(random()::text), '') from generate_series(1, 30000) i"
    eventually(lambda: not (answer := sql.answer(grow).json())["success"] and answer["error"]["sqlstate"] == "53100")
    control.patch(path, {"tier": "unlimited"})
    sql("drop table filled")


def test_a_second_organization_has_to_be_accepted(control: Control) -> None:
    error = control.refused(409, "weaker_walls", "POST", "/v1/organizations", {"name": "second"})
    assert "activity_of_others" in error["message"]
    assert "locks_unbounded" in error["message"]
    assert "settings_unseen" not in error["message"], "that concerns nobody else"
    assert "--accept-weaker-walls" in error["hint"]
    assert len(control.get("/v1/organizations")["items"]) == 1


# -- several ---------------------------------------------------------------------------------------------------------


def test_a_start_with_several_organizations_has_to_be_accepted(server: ExternalServer, one: Tenant) -> None:
    done = run_serve(url(server, "several"))
    assert done.returncode == 1
    assert "there are several organizations" in done.stderr
    assert "activity_of_others" in done.stderr
    assert "--accept-weaker-walls" in done.stderr


def database_of(tenant: Tenant) -> str:
    return str(tenant.write.value("select current_database()"))


@pytest.mark.parametrize(
    "attack",
    [
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = '{two}'",
        "select pg_cancel_backend(pid) from pg_stat_activity where datname = '{two}'",
        "select pg_terminate_backend(pid) from pg_stat_activity where usename ~ '_service$'",
        "set role {two}_w",
        "set session authorization {two}_w",
        "alter role {two}_w password 'mine'",
        "alter role {two}_w set search_path = mine",
        "grant {two}_w to current_user",
        "grant several_service to current_user",
        "drop database {two}",
        "alter database {two} owner to current_user",
        "alter database {two} set work_mem = '1MB'",
        "alter database {own} set log_min_messages = 'log'",
        "create database mine",
        "create role mine",
        "set log_min_messages = 'debug5'",
        "alter system set work_mem = '1MB'",
        "select * from pg_authid",
        "select pg_read_file('/etc/passwd')",
        "copy (select 1) to program 'true'",
        "create function mine() returns int language internal as 'pg_backend_pid'",
        "create extension dblink",
        "create event trigger mine on ddl_command_start execute function mine()",
        "create view pg_catalog.mine as select 1",
        "create or replace view pg_catalog.pg_user as select 1",
        "select * from tuplegate.secret",
        "insert into tuplegate.verdict values ('txn_mine', 'committed')",
        "truncate tuplegate.answer",
        "create function tuplegate.mine() returns int language sql return 1",
        "create or replace function tuplegate.traces(float8) returns numeric language sql return 1",
        "alter schema tuplegate rename to mine",
        "drop schema tuplegate cascade",
        "reassign owned by several_records to current_user",
        "security label on database {two} is 'x'",
    ],
)
def test_walls_that_hold(one: Tenant, two: Tenant, attack: str) -> None:
    names = {"own": database_of(one), "two": database_of(two)}
    for scope in ("write", "read"):
        error = one.sql(scope).fails(attack.format(**names))
        assert error["sqlstate"] in (DENIED, "25006", "42939", "22023", "25001", "42883", "0A000"), error
    assert two.write.value("select a from kept") == "a secret of two"


def test_nothing_is_seen_of_what_others_run(one: Tenant, two: Tenant) -> None:
    """Of their sessions exactly what the weakness `activity_of_others` says, and a name that all have."""
    other = database_of(two)
    told = (
        "select distinct jsonb_object_keys(jsonb_strip_nulls(to_jsonb(a))) from pg_stat_activity a where datname = $1"
    )
    numbers = {"datid", "pid", "usesysid", "backend_xid", "backend_xmin"}
    columns = {column for [column] in one.write.rows(told, [other], row_mode="arrays")}
    assert columns >= {"pid"}, "that there are sessions is the weakness"
    assert columns <= numbers | {"datname", "usename", "application_name", "query"}
    texts = "select distinct query, application_name from pg_stat_activity where datname = $1"
    for query, name in one.write.rows(texts, [other], row_mode="arrays"):
        assert query == "<insufficient privilege>"
        assert name in ("tuplegate", "tuplegate-service")


def test_a_flood_of_locks_passes(one: Tenant, two: Tenant) -> None:
    """It meets the bound of the server, which others can meet meanwhile; then all of them are free again."""
    error = one.write.fails("select count(pg_advisory_lock(i)) from generate_series(1, 1000000) i")
    assert error["sqlstate"] == "53200", error
    eventually(lambda: two.write.answer("create table after_the_flood ()").json()["success"] is True)
    two.write("drop table after_the_flood")
    eventually(lambda: one.write.answer("select 1").json()["success"] is True)


def test_a_role_that_knows_its_password_enters_its_own_database_alone(
    one: Tenant, two: Tenant, server: ExternalServer
) -> None:
    """A tenant can give its own role a password, where it can reach the server itself."""
    own, other, role = database_of(one), database_of(two), f"{database_of(one)}_w"
    one.write("alter role current_user password 'mine'")
    try:
        with psycopg.connect(server.url(own, user=role, password="mine")) as connection:
            assert connection.execute("select current_user::text").fetchone() == (role,)
        for database in (other, "several", "several_template"):
            refusal = "permission denied for database|not currently accepting"
            with pytest.raises(psycopg.OperationalError, match=refusal):
                psycopg.connect(server.url(database, user=role, password="mine"))
    finally:
        server.execute(f"alter role {role} password '{password(server, 'several', role)}'")


def test_what_others_have_prepared_stays_theirs(one: Tenant, two: Tenant, server: ExternalServer) -> None:
    """Its name can be seen, which is a weakness; it can be neither committed nor rolled back."""
    own, other = database_of(one), database_of(two)
    with psycopg.connect(server.url(other)) as owner:
        owner.execute("create table public.pending ()")
        owner.execute("prepare transaction 'of two'")
    try:
        assert one.write.value("select gid from pg_prepared_xacts where database = $1", [other]) == "of two"
        with psycopg.connect(login(server, "several", own), autocommit=True) as tenant:
            for end in ("commit", "rollback"):
                with pytest.raises(psycopg.Error) as refused:
                    tenant.execute(f"{end} prepared 'of two'".encode())
                assert refused.value.sqlstate == DENIED
    finally:
        server.execute("rollback prepared 'of two'", other)


# -- other roles -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["makes_databases", "makes_roles"])
def test_a_role_with_too_little_is_refused(server: ExternalServer, role: str) -> None:
    said = f"the role {role} is no superuser and lacks CREATEDB or CREATEROLE.* ALTER ROLE {role} CREATEDB CREATEROLE"
    with pytest.raises(EngineRefused, match=said):
        asyncio.run(PostgresOwner(read_url(url(server, "refused", role))).examine(1))


def collect_names(found: Installed) -> set[str]:
    return {weakness.name for weakness in found.weaknesses}


def is_full(found: Installed) -> bool:
    assert isinstance(found.login, PostgresLogin)
    return found.login.walls.full


def installed(engine: str) -> Installed:
    return asyncio.run(install(PostgresOwner(read_url(engine), temp_mb=100)))


def test_what_a_role_may_give_on_is_used(server: ExternalServer) -> None:
    """Then a superuser closes the rest, once and for all."""
    given = url(server, "given", "privileged")
    found = installed(given)
    closed = {"server_log_open", "temporary_files_unbounded", "settings_unseen", "standbys_unseen"}
    assert collect_names(found) == open_ones(server) - closed | always_open(server)
    as_superuser = installed(server.url("given"))
    assert (collect_names(as_superuser), is_full(as_superuser)) == (always_open(server), True)
    after = installed(given)
    assert (collect_names(after), is_full(after)) == (always_open(server), False)


def test_the_installation_of_another_is_refused(server: ExternalServer, alone: Service) -> None:
    """Unless it is a member of the role that made it."""
    with pytest.raises(NameTaken, match="belongs to the role alone_service: give the URL of the role that made it"):
        installed(url(server, "alone", "privileged"))
    server.execute("grant managed to privileged")
    assert installed(url(server, "alone", "privileged")).has_key
