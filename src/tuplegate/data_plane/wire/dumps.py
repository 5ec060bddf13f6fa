"""Gives pg_dump other questions in place of the three that a tenant cannot ask. Pure.

Two ask for the settings that a database was given (`pg_db_role_setting`). That catalog has texts of all tenants of a
server, so none may read it; the settings of a tenant's database are the service's own, and no part of a dump. One asks
for the schemas, of which `tuplegate` is the service's own as well. pg_dump leaves out by itself what is called `pg_…`,
so it is told such a name.

Only texts that are exactly those of the program are replaced, by ones with the same columns. Any other goes to the
engine as it is, which judges by the rights of the tenant's role.
"""

import re
from typing import Final

_LENGTH_MAX: Final = 250
_DATABASE: Final = re.compile(rb"'\d+'::oid\Z")
_SETTINGS: Final = b"SELECT unnest(setconfig) FROM pg_db_role_setting WHERE setrole = 0 AND setdatabase = '0'::oid"
_SETTINGS_OF_ROLES: Final = (
    b"SELECT rolname, unnest(setconfig) FROM pg_db_role_setting s, pg_roles r"
    b" WHERE setrole = r.oid AND setdatabase = '0'::oid"
)
_SCHEMAS: Final = (
    b"SELECT n.tableoid, n.oid, n.nspname, n.nspowner, n.nspacl, acldefault('n', n.nspowner) AS acldefault"
    b" FROM pg_namespace n"
)
_RENAMED: Final = b" CASE n.nspname WHEN 'tuplegate' THEN 'pg_tuplegate' ELSE n.nspname END AS nspname,"
_OTHERS: Final = {
    _SETTINGS: b"SELECT NULL::text AS unnest WHERE false",
    _SETTINGS_OF_ROLES: b"SELECT NULL::name AS rolname, NULL::text AS unnest WHERE false",
    _SCHEMAS: _SCHEMAS.replace(b" n.nspname,", _RENAMED),
}
"""By the text of the program, with 0 in the place of the database's number."""


def replace_question(text: bytes) -> bytes:
    """Return the text for the engine in place of a client's text: usually the same."""
    if len(text) > _LENGTH_MAX or not text.startswith(b"SELECT "):
        return text
    return _OTHERS.get(_DATABASE.sub(b"'0'::oid", text), text)
