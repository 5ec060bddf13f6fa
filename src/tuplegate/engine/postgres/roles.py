"""The roles and rights of a tenant's database.

Every database has two roles of its own, one that writes and one that only reads, and is owned by neither: an owner
could change settings for everybody. The service logs in as these roles and never switches from one to another.
"""

from tuplegate.engine.port import Access
from tuplegate.engine.postgres import records, sizes


def role_of(database: str, access: Access) -> str:
    return f"{database}_{'r' if access is Access.READ else 'w'}"


def dump_role_of(database: str) -> str:
    return f"{database}_d"


_REVOKED = "|".join(
    (
        # They end or cancel statements of others, or show their texts, places and numbers.
        "pg_(terminate|cancel)_backend",
        "pg_stat_get_(activity|progress_info|wal_senders|wal_receiver|subscription|replication_slot)",
        "pg_stat_get_(backend|db)_.*",
        "pg_lock_status|pg_prepared_xact|pg_get_replication_slots|pg_control_.*",
        "pg_blocking_pids|pg_safe_snapshot_blocking_pids|pg_isolation_test_session_is_blocked",
        # They fill what all databases share: the lock table, the log of changes, a directory of small files.
        "pg_(try_)?advisory_(xact_)?lock(_shared)?",
        "pg_logical_emit_message|pg_export_snapshot",
    )
)
_REVOKE_FUNCTIONS = f"""
DO $$
DECLARE function regprocedure;
BEGIN
  FOR function IN SELECT oid FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND proname ~ '^({_REVOKED})$'
  LOOP
    EXECUTE format('REVOKE EXECUTE ON FUNCTION pg_catalog.%s FROM PUBLIC', function);
  END LOOP;
END $$
"""
"""By their names, since their parameters differ from version to version of the engine."""

# Catalogs that the databases of a server share, with a tenant's own texts or figures in them. The others name tenants
# only by ids that mean nothing.
_REVOKED_CATALOGS = "pg_catalog.pg_db_role_setting, pg_catalog.pg_shdepend, pg_catalog.pg_roles, pg_catalog.pg_user"
_SHOWN_COLUMNS = {
    "pg_roles": "oid, rolname, rolsuper, rolinherit, rolcreaterole, rolcreatedb, rolcanlogin, rolreplication,"
    " rolconnlimit, rolvaliduntil, rolbypassrls",
    "pg_user": "usename, usesysid, usecreatedb, usesuper, userepl, usebypassrls, valuntil",
}
"""All but the settings that a role was given, and what stands for its password."""

_ROLE_HAS_SETTINGS = """
CREATE OR REPLACE FUNCTION tuplegate.role_has_settings() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
RETURN EXISTS (SELECT FROM pg_db_role_setting s JOIN pg_roles r ON r.oid = s.setrole WHERE r.rolname = session_user)
"""
"""Whether the role that logged in has told the server to start its next connections with settings of its own."""

_LOCKED_RELATIONS = """
CREATE OR REPLACE FUNCTION tuplegate.locked_relations() RETURNS SETOF oid
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
BEGIN ATOMIC
  SELECT l.relation FROM pg_locks l
   WHERE l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock'
     AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
END
"""
"""What somebody in this database has, or wants, for themselves alone."""

_ASKED = "tuplegate.role_has_settings(), tuplegate.locked_relations(), tuplegate.takes_room(bigint, oid)"


# Before version 16 these write in a transaction that is read-only, so only who may write may call them.
_WRITING_FUNCTIONS = (
    "lo_creat",
    "lo_create",
    "lo_from_bytea",
    "lo_put",
    "lo_truncate",
    "lo_truncate64",
    "lo_unlink",
    "lowrite",
)


def _keep_for(writer: str) -> str:
    return f"""
DO $$ DECLARE f pg_catalog.regprocedure; BEGIN
  FOR f IN SELECT oid FROM pg_catalog.pg_proc WHERE pronamespace = 'pg_catalog'::pg_catalog.regnamespace
            AND pg_catalog.current_setting('server_version_num')::int < 160000
            AND proname IN ({", ".join(f"'{name}'" for name in _WRITING_FUNCTIONS)})
  LOOP
    EXECUTE pg_catalog.format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', f);
    EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO {writer}', f);
  END LOOP;
END $$
"""


def creation(database: str, template: str) -> list[str]:
    """Statements for the metadata database: roles and the database itself. Each may be repeated after a crash."""
    writer, reader = role_of(database, Access.WRITE), role_of(database, Access.READ)
    return [
        *(
            f"DO $$ BEGIN CREATE ROLE {role} LOGIN NOINHERIT;"
            " EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
            for role in (writer, reader)
        ),
        f"CREATE DATABASE {database} TEMPLATE {template} ENCODING 'UTF8'",
    ]


def entry(database: str, temp_mb: int | None) -> list[str]:
    """Who may enter the database, and with which settings. These belong to it and not to what is in it, so a copy has
    none of them. Only a superuser can set such settings, so they cannot go with the start-up of a connection."""
    writer, reader = role_of(database, Access.WRITE), role_of(database, Access.READ)
    return [
        f"REVOKE ALL ON DATABASE {database} FROM PUBLIC",
        f"GRANT CONNECT ON DATABASE {database} TO {writer}, {reader}",
        f"GRANT CREATE, TEMPORARY ON DATABASE {database} TO {writer}",
        # A few errors are told apart by their words.
        f"ALTER DATABASE {database} SET lc_messages TO 'C'",
        # Statements carry literals, and a tenant can RAISE LOG without end.
        f"ALTER DATABASE {database} SET log_min_messages TO fatal",
        f"ALTER DATABASE {database} SET log_min_error_statement TO panic",
        *([] if temp_mb is None else [f"ALTER DATABASE {database} SET temp_file_limit TO '{temp_mb}MB'"]),
    ]


def grants(database: str, temp_mb: int | None) -> list[str]:
    """Statements for a new database itself. What the tenant may change of it later is not to be repeated then."""
    writer, reader = role_of(database, Access.WRITE), role_of(database, Access.READ)
    return [
        *entry(database, temp_mb),
        "REVOKE ALL ON SCHEMA public FROM PUBLIC",
        f"GRANT USAGE, CREATE ON SCHEMA public TO {writer}",
        f"GRANT USAGE ON SCHEMA public TO {reader}",
        f"ALTER DEFAULT PRIVILEGES FOR ROLE {writer} GRANT USAGE ON SCHEMAS TO {reader}",
        f"ALTER DEFAULT PRIVILEGES FOR ROLE {writer} GRANT SELECT ON TABLES TO {reader}",
        f"ALTER DEFAULT PRIVILEGES FOR ROLE {writer} GRANT SELECT ON SEQUENCES TO {reader}",
        *furnishing(database),
    ]


def furnishing(database: str) -> list[str]:
    """What is the service's own in a database. Each may be repeated, also where an older version has made it."""
    writer, reader = role_of(database, Access.WRITE), role_of(database, Access.READ)
    both = f"{writer}, {reader}"
    return [
        *records.SCHEMA,
        *records.rights(both),
        _REVOKE_FUNCTIONS,
        f"REVOKE ALL ON {_REVOKED_CATALOGS} FROM PUBLIC",
        "REVOKE UPDATE ON pg_catalog.pg_settings FROM PUBLIC",  # a SET in disguise, which no text need show
        *(f"GRANT SELECT ({columns}) ON pg_catalog.{view} TO PUBLIC" for view, columns in _SHOWN_COLUMNS.items()),
        _ROLE_HAS_SETTINGS,
        _LOCKED_RELATIONS,
        sizes.TAKES_ROOM,
        f"REVOKE ALL ON FUNCTION {_ASKED} FROM PUBLIC",
        f"GRANT EXECUTE ON FUNCTION {_ASKED} TO {both}",
        _keep_for(writer),
        # How the service finds out that a setting of an earlier request is still there.
        f"GRANT EXECUTE ON FUNCTION pg_catalog.pg_get_backend_memory_contexts() TO {both}",
    ]


def forget_settings(database: str, role: str) -> list[str]:
    """Undoes what a role has told the server to start its next connections with."""
    return [f"ALTER ROLE {role} RESET ALL", f"ALTER ROLE {role} IN DATABASE {database} RESET ALL"]


DUMP_GROUP = "tuplegate_dump"
"""Who may read which settings databases and roles have: a dump asks for those of its own database."""


def dumping(database: str) -> list[str]:
    """Statements for the metadata database: the role that dumps a database has the rights of the one that writes.

    That one itself cannot: what it must not read, since it is of all databases, the engine's program wants to read.
    Nobody's statements run as this role. Each may be repeated.
    """
    role = dump_role_of(database)
    return [
        *(
            f"DO $$ BEGIN CREATE ROLE {name} {kind};"
            " EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
            for name, kind in ((DUMP_GROUP, "NOLOGIN"), (role, "LOGIN INHERIT"))
        ),
        f"GRANT {role_of(database, Access.WRITE)}, {DUMP_GROUP} TO {role}",
    ]


DUMP_RIGHTS = f"GRANT SELECT ON pg_catalog.pg_db_role_setting TO {DUMP_GROUP}"
"""For the database itself."""

LOCKDOWN = (
    "REVOKE CONNECT ON DATABASE postgres FROM PUBLIC",
    "REVOKE CONNECT ON DATABASE template1 FROM PUBLIC",
)
"""Once per installation: tenants' roles may not enter the databases that every server has."""
