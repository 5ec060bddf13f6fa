"""Records that commit together with a tenant's transaction, which the tenant can neither read, forge nor block.

They live in the schema `tuplegate` of every database, which belongs to the service. The tenant's own connection writes
them, since only it can commit them with the tenant's data; it does so through functions that run with the owner's
rights and take a MAC, so that a statement of the tenant's cannot call them. Parameters, unlike statements, are visible
to nobody else.

Nothing here is read inside a serializable transaction: a gap that one transaction has looked at and another then fills
counts as a conflict, and all keys share a few pages. Two who want the same record meet in its unique index instead.
"""

import hashlib
import hmac
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tuplegate.engine.postgres.connection import Command

_FUNCTION: Final = "LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog"

SCHEMA: Final = (
    "CREATE SCHEMA IF NOT EXISTS tuplegate",
    "REVOKE ALL ON SCHEMA tuplegate FROM PUBLIC",
    "CREATE TABLE IF NOT EXISTS tuplegate.secret"
    " (only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one), value bytea)",
    "CREATE TABLE IF NOT EXISTS tuplegate.begun"
    " (id text PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp())",
    "CREATE TABLE IF NOT EXISTS tuplegate.verdict"
    " (id text PRIMARY KEY, state text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())",
    "CREATE TABLE IF NOT EXISTS tuplegate.answer"
    " (route text, key text, request text NOT NULL, body bytea NOT NULL,"
    " at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (route, key))",
    "REVOKE ALL ON ALL TABLES IN SCHEMA tuplegate FROM PUBLIC",
    f"""CREATE OR REPLACE FUNCTION tuplegate.authenticate(message text, mac text) RETURNS void {_FUNCTION} AS $$
    DECLARE secret bytea;
    BEGIN
      SELECT value INTO STRICT secret FROM tuplegate.secret;
      IF mac IS DISTINCT FROM encode(sha256(secret || sha256(secret || convert_to(message, 'UTF8'))), 'hex') THEN
        RAISE insufficient_privilege USING MESSAGE = 'permission denied for schema tuplegate';
      END IF;
    END $$""",
    f"""CREATE OR REPLACE FUNCTION tuplegate.begin(id text, mac text) RETURNS boolean {_FUNCTION} AS $$
    BEGIN
      PERFORM tuplegate.authenticate('begin/' || id, mac);
      INSERT INTO tuplegate.begun VALUES (id) ON CONFLICT DO NOTHING;
      RETURN FOUND;
    END $$""",
    f"""CREATE OR REPLACE FUNCTION tuplegate.decide(id text, state text, mac text) RETURNS boolean {_FUNCTION} AS $$
    BEGIN
      PERFORM tuplegate.authenticate('decide/' || state || '/' || id, mac);
      INSERT INTO tuplegate.verdict VALUES (id, state) ON CONFLICT DO NOTHING;
      RETURN FOUND;
    END $$""",
    f"""CREATE OR REPLACE FUNCTION tuplegate.look(id text, mac text, OUT state text, OUT age_s float8) {_FUNCTION} AS $$
    BEGIN
      PERFORM tuplegate.authenticate('look/' || id, mac);
      SELECT v.state INTO state FROM tuplegate.verdict v WHERE v.id = look.id;
      SELECT extract(epoch FROM clock_timestamp() - b.at) INTO age_s FROM tuplegate.begun b WHERE b.id = look.id;
    END $$""",
    f"""CREATE OR REPLACE FUNCTION tuplegate.keep(route text, key text, request text, body text, mac text)
    RETURNS boolean {_FUNCTION} AS $$
    BEGIN
      PERFORM tuplegate.authenticate('keep/' || route || '/' || request || '/' || key, mac);
      INSERT INTO tuplegate.answer VALUES (route, key, request, decode(body, 'hex')) ON CONFLICT DO NOTHING;
      RETURN FOUND;
    END $$""",
    f"""CREATE OR REPLACE FUNCTION tuplegate.kept(route text, key text, mac text, OUT request text, OUT body text)
    {_FUNCTION} AS $$
    BEGIN
      PERFORM tuplegate.authenticate('kept/' || route || '/' || key, mac);
      SELECT a.request, encode(a.body, 'hex') INTO request, body FROM tuplegate.answer a
       WHERE a.route = kept.route AND a.key = kept.key;
    END $$""",
    "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA tuplegate FROM PUBLIC",
)
"""Makes the schema; every statement may be repeated."""

TABLES: Final = ("answer", "begun", "verdict")

EMPTY: Final = f"TRUNCATE {', '.join(f'tuplegate.{table}' for table in TABLES)}"

EXPIRE = tuple(f"DELETE FROM tuplegate.{table} WHERE at < clock_timestamp() - interval '25 hours'" for table in TABLES)
"""Removes what nobody may ask for any more; in one transaction, so that nobody sees a part of it."""


def rights(roles: str) -> list[str]:
    """What the tenant's roles need to call the functions, the one that checks aside."""
    return [
        f"GRANT USAGE ON SCHEMA tuplegate TO {roles}",
        f"GRANT EXECUTE ON FUNCTION tuplegate.begin(text, text), tuplegate.decide(text, text, text),"
        f" tuplegate.look(text, text), tuplegate.keep(text, text, text, text, text),"
        f" tuplegate.kept(text, text, text) TO {roles}",
    ]


@lru_cache(maxsize=10_000)
def database_secret(secret: bytes, database: str) -> bytes:
    """Every database has its own, so that one that leaks with a copy of a database opens no other."""
    return hmac.digest(secret, f"records/{database}".encode(), hashlib.sha256)


@dataclass(frozen=True, slots=True)
class Records:
    """The functions above as commands, for one database."""

    secret: bytes

    def begin(self, id: str) -> Command:
        return self._call("tuplegate.begin($1, $2)", f"begin/{id}", id)

    def decide(self, id: str, state: str) -> Command:
        return self._call("tuplegate.decide($1, $2, $3)", f"decide/{state}/{id}", id, state)

    def look(self, id: str) -> Command:
        return self._call("* FROM tuplegate.look($1, $2)", f"look/{id}", id)

    def keep(self, route: str, key: str, request: str, body: bytes) -> Command:
        text = f"keep/{route}/{request}/{key}"
        return self._call("tuplegate.keep($1, $2, $3, $4, $5)", text, route, key, request, body.hex())

    def kept(self, route: str, key: str) -> Command:
        return self._call("* FROM tuplegate.kept($1, $2, $3)", f"kept/{route}/{key}", route, key)

    def _call(self, call: str, message: str, *params: str) -> Command:
        inner = hashlib.sha256(self.secret + message.encode()).digest()
        mac = hashlib.sha256(self.secret + inner).hexdigest()
        # Always inside a block: a tenant's transaction, or one at READ COMMITTED.
        texts = [*(param.encode() for param in params), mac.encode()]
        return Command(f"SELECT {call}".encode(), texts, begins=False)
