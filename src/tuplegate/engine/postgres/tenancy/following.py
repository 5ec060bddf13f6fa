"""Keeps the copy of a database in use up to date, by logical decoding, until the source is silent.

A slot at the source gathers what is committed from before the copy is made, and the plugin `pgoutput` tells it. The
service itself reads it and applies it: the two engines need not reach each other. The slot comes first, then a snapshot
that has seen all that the slot does not tell; what the copy has seen of the rest is left out, by its number.

Decoding does not carry everything. Sequences, tables without a primary key, unlogged ones and materialized views are
brought when the source is silent; where definitions have changed meanwhile, or there are large objects, the copy counts
for nothing, and MoveFailed says so.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from tuplegate.engine.port import EngineFailure, MoveFailed, NotSupported, StatementFailed
from tuplegate.engine.postgres.own.admin import METADATA_DATABASE, AdminSession, TenantSession
from tuplegate.engine.postgres.own.owners import quote_text
from tuplegate.engine.postgres.tenancy import roles
from tuplegate.engine.postgres.tenancy.carrying import Side, dump_and_restore
from tuplegate.engine.postgres.tenancy.pgoutput import Changes, Snapshot, Step, Unreadable

_log = structlog.get_logger()

PUBLICATION = "tuplegate_move"
_PORTION = 500
_CHANGES_AT_ONCE = 20_000
_OLDER_END_S = 30.0
_TICK_S = 0.05

_CAN = """
SELECT current_setting('wal_level') = 'logical',
       (SELECT count(*) FROM pg_replication_slots) < current_setting('max_replication_slots')::int,
       (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user),
       EXISTS (SELECT FROM pg_largeobject_metadata)
"""
_OWN = "n.nspname !~ '^(pg_|information_schema$|tuplegate$|tuplegate_scratch_)'"
# Tables whose rows are told apart by a primary key, or by the unique index that was chosen for it; and the others.
_TABLES = f"""
SELECT c.oid::regclass::text, c.relpersistence = 'p' AND (
         SELECT count(*) > 0 FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid
            AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'r' AND c.relpersistence <> 't' AND {_OWN} ORDER BY 1
"""
_SEQUENCES = f"""
SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'S' AND c.relpersistence <> 't' AND {_OWN} ORDER BY 1
"""
_VIEWS = f"""
SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'm' AND c.relispopulated AND {_OWN} ORDER BY c.oid
"""
_CHANGES = f"""
DECLARE changes NO SCROLL CURSOR FOR SELECT encode(data, 'hex') FROM pg_logical_slot_get_binary_changes(
  $1, NULL, {_CHANGES_AT_ONCE}, 'proto_version', '1', 'publication_names', '{PUBLICATION}')
"""
_KEPT = (
    "SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    f" WHERE c.relpersistence <> 't' AND {_OWN}"
)
_IN_KEPT = {
    "pg_attribute": "attrelid",
    "pg_attrdef": "adrelid",
    "pg_index": "indrelid",
    "pg_inherits": "inhrelid",
    "pg_policy": "polrelid",
    "pg_rewrite": "ev_class",
    "pg_sequence": "seqrelid",
    "pg_trigger": "tgrelid",
    "pg_class": "oid",
}
_IN_NAMESPACE = {
    "pg_collation": "collnamespace",
    "pg_constraint": "connamespace",
    "pg_opclass": "opcnamespace",
    "pg_operator": "oprnamespace",
    "pg_proc": "pronamespace",
    "pg_statistic_ext": "stxnamespace",
    "pg_ts_config": "cfgnamespace",
    "pg_ts_dict": "dictnamespace",
    "pg_type": "typnamespace",
    "pg_namespace": "oid",
}
_WHOLE = {
    "pg_cast": "oid >= 16384",
    "pg_default_acl": "true",
    "pg_description": "objoid >= 16384",
    "pg_enum": "true",
    "pg_extension": "true",
    "pg_publication": f"pubname <> '{PUBLICATION}'",
}
_VOLATILE = (
    "{relpages,reltuples,relallvisible,relallfrozen,relfrozenxid,relminmxid,relfilenode,relispopulated,relhasindex}"
)


def _fingerprint() -> str:
    """Return a question for a fingerprint of all definitions of the tenant's: it differs where one of them differs."""
    conditions = {
        **{catalog: f"{column} IN ({_KEPT})" for catalog, column in _IN_KEPT.items()},
        **{
            catalog: f"{column} IN (SELECT n.oid FROM pg_namespace n WHERE {_OWN})"
            for catalog, column in _IN_NAMESPACE.items()
        },
        **_WHOLE,
    }
    parts = (
        f"SELECT md5('{catalog}' || (to_jsonb(t) - '{_VOLATILE}'::text[])::text) AS part"
        f" FROM {catalog} t WHERE {condition}"
        for catalog, condition in conditions.items()
    )
    return f"SELECT md5(string_agg(part, '' ORDER BY part)) FROM ({' UNION ALL '.join(parts)}) parts"


_FINGERPRINT = _fingerprint()


def name_slot(source: str) -> str:
    return f"tuplegate_move_{source}"


async def stop_following(source: Side, role: str | None = None) -> None:
    """Remove slot and publication from a source, if they are there. The slot keeps the engine's log of changes.

    `role` is one that has the tenant's rights, if not the tenant's own.
    """
    async with source.session() as session:
        await session.fetch(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1 AND NOT active",
            name_slot(source.database),
        )
    async with TenantSession(source.connector, source.secret, source.database, role) as session:
        await session.fetch(f"DROP PUBLICATION IF EXISTS {PUBLICATION}")


class Follower:
    """Follows one database. `role` may write what belongs to the tenant at the destination, and read at the source as
    the one that dumps does."""

    def __init__(self, source: Side, destination: Side, role: str) -> None:
        self._source = source
        self._destination = destination
        self._role = role
        self._late: list[str] = []
        self._fingerprint = ""
        self._changes = Changes(Snapshot(0, frozenset()))

    async def begin(self) -> None:
        """Make publication and slot. Raises NotSupported where the source cannot be followed."""
        async with self._source.session() as session:
            [(logical, has_slot, may, large)] = await session.fetch(_CAN)
            for wrong, reason in (
                (logical != "t", "wal_level is not logical at its engine"),
                (has_slot != "t", "all replication slots of its engine are in use"),
                (may != "t", "the service's role may not replicate at its engine"),
                (large == "t", "it has large objects"),
            ):
                if wrong:
                    raise NotSupported(reason)
            tables = await session.fetch(_TABLES)
        self._late = [str(name) for name, is_told in tables if is_told != "t"]
        told = [str(name) for name, is_told in tables if is_told == "t"]
        await stop_following(self._source)
        async with TenantSession(self._source.connector, self._source.secret, self._source.database) as session:
            await session.fetch(f"CREATE PUBLICATION {PUBLICATION}" + (f" FOR TABLE {', '.join(told)}" if told else ""))
        async with AdminSession(self._source.connector, self._source.database, patient=True) as session:
            await session.fetch(
                "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", name_slot(self._source.database)
            )

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[str]:
        """Take a snapshot of the source, for whoever copies it: it has seen all that the slot does not tell."""
        async with AdminSession(self._source.connector, self._source.database, patient=True) as session:
            [(end,)] = await session.fetch("SELECT pg_snapshot_xmax(pg_current_snapshot())")
            deadline = asyncio.get_running_loop().time() + _OLDER_END_S
            # A commit can be in the log, before the slot's beginning, and not be seen yet.
            over = "SELECT pg_snapshot_xmin(pg_current_snapshot()) >= $1::text::xid8"
            while (await session.fetch(over, end))[0][0] != "t":
                if asyncio.get_running_loop().time() > deadline:
                    raise NotSupported(f"a transaction at its engine does not end within {_OLDER_END_S:g} s")
                await asyncio.sleep(_TICK_S)
            await session.fetch("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            [(seen, exported)] = await session.fetch("SELECT pg_current_snapshot(), pg_export_snapshot()")
            self._changes = Changes(Snapshot.parse(str(seen)))
            [(self._fingerprint,)] = await session.fetch(_FINGERPRINT)  # type: ignore[assignment]
            yield str(exported)

    async def catch_up(self) -> int:
        """Apply what was committed at the source since the last time; return how many changes."""
        count = 0
        async with AdminSession(self._source.connector, self._source.database, patient=True) as session:
            await session.fetch("BEGIN")
            await session.fetch(_CHANGES.replace("$1", quote_text(name_slot(self._source.database))))
            async with self._writer() as writer:
                while rows := await session.fetch(f"FETCH {_PORTION} FROM changes"):
                    try:
                        steps = [step for row in rows if (step := self._changes.read(bytes.fromhex(str(row[0]))))]
                    except (Unreadable, KeyError) as exc:
                        raise MoveFailed(f"a change at the source cannot be read: {exc}") from exc
                    await _apply(writer, steps)
                    count += len(steps)
            await session.fetch("COMMIT")
        return count

    async def finish(self, timeout_s: float) -> None:
        """Bring the rest from a silent source. Raises MoveFailed where the copy is not one any more."""
        async with AdminSession(self._source.connector, METADATA_DATABASE) as session:
            # What was committed without waiting for the disk is told only once it is there.
            await session.fetch("SELECT pg_logical_emit_message(true, 'tuplegate', '')")
        while await self.catch_up():
            pass
        async with self._source.session() as session:
            if (await session.fetch(_FINGERPRINT))[0][0] != self._fingerprint:
                raise MoveFailed("definitions have changed while the database was copied")
            if (await session.fetch(_CAN))[0][3] == "t":
                raise MoveFailed("large objects were made while the database was copied")
            sequences = [str(row[0]) for row in await session.fetch(_SEQUENCES)]
            views = [str(row[0]) for row in await session.fetch(_VIEWS)]
        await self._set_sequences(sequences)
        if self._late:
            async with self._writer() as writer:
                await _apply(writer, [(f"DELETE FROM ONLY {name}", ()) for name in self._late])
            await dump_and_restore(self._source, self._destination, self._role, timeout_s, only=self._late)
        if views:
            async with self._writer() as writer:
                for view in views:
                    await writer.fetch(f"REFRESH MATERIALIZED VIEW {view}")

    async def _set_sequences(self, names: list[str]) -> None:
        if not names:
            return
        reader = roles.name_dump_role(self._source.database)
        question = " UNION ALL ".join(f"SELECT {quote_text(name)}, last_value, is_called FROM {name}" for name in names)
        async with TenantSession(self._source.connector, self._source.secret, self._source.database, reader) as session:
            rows = await session.fetch(question)
        async with self._writer() as writer:
            await _apply(writer, [("SELECT setval($1::text::regclass, $2::bigint, $3::bool)", row) for row in rows])

    def _writer(self) -> AdminSession:
        destination = self._destination
        return TenantSession(destination.connector, destination.secret, destination.database, self._role, patient=True)


async def _apply(writer: AdminSession, steps: list[Step]) -> None:
    """Apply changes in one transaction without triggers and foreign keys, whose effects come as changes themselves."""
    if not steps:
        return
    try:
        await writer.atomically([("SELECT set_config('session_replication_role', 'replica', true)", ()), *steps])
    except StatementFailed as failure:
        raise MoveFailed(f"a change at the source could not be applied: {failure.message}") from failure


async def try_to_stop(source: Side) -> None:
    """Stop following when a move is over. The source may be silent; what fails is tried again with all that is left
    over."""
    try:
        await stop_following(source, roles.name_dump_role(source.database))
    except EngineFailure as failure:
        _log.warning("a source is still followed", database=source.database, reason=str(failure))
