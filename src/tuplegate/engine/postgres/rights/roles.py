"""The roles and rights of a tenant's database.

Every database has two roles of its own, one that writes and one that only reads, and is owned by neither: an owner
could change settings for everybody. The service logs in as these roles and never switches from one to another.
"""

from tuplegate.engine.libpq.connections.logins import name_role
from tuplegate.engine.libpq.values.quoting import quote
from tuplegate.engine.port import Access
from tuplegate.engine.postgres.rights.owners import Owners
from tuplegate.engine.postgres.rights.walls import FULL, Walls

TENANTS = "^tg_[a-z0-9]+_[rw]$"
"""Matches the names of roles that run tenants' statements."""

PASSING = "^tg_[a-z0-9]+_[dc]$"
"""Matches the names of roles that a database has while it is dumped or copied."""


def name_dump_role(database: str) -> str:
    return f"{database}_d"


def name_copy_role(database: str) -> str:
    """Return the role that has the rights of a new copy's roles and of its source's while the copy is made."""
    return f"{database}_c"


def is_copying(role: str) -> bool:
    return role.endswith("_c")


def name_roles(database: str) -> tuple[str, str]:
    """Return the writing role and the reading one."""
    return name_role(database, Access.WRITE), name_role(database, Access.READ)


def make_role(name: str, attributes: str) -> str:
    """Return a statement that makes a role, and may be repeated."""
    return (
        f"DO $$ BEGIN CREATE ROLE {name} {attributes};"
        " EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
    )


def watch_over(role: str) -> str:
    """Return a statement that lets the service's role, which runs it, see and end the sessions of a role that it has
    made.

    A member of `pg_signal_backend` needs nothing for that; other roles need the rights of the role. It may be repeated.
    """
    return f"""
DO $$ BEGIN
  IF NOT pg_has_role(current_user, 'pg_signal_backend', 'USAGE') THEN
    EXECUTE 'GRANT {role} TO CURRENT_USER' || CASE WHEN current_setting('server_version_num')::int >= 160000
                                                   THEN ' WITH INHERIT TRUE, SET FALSE' ELSE '' END;
  END IF;
END $$
"""


MAY_END = (
    "usesysid IN (SELECT oid FROM pg_roles WHERE NOT rolsuper)"
    " AND (pg_has_role(current_user, 'pg_signal_backend', 'USAGE') OR pg_has_role(current_user, usesysid, 'USAGE'))"
)
"""Matches the sessions in `pg_stat_activity` that the service's role may end: if the statement meets one that it may
not end, the engine ends none of them."""


def write_creation(database: str, template: str) -> list[str]:
    """Return statements for the metadata database: they make the roles and the database. Each may be repeated after a
    crash."""
    return [
        *(make_role(role, "LOGIN INHERIT") for role in name_roles(database)),
        *(watch_over(role) for role in name_roles(database)),
        f"CREATE DATABASE {database} TEMPLATE {quote(template)} ENCODING 'UTF8'",
    ]


def write_entry(database: str, temp_mb: int | None, walls: Walls = FULL) -> list[str]:
    """Return statements that decide who may enter the database, and with which settings. These belong to the database
    itself, not to its content, so a copy has none of them. A tenant may not set such settings, so they cannot be in the
    start-up of its connections."""
    writer, reader = name_roles(database)
    return [
        f"REVOKE ALL ON DATABASE {database} FROM PUBLIC",
        f"GRANT CONNECT ON DATABASE {database} TO {writer}, {reader}",
        f"GRANT CREATE, TEMPORARY ON DATABASE {database} TO {writer}",
        *(
            walls.tolerate(f"ALTER DATABASE {database} SET {name} TO {value}")
            for name, value in _settings(temp_mb).items()
        ),
    ]


def _settings(temp_mb: int | None) -> dict[str, str]:
    return {
        # A few errors are recognized by their words.
        "lc_messages": "'C'",
        # Statements carry literals, and a tenant can RAISE LOG without end.
        "log_min_messages": "fatal",
        "log_min_error_statement": "panic",
        **({} if temp_mb is None else {"temp_file_limit": f"'{temp_mb}MB'"}),
    }


SETTINGS_OF_DATABASES = tuple(_settings(0))
"""Settings that only a superuser may set, unless the right is granted."""


def write_public_rights(database: str) -> list[str]:
    """Return statements about the schema `public` of a new database. Do not repeat them later: the tenant may change
    these rights."""
    writer, reader = name_roles(database)
    return [
        "REVOKE ALL ON SCHEMA public FROM PUBLIC",
        f"GRANT USAGE, CREATE ON SCHEMA public TO {writer}",
        f"GRANT USAGE ON SCHEMA public TO {reader}",
    ]


_DEFAULT_RIGHTS = ("USAGE ON SCHEMAS", "SELECT ON TABLES", "SELECT ON SEQUENCES")


def write_default_rights(database: str) -> list[str]:
    """Return statements for the writing role of a new database: the reading role may read its objects."""
    _, reader = name_roles(database)
    return [f"ALTER DEFAULT PRIVILEGES GRANT {right} TO {reader}" for right in _DEFAULT_RIGHTS]


def undo_default_rights(database: str) -> list[str]:
    """Return statements that undo the default rights, for a database that gets the rights of another one."""
    _, reader = name_roles(database)
    return [f"ALTER DEFAULT PRIVILEGES REVOKE {right} FROM {reader}" for right in _DEFAULT_RIGHTS]


def forget_settings(database: str, role: str) -> list[str]:
    """Return statements that undo the settings that a role has stored at the server for its next connections."""
    return [f"ALTER ROLE {role} RESET ALL", f"ALTER ROLE {role} IN DATABASE {database} RESET ALL"]


def write_dumping(database: str, owners: Owners) -> list[str]:
    """Return statements for the metadata database: they make the dumping role, with the rights of the writing one.

    The writing role itself cannot dump: the engine's program reads shared catalogs, which that role must not read.
    Nobody's statements run as the dumping role. Each may be repeated.
    """
    role = name_dump_role(database)
    return [
        make_role(role, "LOGIN INHERIT"),
        watch_over(role),
        f"GRANT {name_role(database, Access.WRITE)}, {quote(owners.dump)} TO {role}",
    ]
