"""Records of API keys."""

from collections.abc import Iterable, Sequence

from tuplegate.access.tokens import Token
from tuplegate.catalog.metadata import Actor, Records, change, read
from tuplegate.catalog.paging import ORDER, Page, build_page
from tuplegate.protocol.control import KeyRecord

_STATE = (
    "CASE WHEN k.revoked_at IS NOT NULL THEN 'revoked' WHEN k.expires_at <= clock_timestamp() THEN 'expired'"
    " ELSE 'active' END"
)
_RECORDS = (
    f"SELECT k.id, k.name, k.hint, k.scopes, d.name AS database, {_STATE} AS state, k.created_at, k.expires_at,"
    " k.last_used_at, k.consistency FROM api_key k LEFT JOIN database d ON d.id = k.database"
    " WHERE k.organization = $1 AND ($2::text IS NULL OR k.database = $2)"
)
_EXPIRY = "now() + ${place}::float8 * interval '1 second'"


class KeyRecords(Records):
    """API keys. With `database`, only keys of that database are seen and changed; None is for all of the
    organization."""

    async def has_any(self) -> bool:
        return bool(await self._metadata.fetch("SELECT 1 FROM api_key LIMIT 1"))

    async def remove_unseen(self, id: str) -> None:
        """Remove a key that was never shown to anybody."""
        await self._metadata.fetch("DELETE FROM api_key WHERE id = $1", id)

    async def add(
        self, actor: Actor, token: Token, organization: str, name: str, scopes: Iterable[str], database: str | None,
        expires_in: int | None, consistency: str = "serializable",
    ) -> None:  # fmt: skip
        await change(
            self._metadata, actor, "key.create", "id",
            "INSERT INTO api_key (id, organization, name, digest, hint, scopes, database, expires_at, consistency)"
            " VALUES ($1, $2, $3, decode($4, 'hex'), $5, string_to_array($6, ','), $7,"
            f" {_EXPIRY.format(place=8)}, $9) RETURNING id, database",
            token.id, organization, name, token.digest.hex(), token.hint, ",".join(scopes), database,
            None if expires_in is None else str(expires_in), consistency, concerns="database", quiet=True,
        )  # fmt: skip

    async def list_page(self, organization: str, database: str | None, page: Page) -> list[KeyRecord]:
        sql, params = build_page("k", page, _RECORDS, organization, database)
        return await read(self._metadata, KeyRecord, sql, *params, order=ORDER)

    async def show(self, organization: str, database: str | None, id: str) -> KeyRecord | None:
        records = await read(self._metadata, KeyRecord, f"{_RECORDS} AND k.id = $3", organization, database, id)
        return records[0] if records else None

    async def change(
        self, actor: Actor, id: str, *, name: str | None, scopes: Sequence[str] | None, expires: bool,
        expires_in: int | None, consistency: str | None,
    ) -> bool:  # fmt: skip
        """Change the record; None leaves a field as it is. With `expires`, the expiry becomes `expires_in`; None for
        never."""
        return await change(
            self._metadata, actor, "key.change", "id",
            "UPDATE api_key SET name = coalesce($3, name), scopes = coalesce(string_to_array($4, ','), scopes),"
            f" expires_at = CASE WHEN $5::boolean THEN {_EXPIRY.format(place=6)} ELSE expires_at END,"
            " consistency = coalesce($7, consistency)"
            " WHERE organization = $1 AND id = $2 AND revoked_at IS NULL"
            " AND (expires_at IS NULL OR expires_at > now()) RETURNING id, database",
            actor.organization, id, name, None if scopes is None else ",".join(scopes), str(expires).lower(),
            None if expires_in is None else str(expires_in), consistency, concerns="database",
        )  # fmt: skip

    async def rotate(self, actor: Actor, token: Token, grace_s: int) -> bool:
        """Give the key a new secret. The former secret stays valid for the grace period."""
        return await change(
            self._metadata, actor, "key.rotate", "id",
            "UPDATE api_key SET former_digest = digest, former_until = now() + $4::float8 * interval '1 second',"
            " digest = decode($3, 'hex'), hint = $5 WHERE organization = $1 AND id = $2 AND revoked_at IS NULL"
            " AND (expires_at IS NULL OR expires_at > now()) RETURNING id, database",
            actor.organization, token.id, token.digest.hex(), str(grace_s), token.hint, concerns="database",
        )  # fmt: skip

    async def revoke(self, actor: Actor, id: str) -> bool:
        return await change(
            self._metadata, actor, "key.revoke", "id",
            "UPDATE api_key SET revoked_at = now() WHERE organization = $1 AND id = $2 AND revoked_at IS NULL"
            " RETURNING id, database",
            actor.organization, id, concerns="database",
        )  # fmt: skip
