"""The roles and rights of a tenant's database.

Every database has two roles of its own, one that writes and one that only reads, and is owned by neither: an owner
could change settings for everybody. The service logs in as these roles and never switches from one to another.
"""

from querygate.engine.port import Access
from querygate.engine.postgres import records


def role_of(database: str, access: Access) -> str:
    return f"{database}_{'r' if access is Access.READ else 'w'}"


# Functions through which one tenant's session could see, end or starve another's, or fill tables that all share.
_REVOKED_FUNCTIONS = (
    "pg_terminate_backend",
    "pg_cancel_backend",
    "pg_stat_get_activity",
    "pg_logical_emit_message",
    "pg_advisory_lock",
    "pg_advisory_lock_shared",
    "pg_try_advisory_lock",
    "pg_try_advisory_lock_shared",
    "pg_advisory_xact_lock",
    "pg_advisory_xact_lock_shared",
    "pg_try_advisory_xact_lock",
    "pg_try_advisory_xact_lock_shared",
)


# By name: what they take differs from one version of the server to the next.
_REVOKE_FUNCTIONS = f"""
DO $$ DECLARE f pg_catalog.regprocedure; BEGIN
  FOR f IN SELECT oid FROM pg_catalog.pg_proc WHERE pronamespace = 'pg_catalog'::pg_catalog.regnamespace
            AND proname IN ({", ".join(f"'{name}'" for name in _REVOKED_FUNCTIONS)})
  LOOP EXECUTE pg_catalog.format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', f); END LOOP;
END $$
"""


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


def entry(database: str) -> list[str]:
    """Who may enter the database. These rights belong to it and not to what is in it, so a copy has none of them."""
    writer, reader = role_of(database, Access.WRITE), role_of(database, Access.READ)
    return [
        f"REVOKE ALL ON DATABASE {database} FROM PUBLIC",
        f"GRANT CONNECT ON DATABASE {database} TO {writer}, {reader}",
        f"GRANT CREATE, TEMPORARY ON DATABASE {database} TO {writer}",
    ]


def grants(database: str) -> list[str]:
    """Statements for the new database itself. Each may be repeated."""
    writer, reader = role_of(database, Access.WRITE), role_of(database, Access.READ)
    both = f"{writer}, {reader}"
    return [
        *entry(database),
        # A few errors are told apart by their words. Only a superuser can set this, so it cannot go with the start-up.
        f"ALTER DATABASE {database} SET lc_messages TO 'C'",
        "REVOKE ALL ON SCHEMA public FROM PUBLIC",
        f"GRANT USAGE, CREATE ON SCHEMA public TO {writer}",
        f"GRANT USAGE ON SCHEMA public TO {reader}",
        f"ALTER DEFAULT PRIVILEGES FOR ROLE {writer} GRANT USAGE ON SCHEMAS TO {reader}",
        f"ALTER DEFAULT PRIVILEGES FOR ROLE {writer} GRANT SELECT ON TABLES TO {reader}",
        f"ALTER DEFAULT PRIVILEGES FOR ROLE {writer} GRANT SELECT ON SEQUENCES TO {reader}",
        *records.SCHEMA,
        *records.rights(both),
        _REVOKE_FUNCTIONS,
        _keep_for(writer),
        # How the service finds out that a setting of an earlier request is still there.
        f"GRANT EXECUTE ON FUNCTION pg_catalog.pg_get_backend_memory_contexts() TO {both}",
    ]


def forget_settings(database: str, role: str) -> list[str]:
    """Undoes what a role has told the server to start its next connections with."""
    return [f"ALTER ROLE {role} RESET ALL", f"ALTER ROLE {role} IN DATABASE {database} RESET ALL"]


LOCKDOWN = (
    "REVOKE CONNECT ON DATABASE postgres FROM PUBLIC",
    "REVOKE CONNECT ON DATABASE template1 FROM PUBLIC",
)
"""Once per installation: tenants' roles may not enter the databases that every server has."""
