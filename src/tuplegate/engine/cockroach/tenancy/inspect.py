"""Lists the tables of a tenant's database, with the rights of the key that asks."""

from typing import Final

import msgspec

from tuplegate.engine import port
from tuplegate.engine.cockroach.query.session import SessionRun

_TABLES: Final = """
SELECT n.nspname, c.relname, c.relkind,
       (SELECT json_agg(json_build_object(
                 'name', a.attname,
                 'type', CASE WHEN e.oid IS NULL
                              THEN CASE WHEN tn.nspname = 'pg_catalog' THEN t.typname::text
                                        ELSE tn.nspname || '.' || t.typname END
                              ELSE CASE WHEN en.nspname = 'pg_catalog' THEN e.typname::text
                                        ELSE en.nspname || '.' || e.typname END || '[]' END,
                 'nullable', NOT a.attnotnull,
                 'default', pg_catalog.pg_get_expr(d.adbin, d.adrelid),
                 'primary_key', coalesce(a.attnum = ANY (p.indkey::int2[]), false),
                 'number', a.attnum))
          FROM pg_catalog.pg_attribute a
          JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
          JOIN pg_catalog.pg_namespace tn ON tn.oid = t.typnamespace
          LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND e.typarray = t.oid
          LEFT JOIN pg_catalog.pg_namespace en ON en.oid = e.typnamespace
          LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
          LEFT JOIN pg_catalog.pg_index p ON p.indrelid = a.attrelid AND p.indisprimary
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
           AND NOT (a.attname = 'rowid' AND pg_catalog.pg_get_expr(d.adbin, d.adrelid) = 'unique_rowid()'))
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'v', 'm')
   AND n.nspname NOT IN ('information_schema', 'tuplegate', 'crdb_internal', 'pg_catalog', 'pg_extension')
   AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')
   AND pg_catalog.has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE')
 ORDER BY n.nspname, c.relname
"""
_KINDS: Final = {"r": "table", "v": "view", "m": "materialized view"}


async def find_tables(session: SessionRun, bytes_max: int) -> port.Tables:
    items: list[bytes] = []
    left = bytes_max
    for schema, name, kind, columns in (await session.run(_TABLES)).rows:
        described = sorted(msgspec.json.decode(columns or "[]"), key=lambda column: int(column["number"]))
        for column in described:
            del column["number"]
        item = msgspec.json.encode(
            {
                "schema": schema,
                "name": name,
                "kind": _KINDS[str(kind)],
                "columns": described,
                "row_estimate": None,
                "size_bytes": None,
                "locked": False,
            }
        )
        left -= len(item) + 1
        if left < 0:
            return port.Tables(b"[" + b",".join(items) + b"]", truncated=True)
        items.append(item)
    return port.Tables(b"[" + b",".join(items) + b"]", truncated=False)
