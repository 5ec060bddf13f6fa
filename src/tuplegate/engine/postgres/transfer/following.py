"""Keeps the copy of a database in use up to date, by logical decoding, until the source is silent.

A slot at the source collects all commits from before the copy on, and the plugin `pgoutput` decodes them. The service
itself reads and applies them: the two engines need not reach each other. The slot is made first, then a snapshot that
includes every commit before the slot; commits of the slot that the snapshot already includes are skipped, by their
transaction number.

Decoding does not carry everything. Sequences, tables without a primary key, unlogged tables and materialized views are
brought when the source is silent. If definitions have changed meanwhile, or there are large objects, the copy is
worthless, and MoveFailed says so.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import structlog

from tuplegate.engine import port
from tuplegate.engine.libpq.values.quoting import quote, quote_text
from tuplegate.engine.postgres.rights import roles
from tuplegate.engine.postgres.service.admin import METADATA_DATABASE, AdminSession, terminate
from tuplegate.engine.postgres.service.scratch_names import find_schemas
from tuplegate.engine.postgres.transfer import definitions
from tuplegate.engine.postgres.transfer.carrying import Side, dump_and_restore
from tuplegate.engine.postgres.transfer.comparing import SEQUENCES, compare_sides, states_of
from tuplegate.engine.postgres.transfer.pgoutput import Changes, Snapshot, Step, Unreadable
from tuplegate.engine.postgres.transfer.record_copies import bring_notes

_log = structlog.get_logger()

PUBLICATION = "tuplegate_move"
_PORTION = 500
_PORTION_BYTES = 8 * 2**20
_CHANGE_BYTES_MAX = 64 * 2**20
"""The bound on one change, that is one row, which is read and written as a whole."""
_CHANGES_AT_ONCE = 20_000
_OLDER_END_S = 30.0
_OLDER = f"a transaction at its engine does not end within {_OLDER_END_S:g} s"
_SLOT_END_S = 10.0
_HELD_S = 10.0
"""How long work may make no progress while requests for the database are held."""
_TICK_S = 0.05

_KEPT = (
    "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint FROM pg_replication_slots WHERE slot_name = $1"
)
_READER = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1 AND active"
_CAN = """
SELECT current_setting('wal_level') = 'logical',
       (SELECT count(*) FROM pg_replication_slots) < current_setting('max_replication_slots')::int,
       (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user)
"""
# Triggers and rules of these kinds act on applied changes, too: they would repeat their effects from the source.
_OBSTACLES = """
SELECT 'it has large objects' WHERE EXISTS (SELECT FROM pg_largeobject_metadata)
 UNION ALL
SELECT format('the trigger %I of the table %s is ENABLE ALWAYS or ENABLE REPLICA', tgname, tgrelid::regclass)
  FROM pg_trigger WHERE tgenabled IN ('A', 'R')
 UNION ALL
SELECT format('the rule %I of the table %s is ENABLE ALWAYS or ENABLE REPLICA', rulename, ev_class::regclass)
  FROM pg_rewrite WHERE ev_enabled IN ('A', 'R')
 LIMIT 1
"""
# Tables whose rows have a primary key, or a unique index chosen as identity, and whether the publication has them; and
# the other tables.
_TABLES = f"""
SELECT c.oid::regclass::text,
       c.relpersistence = 'p' AND EXISTS (
         SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
            AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END),
       EXISTS (SELECT FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
                WHERE r.prrelid = c.oid AND p.pubname = '{PUBLICATION}')
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'r' AND c.relpersistence <> 't' AND {{own}} ORDER BY 1
"""
_FIXED = """
SELECT nspname, relname, attname
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE attidentity = 'a' AND NOT attisdropped
"""
# The last columns differ between a view that was refreshed and one that was not.
_VIEWS = """
SELECT c.oid::regclass::text, c.relfilenode, s.n_tup_ins, s.n_tup_del
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
 WHERE c.relkind = 'm' AND c.relispopulated AND {own} ORDER BY c.oid
"""
# With each change, the bytes of the next ones.
_CHANGES = f"""
DECLARE changes NO SCROLL CURSOR FOR
SELECT CASE WHEN length(data) <= {_CHANGE_BYTES_MAX} THEN encode(data, 'hex') END,
       coalesce(sum(length(data)) OVER (ROWS BETWEEN 1 FOLLOWING AND {_PORTION} FOLLOWING), 0)
  FROM pg_logical_slot_get_binary_changes(
         $1, NULL, {_CHANGES_AT_ONCE}, 'proto_version', '1', 'publication_names', '{PUBLICATION}')
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a move: the time that the copy may take, the time that it may make no progress, and the bytes of
    its log that the source's engine may keep for it."""

    timeout_s: float = 3600.0
    stall_s: float = 300.0
    log_bytes_max: int = 16 * 2**30


def name_slot(source: str) -> str:
    return f"tuplegate_move_{source}"


async def stop_following(source: Side) -> None:
    """Remove slot and publication from a source, if they exist. The slot makes the engine keep its log of changes.

    The dumping role must be let in: it owns the publication, so that the tenant cannot change what is published. Raises
    EngineBusy if the slot is still being read.
    """
    slot = name_slot(source.database)
    deadline = asyncio.get_running_loop().time() + _SLOT_END_S
    async with source.watcher() as session:
        # A reader whose worker was killed continues until it has something to send.
        while reader := await session.fetch(_READER, slot):
            if asyncio.get_running_loop().time() > deadline:
                raise port.EngineBusy("the log of changes is still being read; that is ended later")
            await terminate(session, source.database, int(str(reader[0][0])))
            await asyncio.sleep(_TICK_S)
    async with source.session() as session:
        await session.fetch(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1", slot
        )
    async with source.tenant(roles.name_dump_role(source.database)) as session:
        await session.fetch(f"DROP PUBLICATION IF EXISTS {PUBLICATION}")


class Follower:
    """Follows one source. See the module's text. `role` may write the tenant's objects at the destination, and read the
    source like the dumping role. `limits` are those of a move."""

    def __init__(self, source: Side, destination: Side, role: str, limits: Limits) -> None:
        self._source = source
        self._destination = destination
        self._role = role
        self._limits = limits
        self._late: list[str] = []
        self._views: list[tuple[str | None, ...]] = []
        self._definitions = ""
        self._changes = Changes(Snapshot(0, frozenset()))
        self._noted_at: str | None = None

    async def begin(self) -> None:
        """Make publication and slot. Raises NotSupported if the source cannot be followed."""
        async with self._source.session() as session:
            [(logical, has_slot, may)] = await session.fetch(_CAN)
            for wrong, reason in (
                (logical != "t", "wal_level is not logical at its engine"),
                (has_slot != "t", "all replication slots of its engine are in use"),
                (may != "t", "the service's role may not replicate at its engine"),
            ):
                if wrong:
                    raise port.NotSupported(reason)
            await _check_obstacles(session)
            tables = await session.fetch(_TABLES.format(own=await self._own_schemas(session)))
        told = [f"ONLY {name}" for name, has_key, _ in tables if has_key == "t"]
        await stop_following(self._source)
        async with self._source.tenant(roles.name_dump_role(self._source.database)) as session:
            await session.fetch(f"CREATE PUBLICATION {PUBLICATION}" + (f" FOR TABLE {', '.join(told)}" if told else ""))
        async with replace(self._source, stall_s=2 * _OLDER_END_S).patient() as session:
            # It waits for all writing transactions on the engine, and that is a wait for locks.
            await session.fetch("SELECT set_config('lock_timeout', $1, false)", f"{_OLDER_END_S:g}s")
            try:
                await session.fetch(
                    "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", name_slot(self._source.database)
                )
            except port.NotInTime as failure:
                raise port.NotSupported(_OLDER) from failure

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[str]:
        """Yield a snapshot of the source, for its copy: it includes every commit before the slot."""
        async with self._source.patient() as session:
            [(end,)] = await session.fetch("SELECT pg_snapshot_xmax(pg_current_snapshot())")
            deadline = asyncio.get_running_loop().time() + _OLDER_END_S
            # A commit can be in the log before the slot's start, and not be visible yet.
            over = "SELECT pg_snapshot_xmin(pg_current_snapshot()) >= $1::text::xid8"
            while (await session.fetch(over, end))[0][0] != "t":
                if asyncio.get_running_loop().time() > deadline:
                    raise port.NotSupported(_OLDER)
                await asyncio.sleep(_TICK_S)
            await session.fetch("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            [(seen, exported)] = await session.fetch("SELECT pg_current_snapshot(), pg_export_snapshot()")
            await self._look_around(session, Snapshot.parse(str(seen)))
            yield str(exported)

    async def _look_around(self, session: AdminSession, seen: Snapshot) -> None:
        """Note the state at the moment of the copy. Data that are not published from then on are brought at the end: a
        table may have been made since the publication was."""
        await _check_obstacles(session)
        own = await self._own_schemas(session)
        tables = await session.fetch(_TABLES.format(own=own))
        self._late = [str(name) for name, has_key, is_told in tables if (has_key, is_told) != ("t", "t")]
        self._views = await session.fetch(_VIEWS.format(own=own))
        fixed = await session.fetch(_FIXED)
        names = ((quote(str(schema)), quote(str(table)), quote(str(column))) for schema, table, column in fixed)
        self._changes = Changes(seen, frozenset((f"{schema}.{table}", column) for schema, table, column in names))
        self._definitions = await self._find_definitions(session)

    async def _own_schemas(self, session: AdminSession) -> str:
        return definitions.own_schemas(await find_schemas(session, self._source.secret))

    async def _find_definitions(self, session: AdminSession) -> str:
        return await definitions.find(session, await find_schemas(session, self._source.secret))

    async def catch_up(self) -> int:
        """Apply the changes committed at the source since the last call; return their number."""
        count = 0
        await self.check_log()
        async with self._source.patient() as session:
            await session.fetch("BEGIN")
            await session.fetch(_CHANGES.replace("$1", quote_text(name_slot(self._source.database))))
            async with self._destination.tenant(self._role) as writer:
                async for changes in _portions(session):
                    try:
                        steps = [step for change in changes if (step := self._changes.read(change))]
                    except (Unreadable, KeyError) as exc:
                        raise port.MoveFailed("a change at the source could not be read", detail=str(exc)) from exc
                    await _apply(writer, steps)
                    count += len(steps)
            await session.fetch("COMMIT")
        return count

    async def copy(self) -> None:
        """Bring all data of one moment, to which `catch_up` then adds."""
        source, destination, timeout_s = self._source, self._destination, self._limits.timeout_s
        async with self.snapshot() as moment:
            await dump_and_restore(source, destination, self._role, timeout_s, snapshot=moment, check=self.check_log)

    async def check_log(self) -> None:
        """Raise NoProgress if the source's engine keeps too much of its log for this move."""
        async with self._source.watcher() as session:
            rows = await session.fetch(_KEPT, name_slot(self._source.database))
        if rows and int(str(rows[0][0])) > self._limits.log_bytes_max:
            raise port.NoProgress(
                f"its engine would have to keep more than {self._limits.log_bytes_max >> 20} MiB of its log for it,"
                " which is move_log_mb_max"
            )

    async def finish(self) -> None:
        """Bring the rest from a silent source. Raises MoveFailed if the copy differs."""
        self._source = replace(self._source, stall_s=min(_HELD_S, self._source.stall_s))
        self._destination = replace(self._destination, stall_s=min(_HELD_S, self._destination.stall_s))
        async with AdminSession(self._source.connector, METADATA_DATABASE) as session:
            # A commit that did not wait for the disk is decoded only once it is there.
            await session.fetch("SELECT pg_logical_emit_message(true, 'tuplegate', '')")
        while await self.catch_up():
            pass
        async with self._source.session() as session:
            own = await self._own_schemas(session)
            if await self._find_definitions(session) != self._definitions:
                raise port.MoveFailed("definitions have changed while the database was copied")
            await _check_obstacles(session)
            sequences = [str(row[0]) for row in await session.fetch(SEQUENCES.format(own=own))]
            views = [str(view[0]) for view in await session.fetch(_VIEWS.format(own=own)) if view not in self._views]
        await self._set_sequences(sequences)
        if self._late:
            async with self._destination.tenant(self._role) as writer:
                await _apply(writer, [(f"DELETE FROM ONLY {name}", ()) for name in self._late])
            timeout_s = self._limits.timeout_s
            await dump_and_restore(self._source, self._destination, self._role, timeout_s, only=self._late)
        if views:
            async with self._destination.tenant(self._role) as writer:
                for view in views:
                    await writer.fetch(f"REFRESH MATERIALIZED VIEW {view}")
        await compare_sides(self._source, self._destination, self._role)
        await self.bring_notes()

    async def bring_notes(self) -> None:
        """Bring what is on record of the source's transactions, and is not here."""
        self._noted_at = await bring_notes(self._source, self._destination, self._noted_at)

    async def _set_sequences(self, names: list[str]) -> None:
        if not names:
            return
        async with self._source.tenant(roles.name_dump_role(self._source.database)) as session:
            rows = await session.fetch(states_of(names))
        async with self._destination.tenant(self._role) as writer:
            await _apply(writer, [("SELECT setval($1::text::regclass, $2::bigint, $3::bool)", row) for row in rows])


async def _check_obstacles(session: AdminSession) -> None:
    if found := await session.fetch(_OBSTACLES):
        raise port.NotSupported(str(found[0][0]))


async def _portions(session: AdminSession) -> AsyncIterator[list[bytes]]:
    """Yield the cursor's changes, so many at once that memory stays bounded: a row can be large."""
    changes: list[bytes] = []
    size, ahead = 0, _PORTION_BYTES + 1
    while rows := await session.fetch(f"FETCH {_PORTION if ahead <= _PORTION_BYTES else 1} FROM changes"):
        for data, _ in rows:
            if data is None:
                raise port.MoveFailed(f"a change at the source has more than {_CHANGE_BYTES_MAX >> 20} MiB")
            changes.append(bytes.fromhex(data))
            size += len(changes[-1])
        ahead = int(str(rows[-1][1]))
        if size > _PORTION_BYTES or len(changes) >= _PORTION:
            yield changes
            changes, size = [], 0
    if changes:
        yield changes


async def _apply(writer: AdminSession, steps: list[Step]) -> None:
    """Apply changes in one transaction without triggers and foreign keys, whose effects come as changes themselves."""
    if not steps:
        return
    try:
        await writer.run_atomically([("SELECT set_config('session_replication_role', 'replica', true)", ()), *steps])
    except port.StatementFailed as failure:
        raise port.MoveFailed(
            "a change at the source could not be applied to the copy", detail=failure.message
        ) from failure


async def try_to_stop(source: Side) -> None:
    """Stop following after a move. If that fails, the clean-up of leftovers tries again."""
    try:
        await stop_following(source)
    except port.EngineFailure as failure:
        _log.warning("a source is still followed", database=source.database, reason=str(failure))
