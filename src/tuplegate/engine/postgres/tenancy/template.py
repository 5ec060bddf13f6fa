"""Makes the service's own objects in every database of a tenant: in the template, and anew in databases of older
versions.

A superuser makes the template when the service starts and never later: tenants' databases are copies of it, for which
the service's own role suffices. A right that is revoked here stays revoked in every copy. A role that is no superuser
makes as much of it as it can (`walls.py`).

All statements run with a search path of the engine's own names, in databases where the tenant may have defined
anything. The functions are of two kinds, and neither looks up a name when it runs: SQL functions that are parsed when
they are made, with the rights of their caller; and those of `records.py` and `windows.py`, with the rights of two roles
that have next to none.
"""

import hashlib
from typing import Final

from tuplegate.engine.libpq.values import types
from tuplegate.engine.libpq.values.quoting import quote
from tuplegate.engine.postgres.rights import windows
from tuplegate.engine.postgres.rights.owners import Owners
from tuplegate.engine.postgres.rights.walls import FULL, Walls
from tuplegate.engine.postgres.safety import database_state, left_settings, sizes
from tuplegate.engine.postgres.service import records
from tuplegate.engine.postgres.tenancy import inspect

ENDING: Final = "pg_(terminate|cancel)_backend"
"""Matches the names of functions that end or cancel statements of others."""
FILLING: Final = "pg_logical_emit_message|pg_export_snapshot"
"""Matches functions that fill what all databases share: the log of changes, a directory of small files."""
SHOWING: Final = "|".join(
    (
        # They show the texts, places and numbers of others.
        "pg_stat_get_(activity|progress_info|wal_senders|wal_receiver|subscription|replication_slot)",
        "pg_stat_get_(backend|db)_.*",
        # They show how much is done in any table, also in catalogs that all databases share.
        windows.OF_RELATIONS,
        "pg_lock_status|pg_prepared_xact|pg_get_replication_slots|pg_control_.*",
        "pg_blocking_pids|pg_safe_snapshot_blocking_pids|pg_isolation_test_session_is_blocked",
        # They show figures of the whole installation.
        "pg_stat_get_(wal|io|slru|archiver|recovery_prefetch|subscription_stats)",
        "pg_stat_get_(checkpointer|bgwriter|buf)_.*|pg_show_replication_origin_status",
        "pg_tablespace_size|pg_tablespace_databases|pg_notification_queue_usage|pg_get_multixact_members",
        "pg_current_wal_.*|pg_walfile_.*|pg_split_walfile_name|pg_last_(wal|xact)_.*|pg_last_committed_xact",
        "pg_xact_commit_timestamp.*|pg_(get|is)_wal_.*|pg_available_wal_summaries|pg_wal_summary_contents",
        # They are for programs of the engine's own.
        "binary_upgrade_.*|pg_nextoid|pg_stop_making_pinned_objects|pg_import_system_collations",
        "pg_(create|copy|drop)_.*replication_slot|pg_replication_slot_advance|pg_logical_slot_.*",
        "pg_sync_replication_slots",
    )
)
"""Matches functions that show the activity of others, or are for programs of the engine's own."""
_REVOKED: Final = f"{ENDING}|{SHOWING}|{FILLING}"
_REVOKE_FUNCTIONS: Final = f"""
DO $$
DECLARE function regprocedure;
BEGIN
  FOR function IN SELECT oid FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND proname ~ '^({_REVOKED})$'
  LOOP
    EXECUTE format('REVOKE EXECUTE ON FUNCTION pg_catalog.%s FROM PUBLIC', function);
  END LOOP;
END $$
"""
"""By their names, since their parameters differ between versions of the engine."""
_REVOKE_EACH: Final = "EXECUTE format('REVOKE EXECUTE ON FUNCTION pg_catalog.%s FROM PUBLIC', function);"
_TRY_TO_REVOKE_FUNCTIONS: Final = _REVOKE_FUNCTIONS.replace(
    _REVOKE_EACH, f"BEGIN {_REVOKE_EACH} EXCEPTION WHEN insufficient_privilege THEN NULL; END;"
)
"""The engine refuses if the role has no right at all to a function, and only warns if it has some."""

CATALOGS: Final = "pg_catalog.pg_db_role_setting, pg_catalog.pg_shdepend, pg_catalog.pg_auth_members"
"""Catalogs that the databases of a server share and that contain a tenant's own texts or figures. The others name
tenants only by ids that mean nothing."""
_REVOKED_CATALOGS: Final = f"{CATALOGS}, pg_catalog.pg_group, pg_catalog.pg_roles, pg_catalog.pg_user"
_SHOWN_COLUMNS: Final = {
    "pg_roles": "oid, rolname, rolsuper, rolinherit, rolcreaterole, rolcreatedb, rolcanlogin, rolreplication,"
    " rolconnlimit, rolvaliduntil, rolbypassrls",
    "pg_user": "usename, usesysid, usecreatedb, usesuper, userepl, usebypassrls, valuntil",
}
"""All columns except a role's settings and its password."""

# These write without a right to any table. Whether a transaction is read-only is the client's own choice on `GET /v2`,
# and before version 16 they do not ask. So only who may write may call them.
_WRITING_FUNCTIONS: Final = (
    "lo_creat",
    "lo_create",
    "lo_from_bytea",
    "lo_put",
    "lo_truncate",
    "lo_truncate64",
    "lo_unlink",
    "lowrite",
)

_FOLLOWING_FUNCTIONS: Final = (
    "pg_create_logical_replication_slot",
    "pg_drop_replication_slot",
    "pg_export_snapshot",
    "pg_get_replication_slots",
    "pg_logical_slot_get_binary_changes",
)

# What an older version has made is made anew, whatever it looked like. The functions that views of the engine's own
# depend on are replaced instead. A tenant may have made something that depends on one: that keeps the old one, under
# another name and with no more rights than the tenant's own.
_DROP_FUNCTIONS: Final = """
DO $$
DECLARE found record;
BEGIN
  FOR round IN 1..3 LOOP
    FOR found IN SELECT oid, oid::regprocedure AS name FROM pg_proc
                  WHERE pronamespace = 'tuplegate'::regnamespace AND oid >= 16384
                    AND proname !~ '^(shown|former)_'
    LOOP
      BEGIN
        EXECUTE format('DROP FUNCTION %s', found.name);
      EXCEPTION WHEN dependent_objects_still_exist THEN
        IF round = 3 THEN
          EXECUTE format('ALTER FUNCTION %s SECURITY INVOKER', found.name);
          EXECUTE format('ALTER FUNCTION %s RENAME TO former_%s', found.name, found.oid);
        END IF;
      END;
    END LOOP;
  END LOOP;
END $$
"""

_FUNCTIONS: Final = (
    database_state.CODE_FUNCTION,
    inspect.TABLES_FUNCTION,
    sizes.RUNS_CODE_AT_COMMIT,
    sizes.TAKES_ROOM,
    sizes.VACUUM_RUNS_CODE,
    types.TYPES_FUNCTION,
)
"""Functions that run with the rights of their caller."""


def write_furnishing(owners: Owners, walls: Walls = FULL) -> list[str]:
    """Return statements that make the service's own objects in a database, in one transaction. The role that runs them
    is a superuser, or has the rights of the installation's own roles and makes what `walls` says."""
    return [
        "CREATE SCHEMA IF NOT EXISTS tuplegate",
        "REVOKE ALL ON SCHEMA tuplegate FROM PUBLIC",
        "GRANT USAGE ON SCHEMA tuplegate TO PUBLIC",
        *_lend_rights(owners, "GRANT {} TO", walls),
        _DROP_FUNCTIONS,
        _REVOKE_FUNCTIONS if walls.full else _TRY_TO_REVOKE_FUNCTIONS,
        walls.tolerate(f"REVOKE ALL ON {_REVOKED_CATALOGS} FROM PUBLIC"),
        # A SET in disguise, which no text need show.
        walls.tolerate("REVOKE UPDATE ON pg_catalog.pg_settings FROM PUBLIC"),
        *(
            walls.tolerate(f"GRANT SELECT ({columns}) ON pg_catalog.{view} TO PUBLIC")
            for view, columns in _SHOWN_COLUMNS.items()
        ),
        walls.tolerate(f"GRANT SELECT ON pg_catalog.pg_db_role_setting TO {quote(owners.dump)}"),
        # How the service finds out that a setting of an earlier request is still there.
        walls.tolerate("GRANT EXECUTE ON FUNCTION pg_catalog.pg_get_backend_memory_contexts() TO PUBLIC"),
        walls.tolerate(_grant_writing_functions(owners)),
        walls.tolerate(_grant_following(owners)),
        *records.write_furnishing(owners),
        *windows.write_furnishing(owners, walls),
        *_FUNCTIONS,
        *_list_memory_functions(owners, walls),
        *_lend_rights(owners, "REVOKE {} FROM", walls),
    ]


def _lend_rights(owners: Owners, action: str, walls: Walls) -> list[str]:
    """Return statements that lend the right to make functions to their owners, who need it unless a superuser makes
    them."""
    if walls.full:
        return []
    return [f"{action.format('CREATE ON SCHEMA tuplegate')} {quote(owners.records)}, {quote(owners.warden)}"]


def _list_memory_functions(owners: Owners, walls: Walls) -> list[str]:
    """Return the functions that measure the memory of a session's settings. By default only a role that reads all
    statistics may do that."""
    if walls.full:
        return [left_settings.FUNCTION]
    if not walls.sees_memory:
        return [left_settings.FUNCTION_WITHOUT_MEMORY]
    return [
        left_settings.MEMORY_FUNCTION,
        f"ALTER FUNCTION tuplegate.settings_memory() OWNER TO {quote(owners.warden)}",
        left_settings.FUNCTION_OF_WARDEN,
    ]


def stamp_version(statements: list[str]) -> str:
    """Return a version that identifies the furnishing that these statements make."""
    return hashlib.sha256("\n".join(statements).encode()).hexdigest()[:16]


def give_writing_functions(writer: str) -> str:
    """Return a statement that grants functions that write without a right to a table, to the writing role alone."""
    return _write_for_functions(
        f"EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO {writer}', f);",
        f"AND NOT has_function_privilege('{writer}', oid, 'EXECUTE')",
    )


def take_writing_functions(writer: str) -> str:
    """Return a statement that revokes them from a role that has nothing to do with the database."""
    return _write_for_functions(f"EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM {writer}', f);")


def _grant_writing_functions(owners: Owners) -> str:
    return _write_for_functions(
        "EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', f);"
        f" EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO {quote(owners.service)} WITH GRANT OPTION', f);"
    )


def _grant_following(owners: Owners) -> str:
    """Return a statement that grants the functions for following a database that moves to another engine
    (`following.py`)."""
    names = ", ".join(f"'{name}'" for name in _FOLLOWING_FUNCTIONS)
    return f"""
DO $$ DECLARE f regprocedure; BEGIN
  FOR f IN SELECT oid FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND proname IN ({names})
  LOOP
    EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO {quote(owners.service)}', f);
  END LOOP;
END $$
"""


def _write_for_functions(action: str, condition: str = "") -> str:
    return f"""
DO $$ DECLARE f regprocedure; BEGIN
  FOR f IN SELECT oid FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace
            AND proname IN ({", ".join(f"'{name}'" for name in _WRITING_FUNCTIONS)})
            {condition}
  LOOP
    {action}
  END LOOP;
END $$
"""
