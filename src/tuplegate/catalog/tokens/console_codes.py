"""Records of one-time codes, which sign the console in."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tuplegate.access.tokens import Token
from tuplegate.catalog.metadata import Actor, Metadata, build_change
from tuplegate.catalog.tokens.credentials import KEY_LIVES, OPENER_LIVES

CODE_LIFETIME_S: Final = 60

_DATABASE = "coalesce(database, (SELECT k.database FROM api_key k WHERE k.id = done.key))"
"""The database that a code is bound to, by itself or through its key."""


@dataclass(frozen=True, slots=True)
class CodeRecord:
    """A record of a code and the key that it belongs to. `digest` is hexadecimal."""

    organization: str
    key: str
    digest: str


class ConsoleCodeRecords:
    def __init__(self, metadata: Metadata, lookups: Metadata) -> None:
        self._metadata = metadata
        self._lookups = lookups

    async def add(
        self, actor: Actor, token: Token, secret: bytes, scopes: Iterable[str], database: str | None, lifetime_s: int
    ) -> datetime:
        """Add a code for a session of that lifetime, and return the time at which it expires. `secret` is the hash of
        the key's, with which both end. Old codes of the key are removed."""
        statement, values = build_change(
            actor, "console_code.create", "id",
            "INSERT INTO console_code (id, key, digest, scopes, database, lifetime_s, expires_at, secret)"
            " VALUES ($1, $2, decode($3, 'hex'), string_to_array($4, ','), $5, $6::int,"
            " now() + $7::int * interval '1 second', decode($8, 'hex')) RETURNING expires_at, id, key, database",
            token.id, actor.key, token.digest.hex(), ",".join(scopes), database, str(lifetime_s), str(CODE_LIFETIME_S),
            secret.hex(), concerns=_DATABASE, quiet=True, tallied=True,
        )  # fmt: skip
        # Not every engine takes two changes of one table in one statement.
        removing = "DELETE FROM console_code WHERE key = $1 AND expires_at <= now()"
        rows = await self._metadata.run_atomically([(removing, (actor.key,)), (statement, values)])
        return datetime.fromisoformat(str(rows[0][0])).astimezone(UTC)

    async def find(self, id: str) -> CodeRecord | None:
        rows = await self._lookups.fetch(
            "SELECT k.organization, k.id, encode(c.digest, 'hex') FROM console_code c JOIN api_key k ON k.id = c.key"
            " WHERE c.id = $1",
            id,
        )
        return CodeRecord(*map(str, rows[0])) if rows else None

    async def exchange(self, actor: Actor, id: str, token: Token) -> int | None:
        """Replace a code by a session, if code and key are still good. Return the session's lifetime, or None. Of
        several concurrent calls, one succeeds: the others find that the code is gone."""
        statement, values = build_change(
            actor, "console_code.exchange", "$2",
            "DELETE FROM console_code c WHERE c.id = $1 AND c.expires_at > clock_timestamp() AND EXISTS"
            " (SELECT 1 FROM api_key k JOIN organization o ON o.id = k.organization WHERE k.id = c.key"
            f" AND {KEY_LIVES} AND {OPENER_LIVES.format(made='c')})"
            " RETURNING c.lifetime_s, c.key, c.database, c.scopes, c.secret",
            id, token.id, token.digest.hex(),
            concerns=_DATABASE, quiet=True, tallied=True,
            also="made AS (INSERT INTO session (id, key, digest, scopes, database, lifetime_s, expires_at, secret)"
            " SELECT $2, key, decode($3, 'hex'), scopes, database, lifetime_s,"
            " now() + lifetime_s * interval '1 second', secret FROM done RETURNING 1)",
        )  # fmt: skip
        rows = await self._metadata.fetch(statement, *values)
        return int(str(rows[0][0])) if rows else None

    async def remove_old(self) -> None:
        await self._metadata.fetch("DELETE FROM console_code WHERE expires_at <= now()")
