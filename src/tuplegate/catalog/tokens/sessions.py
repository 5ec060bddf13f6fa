"""Records of sessions."""

from collections.abc import Iterable

from tuplegate.access.tokens import Token
from tuplegate.catalog.metadata import Actor, Records, change, read
from tuplegate.catalog.paging import ORDER, Page, build_page
from tuplegate.catalog.tokens.credentials import SESSION_LIVES
from tuplegate.protocol.control import ListedSession, SessionRecord

_RECORD = (
    "SELECT s.id, s.created_at, s.expires_at, k.organization, d.name AS database, s.scopes"
    " FROM session s JOIN api_key k ON k.id = s.key LEFT JOIN database d ON d.id = coalesce(s.database, k.database)"
    " WHERE s.id = $1"
)
_OPEN = (
    "SELECT s.id, s.created_at, s.expires_at, k.organization, d.name AS database, s.scopes, k.id AS key"
    " FROM session s JOIN api_key k ON k.id = s.key JOIN organization o ON o.id = k.organization"
    " LEFT JOIN database d ON d.id = coalesce(s.database, k.database)"
    " WHERE k.organization = $1 AND ($2::text IS NULL OR coalesce(s.database, k.database) = $2)"
    f" AND {SESSION_LIVES}"
)
_DATABASE = "coalesce(database, (SELECT k.database FROM api_key k WHERE k.id = done.key))"
"""The database that a session is bound to, by itself or through its key."""

_RETENTION_S = 86_400
"""How long a session stays on record after it has ended."""


class SessionRecords(Records):
    async def add(
        self, actor: Actor, token: Token, secret: bytes, scopes: Iterable[str], database: str | None, lifetime_s: int
    ) -> None:
        """Add a session. `secret` is the hash of its key's, with which it ends."""
        await change(
            self._metadata, actor, "session.create", "id",
            "INSERT INTO session (id, key, digest, scopes, database, lifetime_s, expires_at, secret)"
            " VALUES ($1, $2, decode($3, 'hex'), string_to_array($4, ','), $5, $6::int,"
            " now() + $6::int * interval '1 second', decode($7, 'hex')) RETURNING id, key, database",
            token.id, actor.key, token.digest.hex(), ",".join(scopes), database, str(lifetime_s), secret.hex(),
            concerns=_DATABASE, quiet=True, tallied=True,
        )  # fmt: skip

    async def show(self, id: str) -> SessionRecord | None:
        records = await read(self._metadata, SessionRecord, _RECORD, id)
        return records[0] if records else None

    async def list_page(self, organization: str, bound: str | None, page: Page) -> list[ListedSession]:
        """Return sessions that are open. `bound` is the id of the only database that is seen; None for all."""
        sql, params = build_page("s", page, _OPEN, organization, bound)
        return await read(self._metadata, ListedSession, sql, *params, order=ORDER)

    async def find_open(self, organization: str, bound: str | None, id: str) -> ListedSession | None:
        records = await read(self._metadata, ListedSession, f"{_OPEN} AND s.id = $3", organization, bound, id)
        return records[0] if records else None

    async def refresh(self, actor: Actor, id: str, lifetime_s: int, cap_s: int | None) -> bool:
        """Extend the session by its own lifetime or by this one, whichever is less, but not past the cap since its
        creation."""
        return await change(
            self._metadata, actor, "session.refresh", "id",
            "UPDATE session SET expires_at = least("
            "expires_at + least(lifetime_s::float8, $2::float8) * interval '1 second',"
            " CASE WHEN $3::float8 > 0 THEN greatest(expires_at, created_at + $3::float8 * interval '1 second') END)"
            " WHERE id = $1 AND destroyed_at IS NULL AND expires_at > clock_timestamp() RETURNING id, key, database",
            id, str(lifetime_s), None if cap_s is None else str(cap_s),
            concerns=_DATABASE, quiet=True, tallied=True,
        )  # fmt: skip

    async def destroy(self, actor: Actor, id: str) -> bool:
        """End a session: the actor's own, or another, which is an entry of its own in the audit."""
        return await change(
            self._metadata, actor, "session.destroy", "id",
            "UPDATE session SET destroyed_at = now() WHERE id = $1 AND destroyed_at IS NULL"
            " RETURNING id, key, database",
            id, concerns=_DATABASE, tallied=actor.session == id,
        )  # fmt: skip

    async def remove_old(self) -> None:
        await self._metadata.fetch(
            "DELETE FROM session WHERE least(expires_at, destroyed_at) < now() - $1::float8 * interval '1 second'",
            str(_RETENTION_S),
        )
