"""The engine side's own schema in the metadata database, beside the catalog's tables.

All service processes on one engine share it. Every statement may be repeated.
"""

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
    # On an engine beside the first: the installation that it belongs to, its name there, and its last furnishing.
    "CREATE TABLE IF NOT EXISTS engine.identity (only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),"
    " installation text NOT NULL, name text NOT NULL, furnishing text NOT NULL)",
)

FIND_IDENTITY = "SELECT installation, name, furnishing FROM engine.identity"
NOTE_IDENTITY = (
    "INSERT INTO engine.identity (installation, name, furnishing) VALUES ($1, $2, $3)"
    " ON CONFLICT (only_one) DO UPDATE SET furnishing = excluded.furnishing"
)
HAS_CATALOG = "SELECT to_regclass('public.installation') IS NOT NULL"

# It always writes, so that it waits for a standby: after a lost first try, nobody knows whether a standby has it.
NOTE_RECOVERED = "INSERT INTO engine.recovered (gid) VALUES ($1) ON CONFLICT (gid) DO UPDATE SET at = excluded.at"
ALL_RECOVERED = "SELECT gid, at FROM engine.recovered"
TAKE_RECOVERED = "INSERT INTO engine.recovered (gid, at) VALUES ($1, $2::timestamptz) ON CONFLICT DO NOTHING"
FIND_RECOVERED = "SELECT 1 FROM engine.recovered WHERE gid = $1"
# The request looks for its own within seconds; a client that was told to ask later, within a day.
EXPIRE_RECOVERED = "DELETE FROM engine.recovered WHERE at < now() - interval '25 hours'"
