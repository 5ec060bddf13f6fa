"""Copies the records of a database's transactions to another database, or to another engine."""

from tuplegate.engine.libpq.values.quoting import quote_text
from tuplegate.engine.postgres.service.admin import AdminSession
from tuplegate.engine.postgres.service.metadata import ALL_RECOVERED, TAKE_RECOVERED
from tuplegate.engine.postgres.transfer.carrying import Side

_PORTIONS = {"answer": 20, "begun": 1000, "verdict": 1000}
"""The rows of each table of records that are copied at a time; an answer can have 1 MiB."""


async def bring_notes(source: Side, target: Side, since: str | None = None) -> str:
    """Bring the records of its transactions, and the notes of recovery; return the time by the source's clock. Given as
    `since`, that time leaves out most of the records that are there already."""
    async with source.patient() as old, target.patient() as new:
        [(now,)] = await old.fetch("SELECT clock_timestamp()")
        await carry_records(old, new, since)
    async with source.watcher() as old, target.watcher() as new:
        for gid, at in await old.fetch(ALL_RECOVERED):
            await new.fetch(TAKE_RECOVERED, gid, at)
    return str(now)


async def carry_records(old: AdminSession, new: AdminSession, since: str | None = None) -> None:
    """Copy records. A record has the time at which it was written, which can be a while before its commit."""
    later = "" if since is None else f" WHERE at > {quote_text(since)}::timestamptz - interval '1 hour'"
    for table, portion in _PORTIONS.items():
        await old.fetch(f"DECLARE {table} CURSOR WITH HOLD FOR SELECT row_to_json(t) FROM tuplegate.{table} t{later}")
        while rows := await old.fetch(f"FETCH {portion} FROM {table}"):
            await new.fetch(
                f"INSERT INTO tuplegate.{table} SELECT * FROM"
                f" json_populate_recordset(NULL::tuplegate.{table}, $1::json) ON CONFLICT DO NOTHING",
                f"[{','.join(str(row[0]) for row in rows)}]",
            )
