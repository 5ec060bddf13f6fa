"""The engine side's own schema in the metadata database, beside the catalog's tables.

All service processes on one engine share it. Every statement may be repeated.
"""

from tuplegate.engine.libpq.connections import identity

LOCK = """
DO $$ BEGIN
  SET LOCAL lock_timeout = '60s';
  PERFORM pg_advisory_lock(hashtextextended('tuplegate/installation', 0));
END $$
"""
"""Held by a session while it makes or changes objects of the whole installation: one service process at a time."""

SCHEMA = (
    "CREATE SCHEMA IF NOT EXISTS engine",
    # Prepared transactions that a recovery has committed, and not their own request.
    "CREATE TABLE IF NOT EXISTS engine.recovered (gid text PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())",
    # Reports between service processes about the transactions that they begin: see lease.py.
    "CREATE TABLE IF NOT EXISTS engine.guard (id text PRIMARY KEY, begun bigint NOT NULL, ceiling bigint NOT NULL,"
    " at timestamptz NOT NULL, ended boolean NOT NULL DEFAULT false) WITH (fillfactor = 50)",
    identity.TABLE,
)

# It writes in any case, so that it waits for a standby: of a first try nobody may know whether one has it.
NOTE_RECOVERED = "INSERT INTO engine.recovered (gid) VALUES ($1) ON CONFLICT (gid) DO UPDATE SET at = excluded.at"
ALL_RECOVERED = "SELECT gid, at FROM engine.recovered"
TAKE_RECOVERED = "INSERT INTO engine.recovered (gid, at) VALUES ($1, $2::timestamptz) ON CONFLICT DO NOTHING"
FIND_RECOVERED = "SELECT 1 FROM engine.recovered WHERE gid = $1"
# The request looks for its own within seconds; a client that was told to ask later, within a day.
EXPIRE_RECOVERED = "DELETE FROM engine.recovered WHERE at < now() - interval '25 hours'"
