"""Lists the tables of a tenant's database, and reads whether the engine's commits are durable.

The questions run with the rights of the key that asks, in a function that was parsed before the tenant had defined
anything, so that no operator or function of the tenant's can be called by them.
"""

from psycopg.pq.abc import PGresult

from tuplegate.engine.libpq.connections.commands import ROLLBACK, Command
from tuplegate.engine.libpq.connections.connection import CHUNK_ROWS
from tuplegate.engine.port import Durability, EngineBusy, StatementFailed, Tables
from tuplegate.engine.postgres.pools.pool import Pool
from tuplegate.engine.run.session import SessionRun

_BEGIN = [
    Command(b"BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY"),
    Command(b"SET LOCAL search_path = pg_catalog, pg_temp"),
    Command(b"SET LOCAL lock_timeout = '1s'"),
    Command(b"SET LOCAL jit = off"),
]
_COMMIT = Command(b"COMMIT")
_LOCK_NOT_AVAILABLE = "55P03"
_ATTEMPTS_MAX = 3

# Sizes and defaults are read under a lock on their relation. A relation that another transaction has locked
# exclusively, or waits to, is listed without them; one that is locked after that look costs another attempt.
TABLES_FUNCTION = r"""
CREATE FUNCTION tuplegate.tables() RETURNS SETOF json LANGUAGE sql STABLE
BEGIN ATOMIC
WITH locked AS MATERIALIZED (
  SELECT relation FROM pg_locks WHERE locktype = 'relation' AND mode = 'AccessExclusiveLock'
), busy AS MATERIALIZED (
  SELECT relation FROM locked
  UNION SELECT i.indrelid FROM pg_index i WHERE i.indexrelid IN (SELECT relation FROM locked)
  UNION SELECT c.oid FROM pg_class c WHERE c.reltoastrelid IN (SELECT relation FROM locked)
), seen AS MATERIALIZED (
  SELECT c.oid, n.nspname, c.relname, c.relkind, c.reltuples, b.relation IS NOT NULL AS busy,
         has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, REFERENCES') AS every_column
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN busy b ON b.relation = c.oid
   WHERE c.relkind IN ('r', 'v', 'm', 'p', 'f')
     AND n.nspname NOT IN ('information_schema', 'tuplegate') AND n.nspname !~ '^pg_'
     AND has_schema_privilege(n.oid, 'USAGE')
     AND (has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
          OR has_any_column_privilege(c.oid, 'SELECT, INSERT, UPDATE, REFERENCES'))
), described AS (
  SELECT a.attrelid, json_agg((SELECT row_to_json(shown) FROM (SELECT
           a.attname AS name,
           CASE WHEN e.oid IS NULL THEN CASE WHEN tn.nspname = 'pg_catalog' THEN t.typname::text
                                             ELSE tn.nspname || '.' || t.typname END
                ELSE CASE WHEN en.nspname = 'pg_catalog' THEN e.typname::text
                          ELSE en.nspname || '.' || e.typname END || '[]' END AS type,
           NOT (a.attnotnull OR (t.typtype = 'd' AND t.typnotnull)) AS nullable,
           CASE WHEN a.attgenerated = '' AND NOT s.busy THEN pg_get_expr(d.adbin, d.adrelid) END AS default,
           coalesce(a.attnum = ANY (p.indkey::int2[]), false) AS primary_key) AS shown) ORDER BY a.attnum) AS columns
    FROM seen s
    JOIN pg_attribute a ON a.attrelid = s.oid AND a.attnum > 0 AND NOT a.attisdropped
    JOIN pg_type t ON t.oid = a.atttypid
    JOIN pg_namespace tn ON tn.oid = t.typnamespace
    LEFT JOIN pg_type e ON e.oid = t.typelem AND e.typarray = t.oid
    LEFT JOIN pg_namespace en ON en.oid = e.typnamespace
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    LEFT JOIN pg_index p ON p.indrelid = a.attrelid AND p.indisprimary
   WHERE s.every_column OR has_column_privilege(s.oid, a.attnum, 'SELECT, INSERT, UPDATE, REFERENCES')
   GROUP BY a.attrelid
)
SELECT (SELECT row_to_json(shown) FROM (SELECT
         s.nspname AS schema,
         s.relname AS name,
         CASE s.relkind WHEN 'r' THEN 'table' WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view'
                        WHEN 'p' THEN 'partitioned table' ELSE 'foreign table' END AS kind,
         coalesce(c.columns, '[]'::json) AS columns,
         CASE WHEN s.relkind <> 'v' AND s.reltuples >= 0 THEN s.reltuples::int8 END AS row_estimate,
         CASE WHEN NOT s.busy THEN pg_total_relation_size(s.oid) END AS size_bytes,
         s.busy AS locked) AS shown)
  FROM seen s LEFT JOIN described c ON c.attrelid = s.oid
 ORDER BY s.nspname, s.relname;
END
"""
_TABLES = b"SELECT * FROM tuplegate.tables()"

_DURABILITY = """
SELECT name, setting FROM pg_catalog.pg_settings
 WHERE name OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.text[]) ORDER BY name
"""
_DURABLE = {
    "fsync": ("on",),
    "full_page_writes": ("on",),
    "synchronous_commit": ("on", "local", "remote_write", "remote_apply"),
}


_STANDBYS = "synchronous_standby_names"


async def find_tables(session: SessionRun[Pool], bytes_max: int) -> Tables:
    attempt = 1
    while True:
        items = _Items(bytes_max)
        try:
            await session.send([*_BEGIN, Command(_TABLES, None, CHUNK_ROWS), _COMMIT], items.take)
        except StatementFailed as failure:
            if failure.sqlstate != _LOCK_NOT_AVAILABLE:
                raise
            if attempt == _ATTEMPTS_MAX:
                raise EngineBusy("other transactions keep relations locked; nothing could be read of them") from failure
            attempt += 1
            await session.send([ROLLBACK])
        else:
            return Tables(b"[" + b",".join(items.texts) + b"]", items.truncated)


class _Items:
    """The rows, each a JSON text, up to the bound."""

    def __init__(self, bytes_max: int) -> None:
        self.texts: list[bytes] = []
        self.truncated = False
        self._left = bytes_max

    def take(self, chunk: PGresult, _command: int) -> None:
        for row in range(chunk.ntuples):
            text = chunk.get_value(row, 0) or b""
            self._left -= len(text) + 1
            if self._left < 0:
                self.truncated = True
                return
            self.texts.append(text)


async def read_durability(session: SessionRun[Pool]) -> Durability:
    names = "{" + ",".join((*_DURABLE, _STANDBYS)) + "}"
    settings = {str(name): str(value) for name, value in (await session.run(_DURABILITY, names)).rows}
    durable = all(settings.get(name) in values for name, values in _DURABLE.items())
    return Durability(durable, bool(settings[_STANDBYS]), settings)
