"""Compares a database with its copy, while neither is written.

It compares tables with their columns, the state of sequences, and rows: the number of rows of every table, and a sum
over their contents. That takes time in proportion to the data, while requests are held: so large tables are left out of
the sums, and the largest out of the counts, by their size, and sums are made for a limited time.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from tuplegate.engine.libpq.values.quoting import quote_text
from tuplegate.engine.port import MoveFailed, NotInTime
from tuplegate.engine.postgres.rights import roles
from tuplegate.engine.postgres.service.admin import AdminSession
from tuplegate.engine.postgres.service.scratch_names import find_schemas
from tuplegate.engine.postgres.transfer.carrying import Side
from tuplegate.engine.postgres.transfer.definitions import own_schemas

SUMMED_MAX = 64 * 2**20
COUNTED_MAX = 2**30
"""The bytes of tables that are compared in full, and that are counted, the small ones first."""
_SUMS_S = 2.0
"""The time for comparing contents: they are compressed, and can be many times as large."""
_Row = tuple[str | None, ...]

_TABLES: Final = """
SELECT c.oid::regclass::text, pg_relation_size(c.oid) + coalesce(pg_relation_size(nullif(c.reltoastrelid, 0)), 0),
       (SELECT string_agg(concat_ws(' ', quote_ident(attname), format_type(atttypid, atttypmod)), ', ' ORDER BY attnum)
          FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'r' AND c.relpersistence <> 't' AND {own} ORDER BY 2, 1
"""
SEQUENCES: Final = """
SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'S' AND c.relpersistence <> 't' AND {own} ORDER BY 1
"""
# The engine's own function is called by its name: a tenant can define a cast of a row to text.
_SUM: Final = ", sum(hashtextextended(textin(record_out(t.*)), 0)::numeric)"


async def compare_sides(source: Side, destination: Side, role: str) -> None:
    """Raise MoveFailed, naming the first difference. `role` may read everything at the destination; the dumping role
    may enter the source."""
    reader = roles.name_dump_role(source.database)
    async with source.session() as session, source.tenant(reader) as old, destination.tenant(role) as new:
        await _compare(old, new, await find_schemas(session, source.secret))


async def _compare(old: AdminSession, new: AdminSession, scratch: Sequence[str]) -> None:
    """Compare two open databases. `scratch` are the schemas of the service's own in the old one."""
    for session in (old, new):
        # An error, rather than rows that a policy hides.
        await session.fetch("SELECT set_config('row_security', 'off', false)")
    own, new_own = own_schemas(scratch), own_schemas(())
    tables = {str(name): (int(str(size)), columns) for name, size, columns in await old.fetch(_TABLES.format(own=own))}
    there = {str(name): columns for name, _, columns in await new.fetch(_TABLES.format(own=new_own))}
    if different := sorted(name for name in {*tables, *there} if tables.get(name, (0, ""))[1] != there.get(name, "")):
        raise MoveFailed(f"the table {different[0]} is not the same in the copy")
    sequences = [str(name) for (name,) in await old.fetch(SEQUENCES.format(own=own))]
    if [str(name) for (name,) in await new.fetch(SEQUENCES.format(own=new_own))] != sequences:
        raise MoveFailed("the copy has other sequences")
    if sequences and await new.fetch(states := states_of(sequences)) != await old.fetch(states):
        raise MoveFailed("a sequence in the copy has another value")
    await _compare_rows(old, new, [(name, size) for name, (size, _) in tables.items()])


async def _compare_rows(old: AdminSession, new: AdminSession, tables: list[tuple[str, int]]) -> None:
    """Compare the rows of tables, given with their sizes, the small ones first."""
    looked = 0
    sums_end = asyncio.get_running_loop().time() + _SUMS_S
    for name, size in tables:
        looked += size
        if looked > COUNTED_MAX:
            return
        answers = None
        if looked <= SUMMED_MAX and asyncio.get_running_loop().time() < sums_end:
            answers = await _ask(old, new, f"SELECT count(*){_SUM} FROM ONLY {name} t", _SUMS_S)
        was, found = answers or await _ask(old, new, f"SELECT count(*) FROM ONLY {name}") or ((), ())
        if was != found:
            rows = f"{found[0]} rows instead of {was[0]}" if was[0] != found[0] else "other rows"
            raise MoveFailed(f"the table {name} has {rows} in the copy")


async def _ask(old: AdminSession, new: AdminSession, question: str, limit_s: float = 0.0) -> tuple[_Row, _Row] | None:
    """Return the row of each; None if one takes longer than the limit."""
    limit = ("SELECT set_config('statement_timeout', $1, true)", (f"{limit_s:g}s",))
    asked = (session.run_atomically([limit, (question, ())]) for session in (old, new))
    answers = await asyncio.gather(*asked, return_exceptions=True)
    rows = []
    for answer in answers:
        if isinstance(answer, NotInTime):
            return None
        if isinstance(answer, BaseException):
            raise answer
        rows.append(answer[0])
    return rows[0], rows[1]


def states_of(sequences: Sequence[str]) -> str:
    """Return a question for the states of sequences."""
    return " UNION ALL ".join(f"SELECT {quote_text(name)}, last_value, is_called FROM {name}" for name in sequences)
