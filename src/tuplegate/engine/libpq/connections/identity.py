"""Whose an engine beside the first is, under which name, and what the installation has made there last: one row, in the
schema `engine` of the metadata database."""

from typing import Final

from tuplegate.engine.port import EngineRefused, MetadataSession

TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS engine.identity (only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),"
    " installation text NOT NULL, name text NOT NULL, furnishing text NOT NULL)"
)
FIND_IDENTITY: Final = "SELECT installation, name, furnishing FROM engine.identity"
NOTE_IDENTITY: Final = (
    "INSERT INTO engine.identity (installation, name, furnishing) VALUES ($1, $2, $3)"
    " ON CONFLICT (only_one) DO UPDATE SET furnishing = excluded.furnishing"
)
_HAS_CATALOG: Final = "SELECT to_regclass('public.installation') IS NOT NULL"


async def check_free(session: MetadataSession, metadata: str, installation: str, name: str, *, is_used: bool) -> None:
    """Raise EngineRefused unless the engine is free, or this installation's under this name. `metadata` is its metadata
    database; `is_used`: databases live on the engine of that name."""
    if (await session.fetch(_HAS_CATALOG))[0][0] == "t":
        raise EngineRefused(
            f"\n- its database {metadata} has the catalog of an installation: give another engine, or another database"
            " in the URL"
        )
    found = await session.fetch(FIND_IDENTITY)
    if found and found[0][:2] != (installation, name):
        whose = f"under the name {found[0][1]}" if found[0][0] == installation else "by another installation"
        raise EngineRefused(
            f"\n- its database {metadata} is used {whose}: give each engine its own database in the URL"
        )
    if not found and is_used:
        raise EngineRefused(
            f"\n- it has nothing of this installation, but databases live on the engine {name}: check the URL"
        )
