"""Finds the record of a token, in one statement. This runs for every token that is not cached."""

from dataclasses import dataclass

from tuplegate.access.scopes import Principal, Scope, expand_scopes
from tuplegate.catalog.metadata import Metadata

KEY_LIVES = (
    "k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp()) AND o.deleted_at IS NULL"
)
"""Of a key `k` and its organization `o`."""
OPENER_LIVES = (
    "({made}.secret IS NULL OR {made}.secret = k.digest"
    " OR ({made}.secret = k.former_digest AND k.former_until > clock_timestamp()))"
)
"""Of the secret of a key `k` that a session or a code was made with. Old ones do not tell."""
SESSION_LIVES = (
    f"s.destroyed_at IS NULL AND s.expires_at > clock_timestamp() AND {OPENER_LIVES.format(made='s')} AND {KEY_LIVES}"
)
"""Of a session `s`, its key `k` and their organization `o`."""
_FORMER_UNTIL = "CASE WHEN k.former_until > clock_timestamp() THEN k.former_until END"
"""When the former secret of a key `k` ends, if it is good now."""
_DATABASE = (
    "LEFT JOIN database d ON d.organization = k.organization AND d.state = 'active'"
    " AND CASE WHEN {bound} IS NULL THEN d.is_default ELSE d.id = {bound} END"
)


_OTHERS = (
    "(SELECT coalesce(sum(x.size_bytes), 0) FROM database x WHERE x.organization = {one}.organization"
    " AND x.id <> {one}.id)"
)
"""Bytes of the other databases of its organization, when they were last measured."""

Whereabouts = tuple[str, str, str, int]
"""A database: its id, its name in the engine, its engine, and the bytes of its organization's other databases."""


@dataclass(frozen=True, slots=True)
class Credential:
    """The record of a token. `digests` are hexadecimal: one, or two while the key is being rotated.

    `live` is false once the token is revoked, destroyed or expired; unless something changes it stays true for
    `remaining_s`, or for ever. `limits` are its organization's, as JSON. `database` is the default for requests that
    name none; None if there is none. With `reads_snapshots`, reads need not be serializable unless a request says so.
    """

    principal: Principal
    digests: list[str]
    live: bool
    remaining_s: float | None
    tier: str
    limits: str
    database: Whereabouts | None
    reads_snapshots: bool


class Credentials:
    def __init__(self, metadata: Metadata, notes: Metadata) -> None:
        self._metadata = metadata
        self._notes = notes

    async def find_key(self, id: str) -> Credential | None:
        rows = await self._metadata.fetch(
            "SELECT k.organization, k.database, array_to_string(k.scopes, ','), encode(k.digest, 'hex'),"
            " CASE WHEN k.former_until > clock_timestamp() THEN encode(k.former_digest, 'hex') END,"
            f" {KEY_LIVES}, extract(epoch FROM least(k.expires_at, {_FORMER_UNTIL}) - clock_timestamp()),"
            " o.tier, o.limits, k.consistency = 'snapshot', d.id, d.engine_name, d.engine,"
            f" {_OTHERS.format(one='d')}"
            " FROM api_key k JOIN organization o ON o.id = k.organization "
            + _DATABASE.format(bound="k.database")
            + " WHERE k.id = $1",
            id,
        )
        if not rows:
            return None
        organization, bound, scopes, digest, former, live, remaining, tier, limits, snapshots, *database = rows[0]
        principal = Principal(id, str(organization), _read_scopes(scopes), bound)
        digests = [str(digest)] if former is None else [str(digest), former]
        life = live == "t", _read_seconds(remaining)
        place, reads_snapshots = _whereabouts(database), snapshots == "t"
        return Credential(principal, digests, *life, str(tier), str(limits), place, reads_snapshots)

    async def find_session(self, id: str) -> Credential | None:
        """Find a session. It has the rights that its key has now, or fewer."""
        rows = await self._metadata.fetch(
            "SELECT k.id, k.organization, coalesce(s.database, k.database), array_to_string(s.scopes, ','),"
            " array_to_string(k.scopes, ','), encode(s.digest, 'hex'),"
            f" {SESSION_LIVES},"
            f" extract(epoch FROM least(s.expires_at, k.expires_at, {_FORMER_UNTIL}) - clock_timestamp()), o.tier,"
            " o.limits, k.consistency = 'snapshot', d.id, d.engine_name, d.engine,"
            f" {_OTHERS.format(one='d')}"
            " FROM session s JOIN api_key k ON k.id = s.key JOIN organization o ON o.id = k.organization "
            + _DATABASE.format(bound="coalesce(s.database, k.database)")
            + " WHERE s.id = $1",
            id,
        )
        if not rows:
            return None
        key, organization, bound, scopes, key_scopes, digest, live, remaining, tier, limits, snapshots, *database = (
            rows[0]
        )
        rights = expand_scopes(_read_scopes(scopes)) & expand_scopes(_read_scopes(key_scopes))
        principal = Principal(str(key), str(organization), rights, bound, session=id)
        life = live == "t", _read_seconds(remaining)
        place, reads_snapshots = _whereabouts(database), snapshots == "t"
        return Credential(principal, [str(digest)], *life, str(tier), str(limits), place, reads_snapshots)

    async def find_database(self, organization: str, name: str) -> Whereabouts | None:
        """Find an active database by its name."""
        rows = await self._metadata.fetch(
            f"SELECT d.id, d.engine_name, d.engine, {_OTHERS.format(one='d')} FROM database d"
            " WHERE d.organization = $1 AND d.name = $2 AND d.state = 'active'",
            organization,
            name,
        )
        return _whereabouts(list(rows[0])) if rows else None

    async def mark_used(self, keys: list[str]) -> None:
        await self._notes.fetch(
            "UPDATE api_key SET last_used_at = now() WHERE id = ANY (string_to_array($1, ','))", ",".join(keys)
        )


def _whereabouts(row: list[str | None]) -> Whereabouts | None:
    return None if row[0] is None else (row[0], str(row[1]), str(row[2]), int(str(row[3])))


def _read_seconds(text: str | None) -> float | None:
    return None if text is None else float(text)


def _read_scopes(text: str | None) -> frozenset[Scope]:
    return frozenset(Scope(scope) for scope in str(text).split(","))
