"""Keeps databases within their bounds.

The size is measured from outside, once a second or so. In a full database every statement that may write runs in a
block, and before the commit the engine is asked for its effect: if it added or changed rows, or began files of some
size, and the database is still too large, it is rolled back. So every way to delete, truncate, drop and vacuum still
works, and makes room at once. A statement that makes its database grow far beyond its bound is ended. Code that would
run after the question, at the commit itself or inside of VACUUM, could evade it: so a statement that could run such
code is refused. The engine has no bound of its own for this, and rights do not help: a table's owner may always write
to it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tuplegate.engine import port
from tuplegate.engine.libpq.connections.commands import Command
from tuplegate.engine.libpq.connections.server_errors import check
from tuplegate.engine.libpq.pools.pool import Member
from tuplegate.engine.postgres.safety.database_state import DatabaseState
from tuplegate.engine.run.ends import MAKE_ROOM, explain_full

_SHARED_ROWS_FREE, _SHARED_ROW_BYTES = 1000, 128
SIZES_SQL = f"""
SELECT d.datname, pg_database_size(d.oid),
       {_SHARED_ROW_BYTES}
       * greatest((SELECT count(*) FROM pg_shdepend s WHERE s.dbid = d.oid) - {_SHARED_ROWS_FREE}, 0)
  FROM pg_database d WHERE d.datname = ANY (string_to_array($1, ','))
"""
"""The bytes of files, and of rows in a catalog that all databases share: one for each right of a role to an object."""

_SLACK_BYTES = 64 * 2**10
"""The bytes that new files may take: making an empty table, or emptying one, begins some."""
_SLACK_ROWS = 2000
"""The rows that catalogs may take: an empty table takes some twenty."""

TAKES_ROOM = f"""
CREATE FUNCTION tuplegate.takes_room(bytes_max bigint, newest oid) RETURNS boolean LANGUAGE sql VOLATILE
RETURN pg_database_size(current_database()) > bytes_max AND (
  EXISTS (
    SELECT FROM pg_class
     WHERE relkind IN ('r', 'm', 't') AND relpersistence <> 't'
       AND (oid >= 16384 OR oid = 'pg_largeobject'::regclass OR relkind = 't' AND relname <> 'pg_toast_2619')
       AND pg_stat_get_xact_tuples_inserted(oid) + pg_stat_get_xact_tuples_updated(oid) > 0
  ) OR (
    SELECT sum(pg_stat_get_xact_tuples_inserted(oid)) FROM pg_class
     WHERE relkind = 'r' AND oid < 16384 AND relname !~ '^pg_statistic'
  ) > {_SLACK_ROWS} OR coalesce((
    SELECT sum(pg_relation_size(oid)) FROM pg_class WHERE relfilenode > newest AND relpersistence <> 't'
  ), 0) > {_SLACK_BYTES})
"""
"""Whether the current transaction takes room in a database that is too large.

That is: it added or changed rows, in tables, in large objects, or in the storage for long values of any catalog, except
for the engine's statistics; or it added many rows to catalogs; or it began files, by an index or by rewriting a table.
Temporary objects do not count: they go with the request.
"""

# The engine counts rows as of the last time it passed its counts on, so it must do that first.
_BEFORE = Command(b"SELECT pg_catalog.max(relfilenode), pg_catalog.pg_stat_force_next_flush() FROM pg_catalog.pg_class")
_TAKES_ROOM = b"SELECT tuplegate.takes_room($1, $2)"
_RUNS_CODE = b"SELECT tuplegate.runs_code_at_commit($1)"

# Functions that a tenant can have made: only the server and its extensions have any in C.
_OWN_CODE = """own AS (
  SELECT p.oid FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
   WHERE p.oid >= 16384
     AND l.lanname NOT IN ('internal', 'c')
), computed AS (
  SELECT d.classid, d.objid FROM pg_depend d
   WHERE d.refobjid >= 16384
     AND (d.refclassid = 'pg_proc'::regclass
          AND d.refobjid = ANY (ARRAY(SELECT own.oid FROM own))
       OR d.refclassid = 'pg_operator'::regclass
       OR d.refclassid = 'pg_type'::regclass
          AND EXISTS (SELECT FROM pg_type t WHERE t.oid = d.refobjid
                       AND t.typtype NOT IN ('b', 'e')))
)"""

RUNS_CODE_AT_COMMIT = f"""
CREATE FUNCTION tuplegate.runs_code_at_commit(bytes_max bigint) RETURNS boolean LANGUAGE sql VOLATILE
BEGIN ATOMIC
WITH {_OWN_CODE}
SELECT pg_database_size(current_database()) > bytes_max AND (
  EXISTS (SELECT FROM pg_cursors c WHERE c.is_holdable) OR
  EXISTS (
    SELECT FROM pg_trigger t
     WHERE t.tgdeferrable
       AND (pg_stat_get_xact_tuples_inserted(t.tgrelid) > 0
         OR pg_stat_get_xact_tuples_updated(t.tgrelid) > 0
         OR pg_stat_get_xact_tuples_deleted(t.tgrelid) > 0)
       AND (t.tgfoid >= 16384
         OR t.tgconstrindid = ANY (ARRAY(SELECT computed.objid FROM computed))
         OR EXISTS (SELECT FROM pg_cast c
                     WHERE c.castfunc = ANY (ARRAY(SELECT own.oid FROM own))))));
END
"""
"""Whether code of the tenant's own may run at the commit, in a database that is too large.

Deferred constraint triggers do, and queries of cursors WITH HOLD. Deferred triggers are listed nowhere, but every row
that is added, changed or removed counts in the engine's counters of its table, and TRUNCATE, which resets those, is
refused while anything is deferred there. Deferred foreign and unique keys are checked by the engine's own code, unless
a cast or an index over an expression is the tenant's.
"""

VACUUM_RUNS_CODE = f"""
CREATE FUNCTION tuplegate.vacuum_runs_code() RETURNS boolean LANGUAGE sql STABLE
BEGIN ATOMIC
WITH {_OWN_CODE}
SELECT EXISTS (
  SELECT FROM computed
   WHERE computed.classid = 'pg_statistic_ext'::regclass
      OR computed.classid = 'pg_class'::regclass
         AND EXISTS (SELECT FROM pg_index i WHERE i.indexrelid = computed.objid));
END
"""
"""Whether VACUUM can run code of the tenant's own: that of indexes and statistics over expressions."""

_FAR_BYTES = 64 * 2**20


_CODE_AT_COMMIT = (
    "Until it is smaller, nothing may run that runs deferred triggers or queries of cursors WITH HOLD at the commit."
    " TRUNCATE and DROP run none."
)
CODE_IN_VACUUM = (
    "Until it is smaller, VACUUM may not compute indexes or statistics with functions of the database's own. Drop those"
    " indexes, or TRUNCATE or DROP tables."
)


DISK_SHORT, DISK_LOW = -1, -2
"""Stand for the bound of a database if the disk has little room left, or hardly any."""

FREEING = frozenset({"delete", "truncate", "drop", "vacuum", "alter"})
"""First words of statements that free room, or may."""
TAKING = frozenset({"insert", "update", "merge", "create", "refresh", "reindex", "cluster", "copy"})
"""First words of statements that take room, even if they are rolled back."""


def check_keyword(bound: int, keyword: str, *, reads: bool) -> None:
    """Raise if a statement must not even begin: it takes room on a disk that has little."""
    if bound < 0 and (keyword in TAKING or (bound == DISK_LOW and not reads and keyword not in FREEING)):
        raise explain_full(bound)


@dataclass(slots=True)
class SizeCheck:
    """The check of one request in a database that is full at `bound` bytes. `newest` is the number of the newest file
    from before it."""

    state: DatabaseState
    bound: int
    newest: bytes

    @classmethod
    async def before(cls, member: Member, state: DatabaseState, bound: int) -> "SizeCheck":
        """Prepare a check. Call it outside of the transaction."""
        return cls(state, bound, await _ask(member, _BEFORE))

    async def check(self, member: Member) -> None:
        """Check before the commit. Raises if the transaction took room in a database that is too large."""
        if await _ask(member, Command(_TAKES_ROOM, [str(self.bound).encode(), self.newest], begins=False)) == b"t":
            raise self._refuse(MAKE_ROOM)
        if await _ask(member, Command(_RUNS_CODE, [str(self.bound).encode()], begins=False)) == b"t":
            raise self._refuse(_CODE_AT_COMMIT)

    def _refuse(self, hint: str) -> port.StatementFailed:
        if self.bound >= 0 and self.state.full_at is None:  # it was measured meanwhile, before it grew
            self.state.full_at = self.bound
        self.state.refusals += 1
        return explain_full(self.bound, hint)


async def vacuum_runs_code(member: Member) -> bool:
    return await _ask(member, Command(b"SELECT tuplegate.vacuum_runs_code()")) == b"t"


async def _ask(member: Member, question: Command) -> bytes:
    results = await member.run(question)
    check(results)
    return results[0].get_value(0, 0) or b""


class SizeWatch:
    """The bounds of databases, and their last sizes. `bounds` has the databases that have one.

    `disk` is DISK_SHORT or DISK_LOW if the disk has little room.
    """

    def __init__(self) -> None:
        self.disk: int | None = None
        self.bounds: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        self._shared: dict[str, int] = {}

    def bound(self, database: str, bytes_max: int | None) -> None:
        if bytes_max is None:
            self.bounds.pop(database, None)
            self._seen.pop(database, None)
            self._shared.pop(database, None)
        else:
            self.bounds[database] = bytes_max

    def note(self, measured: dict[str, tuple[int, int]], end: Callable[[str], None]) -> None:
        """Take the measured sizes: of each database the bytes of its files, and those in shared catalogs.

        `end` is called for a database that is far beyond its bound and still grows.
        """
        sizes = {database: files + shared for database, (files, shared) in measured.items()}
        self._shared |= {database: shared for database, (_, shared) in measured.items()}
        for database, size in sizes.items():
            bound = self.bounds.get(database)
            if bound is not None and size > bound + _FAR_BYTES and size > self._seen.get(database, size):
                end(database)
        self._seen |= sizes

    def find_full_at(self, database: str) -> int | None:
        """Return the bound of the database's files if it was full when last measured, or the bound of the disk; None
        otherwise."""
        if self.disk is not None:
            return self.disk
        bound = self.bounds.get(database)
        if bound is None or self._seen.get(database, 0) <= bound:
            return None
        return max(0, bound - self._shared.get(database, 0))
