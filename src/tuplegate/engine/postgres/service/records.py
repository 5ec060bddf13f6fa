"""Records that commit together with a tenant's transaction, which the tenant can neither read, forge nor block.

They live in the schema `tuplegate` of every database and belong to a role that owns nothing else. The tenant's own
connection writes them, since only it can commit them with the tenant's data. It does so through functions that run with
the rights of that role and demand a MAC, so that a statement of the tenant's cannot call them. Parameters, unlike
statements, are visible to nobody else.

The functions are parsed when they are made (BEGIN ATOMIC): at run time they look up no name, so nothing that a tenant
defines can take the place of a type, an operator or a function in them. A call with a wrong MAC does nothing and
returns NULL.

No record is read inside a serializable transaction: if one transaction has seen a gap and another then fills it, that
counts as a conflict, and all keys share a few pages. Two transactions with the same record meet in its unique index
instead.

A transaction that will record an answer claims the answer's key before its first statement, by a lock that it holds
until it is committed or rolled back: a prepared transaction keeps the lock, even through a restart of the engine. The
next transaction with that key waits for it. If nobody has the lock, every transaction with that key is decided.
"""

import hashlib
from dataclasses import dataclass
from typing import Final

from tuplegate.engine.libpq.connections.commands import Command
from tuplegate.engine.libpq.values.quoting import quote
from tuplegate.engine.port import Outcome, Promise, TransactionResult
from tuplegate.engine.postgres.rights.owners import Owners

_DEFINER: Final = "LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp"

TABLES: Final = ("answer", "begun", "verdict")

_MAKE_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS tuplegate.secret"
    " (only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one), value bytea)",
    "CREATE TABLE IF NOT EXISTS tuplegate.begun"
    " (id text PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp())",
    "CREATE TABLE IF NOT EXISTS tuplegate.verdict"
    " (id text PRIMARY KEY, state text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())",
    "CREATE TABLE IF NOT EXISTS tuplegate.answer"
    " (route text, key text, request text NOT NULL, body bytea NOT NULL,"
    " at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (route, key))",
)

_IS_GENUINE: Final = """
CREATE FUNCTION tuplegate.is_genuine(message text, mac text) RETURNS boolean LANGUAGE sql STABLE
RETURN EXISTS (
  SELECT FROM tuplegate.secret s
   WHERE mac = encode(sha256(s.value || sha256(s.value || convert_to(message, 'UTF8'))), 'hex')
)
"""

_FUNCTIONS: Final = {
    "begin(text, text)": f"""
CREATE FUNCTION tuplegate.begin(id text, mac text) RETURNS boolean {_DEFINER}
BEGIN ATOMIC
  INSERT INTO tuplegate.begun (id) SELECT $1 WHERE tuplegate.is_genuine('begin/' || $1, $2)
  ON CONFLICT DO NOTHING RETURNING true;
END""",
    "decide(text, text, text)": f"""
CREATE FUNCTION tuplegate.decide(id text, state text, mac text) RETURNS boolean {_DEFINER}
BEGIN ATOMIC
  INSERT INTO tuplegate.verdict (id, state)
  SELECT $1, $2 WHERE tuplegate.is_genuine('decide/' || $2 || '/' || $1, $3)
  ON CONFLICT DO NOTHING RETURNING true;
END""",
    "look(text, text)": f"""
CREATE FUNCTION tuplegate.look(id text, mac text, OUT state text, OUT age_s float8) {_DEFINER}
BEGIN ATOMIC
  SELECT (SELECT v.state FROM tuplegate.verdict v WHERE v.id = $1),
         (SELECT extract(epoch FROM clock_timestamp() - b.at)::float8 FROM tuplegate.begun b WHERE b.id = $1)
   WHERE tuplegate.is_genuine('look/' || $1, $2);
END""",
    "keep(text, text, text, text, text)": f"""
CREATE FUNCTION tuplegate.keep(route text, key text, request text, body text, mac text) RETURNS boolean {_DEFINER}
BEGIN ATOMIC
  INSERT INTO tuplegate.answer (route, key, request, body)
  SELECT $1, $2, $3, decode($4, 'hex') WHERE tuplegate.is_genuine('keep/' || $1 || '/' || $3 || '/' || $2, $5)
  ON CONFLICT DO NOTHING RETURNING true;
END""",
    "kept(text, text, text)": f"""
CREATE FUNCTION tuplegate.kept(route text, key text, mac text, OUT request text, OUT body text, OUT kept_bytes bigint)
{_DEFINER}
BEGIN ATOMIC
  SELECT a.request, encode(a.body, 'hex'), pg_total_relation_size('tuplegate.answer'::regclass)
    FROM (SELECT) one LEFT JOIN tuplegate.answer a ON a.route = $1 AND a.key = $2
   WHERE tuplegate.is_genuine('kept/' || $1 || '/' || $2, $3);
END""",
    "claim(bigint, text)": f"""
CREATE FUNCTION tuplegate.claim(lock bigint, mac text) RETURNS void {_DEFINER}
BEGIN ATOMIC
  SELECT pg_advisory_xact_lock($1) WHERE tuplegate.is_genuine('claim/' || $1, $2);
END""",
    "is_decided(bigint, text)": f"""
CREATE FUNCTION tuplegate.is_decided(lock bigint, mac text) RETURNS boolean {_DEFINER}
BEGIN ATOMIC
  SELECT pg_try_advisory_xact_lock_shared($1) WHERE tuplegate.is_genuine('is_decided/' || $1, $2);
END""",
    "reached(text)": f"""
CREATE FUNCTION tuplegate.reached(mac text, OUT timeline text, OUT lsn pg_lsn) {_DEFINER}
BEGIN ATOMIC
  SELECT CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END,
         CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END
   WHERE tuplegate.is_genuine('reached', $1);
END""",
}
"""The functions by their signatures."""

_OF_POSITIONS: Final = (
    "pg_current_wal_insert_lsn()",
    "pg_last_wal_replay_lsn()",
    "pg_walfile_name(pg_lsn)",
)
"""Functions of the engine that tenants may not call."""

EMPTY: Final = f"TRUNCATE {', '.join(f'tuplegate.{table}' for table in TABLES)}"

EXPIRE = tuple(f"DELETE FROM tuplegate.{table} WHERE at < clock_timestamp() - interval '25 hours'" for table in TABLES)
"""Removes expired records; in one transaction, so that nobody sees a part of it."""

LOOSE: Final = f"""
SELECT t.name FROM (VALUES {", ".join(f"('{table}')" for table in TABLES)}) t (name)
 WHERE pg_total_relation_size(('tuplegate.' || t.name)::regclass) > 8 * 2 ^ 20
   AND pg_total_relation_size(('tuplegate.' || t.name)::regclass) > 2 * CASE t.name
       WHEN 'answer' THEN (SELECT coalesce(sum(200 + octet_length(body)), 0) FROM tuplegate.answer)
       WHEN 'begun' THEN (SELECT 200 * count(*) FROM tuplegate.begun)
       ELSE (SELECT 200 * count(*) FROM tuplegate.verdict) END
"""
"""Tables that take twice the room that their rows need: the room is what counts, so it must be freed."""

_COMMITTED: Final = Outcome.COMMITTED.value
_INSIST: Final = b"SELECT 1 OPERATOR(pg_catalog./) (%b IS TRUE)::pg_catalog.int4"
_INSIST_WITH_NUMBER: Final = _INSIST % b"tuplegate.decide($1, $2, $3)" + b", pg_catalog.pg_current_xact_id()"
NOT_FIRST: Final = "22012"
"""The SQLSTATE of a record that must be the first of its name and is not."""

SIGN_WITH: Final = """
INSERT INTO tuplegate.secret (value) VALUES (decode($1, 'hex'))
ON CONFLICT (only_one) DO UPDATE SET value = excluded.value
"""
"""Gives a database its secret."""


def write_furnishing(owners: Owners) -> list[str]:
    """Return the statements that make the records in a database. Each may be repeated."""
    records, service = quote(owners.records), quote(owners.service)
    tables = ", ".join(f"tuplegate.{table}" for table in ("secret", *TABLES))
    return [
        *_MAKE_TABLES,
        *(f"ALTER TABLE tuplegate.{table} OWNER TO {records}" for table in ("secret", *TABLES)),
        f"REVOKE ALL ON {tables} FROM PUBLIC",
        f"GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON {tables} TO {service}",
        _IS_GENUINE,
        f"ALTER FUNCTION tuplegate.is_genuine(text, text) OWNER TO {records}",
        "REVOKE ALL ON FUNCTION tuplegate.is_genuine(text, text) FROM PUBLIC",
        *(f"GRANT EXECUTE ON FUNCTION pg_catalog.{function} TO {records}" for function in _OF_POSITIONS),
        *_FUNCTIONS.values(),
        *(f"ALTER FUNCTION tuplegate.{signature} OWNER TO {records}" for signature in _FUNCTIONS),
    ]


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

    def claim(self, route: str, key: str) -> Command:
        """Return the command that claims the key, and waits while another transaction has it."""
        return self._lock("claim", route, key)

    def is_decided(self, route: str, key: str) -> Command:
        """Return the command that tells whether no transaction has claimed the key."""
        return self._lock("is_decided", route, key)

    def _lock(self, name: str, route: str, key: str) -> Command:
        lock = int.from_bytes(hashlib.sha256(self._sign(f"lock/{route}/{key}")).digest()[:8], signed=True)
        return self._call(f"tuplegate.{name}($1, $2)", f"{name}/{lock}", str(lock))

    def kept(self, route: str, key: str) -> Command:
        return self._call("* FROM tuplegate.kept($1, $2, $3)", f"kept/{route}/{key}", route, key)

    def reached(self) -> Command:
        return self._call("* FROM tuplegate.reached($1)", "reached")

    def write(self, promise: Promise, done: TransactionResult) -> list[Command]:
        """Return the records of a promise as commands; each returns whether it was the first."""
        commands = []
        if promise.id is not None:
            commands.append(self.decide(promise.id, _COMMITTED))
        if promise.keep is not None:
            keep = promise.keep
            commands.append(self.keep(keep.route, keep.key, keep.request, keep.body(done)))
        return commands

    def insist(self, promise: Promise, done: TransactionResult) -> list[Command]:
        """Return the same commands, made to fail with NOT_FIRST if another record was first."""
        return [
            Command(_INSIST % command.sql[7:], command.params, begins=False) for command in self.write(promise, done)
        ]

    def insist_with_number(self, id: str) -> Command:
        """Return the record that an id is committed, as a command that fails in the same way. Its second column is the
        engine's number of the transaction."""
        mac = self._sign(f"decide/{_COMMITTED}/{id}")
        return Command(_INSIST_WITH_NUMBER, [id.encode(), _COMMITTED.encode(), mac], begins=False)

    def _call(self, call: str, message: str, *params: str) -> Command:
        # Always inside a block: a tenant's transaction, or one at READ COMMITTED.
        texts = [*(param.encode() for param in params), self._sign(message)]
        return Command(f"SELECT {call}".encode(), texts, begins=False)

    def _sign(self, message: str) -> bytes:
        inner = hashlib.sha256(self.secret + message.encode()).digest()
        return hashlib.sha256(self.secret + inner).hexdigest().encode()
