"""The records of the installation. SQL of the metadata database lives here and nowhere else.

The store is given a session on that database and knows nothing of the engine beyond it. Everything that changes the
records is one transaction; a crash leaves a step done or not done.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Protocol

from querygate.access.scopes import Principal, Scope
from querygate.access.tokens import Key

Row = tuple[str | None, ...]


class Session(Protocol):
    """What the store needs: one statement at a time, or several in one transaction."""

    async def fetch(self, sql: str, *params: str | None) -> list[Row]: ...

    async def atomically(self, statements: Sequence[tuple[str, Sequence[str | None]]]) -> None: ...


@dataclass(frozen=True, slots=True)
class DatabaseRecord:
    id: str
    organization: str
    name: str
    state: str


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """`digest` is hexadecimal, as it is stored; `live` is false once the key is revoked or expired."""

    principal: Principal
    digest: str
    live: bool


@dataclass(frozen=True, slots=True)
class Installation:
    """`id` marks what belongs to it in a shared engine; `secret` signs what clients are given to hand back."""

    id: str
    secret: bytes


class Catalog:
    def __init__(self, session: Session) -> None:
        self._session = session

    # -- schema -------------------------------------------------------------------------------------------------

    async def migrate(self) -> list[str]:
        """Applies the numbered migrations that are missing, each in a transaction of its own; says which."""
        await self._session.fetch(
            "CREATE TABLE IF NOT EXISTS migration (name text PRIMARY KEY, applied_at timestamptz DEFAULT now())"
        )
        applied = {row[0] for row in await self._session.fetch("SELECT name FROM migration")}
        files = sorted(
            (
                file
                for file in resources.files(__package__).joinpath("migrations").iterdir()
                if file.name.endswith(".sql")
            ),
            key=lambda file: file.name,
        )
        unknown = applied - {file.name for file in files}
        if unknown:
            raise RuntimeError(
                f"the data directory was used by a newer version: it has migration {max(map(str, unknown))}"
            )
        done = []
        for file in files:
            if file.name not in applied:
                steps = [(part, ()) for part in file.read_text().split(";\n") if part.strip()]
                await self._session.atomically([*steps, ("INSERT INTO migration (name) VALUES ($1)", (file.name,))])
                done.append(file.name)
        return done

    # -- the installation ---------------------------------------------------------------------------------------

    async def installation(self) -> Installation | None:
        rows = await self._session.fetch("SELECT id, encode(secret, 'hex') FROM installation")
        return Installation(str(rows[0][0]), bytes.fromhex(str(rows[0][1]))) if rows else None

    async def add_installation(self, installation: Installation) -> None:
        await self._session.fetch(
            "INSERT INTO installation (id, secret) VALUES ($1, decode($2, 'hex')) ON CONFLICT DO NOTHING",
            installation.id,
            installation.secret.hex(),
        )

    # -- organizations and databases ----------------------------------------------------------------------------

    async def first_organization(self) -> str | None:
        rows = await self._session.fetch("SELECT id FROM organization ORDER BY created_at, id LIMIT 1")
        return rows[0][0] if rows else None

    async def add_organization(self, id: str, name: str, tier: str, database_id: str, database_name: str) -> None:
        """The organization and its default database, which is still to be made in the engine."""
        await self._session.atomically(
            [
                ("INSERT INTO organization (id, name, tier) VALUES ($1, $2, $3)", (id, name, tier)),
                (
                    "INSERT INTO database (id, organization, name, state, is_default)"
                    " VALUES ($1, $2, $3, 'creating', true)",
                    (database_id, id, database_name),
                ),
            ]
        )

    async def unfinished_databases(self) -> list[str]:
        rows = await self._session.fetch("SELECT id FROM database WHERE state = 'creating' ORDER BY created_at")
        return [str(row[0]) for row in rows]

    async def database_is_active(self, id: str) -> None:
        await self._session.fetch("UPDATE database SET state = 'active' WHERE id = $1", id)

    async def find_database(self, organization: str, *, id: str | None, name: str | None) -> DatabaseRecord | None:
        """By id, by name, or with neither the organization's default."""
        rows = await self._session.fetch(
            "SELECT id, organization, name, state FROM database WHERE organization = $1 AND state = 'active'"
            " AND ($2::text IS NULL OR id = $2) AND ($3::text IS NULL OR name = $3)"
            " AND ($2::text IS NOT NULL OR $3::text IS NOT NULL OR is_default)",
            organization,
            id,
            name,
        )
        return DatabaseRecord(*(str(value) for value in rows[0])) if rows else None

    # -- keys ---------------------------------------------------------------------------------------------------

    async def has_keys(self) -> bool:
        return bool(await self._session.fetch("SELECT 1 FROM api_key LIMIT 1"))

    async def add_key(self, key: Key, organization: str, name: str, scopes: Sequence[Scope]) -> None:
        await self._session.fetch(
            "INSERT INTO api_key (id, organization, name, digest, hint, scopes)"
            " VALUES ($1, $2, $3, decode($4, 'hex'), $5, string_to_array($6, ','))",
            key.id,
            organization,
            name,
            key.digest.hex(),
            key.hint,
            ",".join(scope.value for scope in scopes),
        )

    async def find_key(self, id: str) -> KeyRecord | None:
        rows = await self._session.fetch(
            "SELECT id, organization, database, encode(digest, 'hex'), array_to_string(scopes, ','),"
            " revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now()) FROM api_key WHERE id = $1",
            id,
        )
        if not rows:
            return None
        key, organization, database, digest, scopes, live = rows[0]
        principal = Principal(
            str(key), str(organization), frozenset(Scope(scope) for scope in str(scopes).split(",")), database
        )
        return KeyRecord(principal, str(digest), live == "t")
