"""No setting of a tenant's outlives its request, weakens it, or reaches anybody else."""

import pytest

from tests.service import newer_than
from tests.tenants import Tenant, undisturbed

OWNERS_ONLY = [
    "log_statement = 'all'",
    "log_min_messages = debug5",
    "log_min_error_statement = debug5",
    "log_min_duration_statement = 0",
    "log_duration = on",
    "log_statement_stats = on",
    "log_lock_waits = on",
    "temp_file_limit = -1",
    "session_replication_role = replica",
    "session_preload_libraries = 'auto_explain'",
    "dynamic_library_path = '/tmp'",
    "allow_system_table_mods = on",
    "ignore_checksum_failure = on",
    "zero_damaged_pages = on",
    "track_activities = off",
    "track_counts = off",
    "deadlock_timeout = '1h'",
    "commit_delay = 100000",
    "max_stack_depth = '7MB'",
    "lo_compat_privileges = on",
    "lc_messages = 'de_DE'",
    "wal_compression = on",
]


@pytest.mark.parametrize("scope", ["write", "read"])
@pytest.mark.parametrize("setting", OWNERS_ONLY)
def test_a_setting_of_the_owner_is_refused(one: Tenant, scope: str, setting: str) -> None:
    """Directly, in code, and as what the role's next connections shall start with."""
    sql = one.sql(scope)
    name, value = setting.split(" = ")
    assert sql.fails(f"set {setting}")["sqlstate"] == "42501"
    assert sql.fails(f"select set_config('{name}', {value if value[0] == chr(39) else repr(value)}, true)")["sqlstate"]
    assert sql.fails(f"do $$ begin set local {setting}; end $$")["sqlstate"] == "42501"
    assert sql.fails(f"alter role current_user set {setting}")["sqlstate"] in ("42501", "25006")


@pytest.mark.parametrize("scope", ["write", "read"])
@pytest.mark.parametrize(
    "setting",
    [
        "maxconn = 1",
        "max_connections = 1000",
        "max_locks_per_transaction = 10000",
        "max_prepared_transactions = 0",
        "fsync = off",
        "full_page_writes = off",
        "autovacuum = off",
        "archive_command = 'id'",
        "listen_addresses = '*'",
        "shared_preload_libraries = 'x'",
    ],
)
def test_a_setting_of_the_server_is_refused(one: Tenant, scope: str, setting: str) -> None:
    error = one.sql(scope).fails(f"set {setting}")
    assert error["sqlstate"] in ("55P02", "42704"), error


@pytest.mark.parametrize("scope", ["write", "read"])
@pytest.mark.parametrize("name", ["statement_timeout", "transaction_timeout", "lock_timeout"])
def test_the_time_limit_is_not_the_tenants(one: Tenant, two: Tenant, scope: str, name: str) -> None:
    """It is kept from outside, whatever the engine was told."""
    with undisturbed(two):
        error = one.sql(scope).fails(
            f"do $$ begin set {name} = 0; loop perform pg_sleep(0.01); end loop; end $$", timeout_ms=300
        )
    known = name != "transaction_timeout" or newer_than(16)
    assert (error["code"], error["sqlstate"]) == (("timeout", "57014") if known else ("sql_error", "42704"))


@pytest.mark.parametrize("scope", ["write", "read"])
def test_what_a_role_gives_itself_does_not_last(one: Tenant, scope: str) -> None:
    """What decides over time, durability, isolation and memory is as the service wants it on every new connection."""
    sql = one.sql(scope)
    values = {
        "statement_timeout": "1",
        "work_mem": "'1GB'",
        "maintenance_work_mem": "'1GB'",
        "temp_buffers": "'1GB'",
        "hash_mem_multiplier": "1000",
        "synchronous_commit": "off",
        "default_transaction_isolation": "'read committed'",
        "default_transaction_read_only": "off" if scope == "read" else "on",
        "row_security": "off",
        "search_path": "pg_catalog",
        "idle_in_transaction_session_timeout": "1",
        "client_connection_check_interval": "0",
    }
    shown = [f"current_setting('{name}') as {name}" for name in values]
    probe = f"select {', '.join(shown)}, current_setting('transaction_read_only') as read_only"
    before = sql.rows(probe)
    for name, value in values.items():
        sql.answer(f"alter role current_user set {name} = {value}")
        sql.answer(f"set {name} = {value}")
    assert sql.answer("copy (select 1) to stdout").status_code == 400  # costs the connection: the next one is new
    assert sql.rows(probe) == before


@pytest.mark.parametrize(
    "statement",
    [
        "alter role current_user password 'mine now'",
        "drop owned by current_user",
        "revoke connect on database {own} from {own}_w",
        "revoke all on schema public from {own}_w",
        "revoke all on schema tuplegate from {own}_w",
        "revoke execute on function tuplegate.decide(text, text, text) from {own}_w",
    ],
)
def test_a_tenant_cannot_lock_the_service_out(one: Tenant, statement: str) -> None:
    """Its role's rights are not its own to give away, and its password opens nothing."""
    own = one.write.value("select current_database()")
    one.write(statement.replace("{own}", own))
    assert one.write.answer("copy (select 1) to stdout").status_code == 400  # costs the connection
    one.write("create table again (a int)")
    assert one.transaction("insert into again values (1)", "drop table again").json()["commit"] == "two_phase"
    grants = [
        f"alter default privileges grant {what} to {own}_r"
        for what in ("usage on schemas", "select on tables", "select on sequences")
    ]
    for grant in grants:  # these were its own, and DROP OWNED took them
        one.write(grant)
