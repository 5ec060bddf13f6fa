"""Attacks that would show the attacker data, texts or figures of others."""

from attack.arena import Arena, Breach
from attack.table import attack

_FIGURES = (
    "select pg_tablespace_size('pg_default')",
    "select pg_tablespace_size('pg_global')",
    "select wal_bytes from pg_stat_wal",
    "select * from pg_stat_get_wal()",
    "select sum(reads) from pg_stat_io",
    "select * from pg_stat_get_io()",
    "select num_timed from pg_stat_checkpointer",
    "select pg_stat_get_checkpointer_num_requested()",
    "select buffers_alloc from pg_stat_bgwriter",
    "select * from pg_stat_slru",
    "select archived_count from pg_stat_archiver",
    "select xact_commit from pg_stat_database where datname is distinct from current_database()",
    "select * from pg_stat_recovery_prefetch",
    "select * from pg_stat_replication",
    "select * from pg_stat_ssl",
    "select gid from pg_prepared_xacts",
    "select * from pg_stat_progress_vacuum",
    "select pg_notification_queue_usage()",
    "select pg_current_wal_lsn()",
    "select pg_current_wal_insert_lsn()",
    "select pg_current_wal_flush_lsn()",
    "select * from pg_shmem_allocations",
    "select * from pg_stat_subscription_stats",
    "select pg_ls_logdir()",
    "select * from pg_db_role_setting",
    "select * from pg_shdepend",
    "select rolpassword from pg_authid",
    "select * from pg_hba_file_rules",
    "select * from pg_file_settings",
    "select pg_tablespace_databases(1663)",
    "select * from pg_replication_slots",
    "select pg_stat_get_xact_function_calls(0), * from pg_stat_wal_receiver",
    "select pg_control_checkpoint()",
    "select pg_get_wal_summarizer_state()",
    "select pg_available_wal_summaries()",
)
"""Each tells something about the whole installation, or about others."""


@attack()
def totals_of_the_installation(arena: Arena) -> None:
    """No tenant reads totals of the installation: sizes, log, input and output, checkpoints, positions."""
    shown = []
    for sql in _FIGURES:
        for scope in ("write", "read"):
            answer = arena.attacker.query(sql, scope=scope)
            if answer.succeeded and any(value is not None for row in answer.rows for value in row.values()):
                shown.append(f"{scope}: {sql}")
    if shown:
        raise Breach(f"{len(shown)} figures of the installation can be read: {'; '.join(shown)}")


@attack()
def sizes_and_names_of_others(arena: Arena) -> None:
    """No tenant learns the size, the settings, the comment or the activity of another's database."""
    other = arena.victim.database
    shown = []
    for sql in (
        f"select pg_database_size('{other}')",
        f"select pg_stat_get_db_xact_commit(oid) from pg_database where datname = '{other}'",
        f"select pg_stat_get_db_numbackends(oid) from pg_database where datname = '{other}'",
        f"select setconfig from pg_db_role_setting s join pg_database d on d.oid = setdatabase and datname = '{other}'",
        f"select usename, query from pg_stat_activity where datname = '{other}'",
        f"select mode from pg_locks l join pg_database d on d.oid = l.database and d.datname = '{other}'",
        f"select shobj_description(oid, 'pg_database') from pg_database where datname = '{other}'",
        f"select rolconfig from pg_roles where rolname = '{other}_w'",
        f"select passwd from pg_shadow where usename = '{other}_w'",
        f"select * from dblink('dbname={other}', 'table coveted') as t(a text)",
    ):
        for scope in ("write", "read"):
            answer = arena.attacker.query(sql, scope=scope)
            if answer.succeeded and any(value is not None for row in answer.rows for value in row.values()):
                shown.append(f"{scope}: {sql} -> {answer.text[:100]}")
    if shown:
        raise Breach("; ".join(shown))


@attack()
def another_tenants_transactions_and_answers(arena: Arena) -> None:
    """An id, a key of an answer or a name of a database of another tenant is nobody's business."""
    attacker, victim = arena.attacker, arena.victim
    id = "txn_victims0000001"
    headers = {"Tuplegate-Transaction-Id": id, "Idempotency-Key": "victims-key"}
    sql = "select 'guarded' as word"
    assert victim.transaction(sql, headers=headers).status in (200, 409)
    if attacker.ask("write", "GET", f"/v1/transaction/{id}").status != 404:
        raise Breach("another tenant's transaction can be asked for")
    again = attacker.transaction(sql, headers={"Idempotency-Key": "victims-key"})
    if id in again.text:
        raise Breach("another tenant's answer was replayed")
    for name in (victim.database, "victim", "tuplegate", "postgres", "template1"):
        answer = attacker.query("select current_database() as name", headers={"Tuplegate-Database": name})
        if answer.succeeded and answer.rows[0]["name"] != attacker.database:
            raise Breach(f"the header led to {answer.text[:200]}")
        for method, path in (
            ("GET", f"/v1/databases/{name}"),
            ("DELETE", f"/v1/databases/{name}"),
            ("GET", f"/v1/databases/{name}/dump"),
            ("DELETE", f"/v1/organizations/{victim.id}"),
        ):
            if attacker.ask("admin", method, path, control=True).status == 200:
                raise Breach(f"{method} {path} was allowed")
        body = {"name": "stolen", "clone_of": name}
        if attacker.ask("admin", "POST", "/v1/databases", control=True, json=body).status == 201:
            raise Breach(f"a copy of {name} was made")


@attack()
def a_dump_leaves_nothing_out(arena: Arena) -> None:
    """A dump has every schema of its tenant, also one whose name looks like the service's own."""
    attacker = arena.attacker
    schema = f"tuplegate_scratch_{'0123456789abcdef' * 2}"
    arena.own_schemas.add(schema)
    attacker.must(f"create schema {schema}")
    attacker.must(f"create table {schema}.kept_in_dump (a text)")
    answer = attacker.ask("admin", "GET", "/v1/databases/main/dump", control=True)
    if answer.status == 200 and "kept_in_dump" not in answer.text:
        raise Breach(f"the dump left out the schema {schema} without a word")
