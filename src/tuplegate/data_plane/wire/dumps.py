"""Replaces two questions of pg_dump that a tenant cannot ask. Pure.

pg_dump asks for the settings that a database was given (`pg_db_role_setting`). That catalog has texts of all tenants,
so none may read it; the settings of a tenant's database are the service's own, and no part of a dump. It also wants to
dump the schema `tuplegate`, which is the service's own as well. It leaves out names that begin with `pg_`, so it is
told such a name.

Only texts that equal those of the program are replaced, by texts with the same columns. pg_dump refuses a server that
is newer than itself, so the oldest known text is that of the oldest server that the service runs on.
"""

import re
from typing import Final

_LENGTH_MAX: Final = 250
_NAMESPACES: Final = (
    rb"(SELECT n\.tableoid, n\.oid,) n\.nspname(, n\.nspowner, n\.nspacl, acldefault\('n', n\.nspowner\) AS acldefault"
    rb" FROM pg_namespace n)"
)
_REPLACED: Final = (
    (
        re.compile(
            rb"SELECT unnest\(setconfig\) FROM pg_db_role_setting WHERE setrole = 0 AND setdatabase = '\d+'::oid"
        ),
        rb"SELECT NULL::text AS unnest WHERE false",
    ),
    (
        re.compile(
            rb"SELECT rolname, unnest\(setconfig\) FROM pg_db_role_setting s, pg_roles r"
            rb" WHERE setrole = r\.oid AND setdatabase = '\d+'::oid"
        ),
        rb"SELECT NULL::name AS rolname, NULL::text AS unnest WHERE false",
    ),
    (
        re.compile(_NAMESPACES),
        rb"\1 CASE n.nspname WHEN 'tuplegate' THEN 'pg_tuplegate' ELSE n.nspname END AS nspname\2",
    ),
)


def replace_question(text: bytes) -> bytes:
    """Return the text for the engine in place of a client's text: usually the same."""
    if len(text) <= _LENGTH_MAX and text.startswith(b"SELECT "):
        for pattern, instead in _REPLACED:
            found = pattern.fullmatch(text)
            if found is not None:
                return found.expand(instead)
    return text
