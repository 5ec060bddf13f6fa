"""The requests and answers of the control plane. Requests are strict; records show what the catalog holds."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec

Moment = Annotated[datetime, msgspec.Meta(tz=True)]
NAME_LENGTH_MAX = 63
_NAME = rf"^[a-z][a-z0-9_-]{{0,{NAME_LENGTH_MAX - 1}}}\Z"
_TITLE_LENGTH_MAX = 200
_TITLE = rf"^[^\x00-\x1f\x7f]{{1,{_TITLE_LENGTH_MAX}}}\Z"
NAME_RULE = f"1 to {NAME_LENGTH_MAX} lower-case letters, digits, hyphens and underscores, a letter first"
RULES = {
    _NAME: NAME_RULE,
    _TITLE: f"1 to {_TITLE_LENGTH_MAX} characters, without line breaks and other control characters",
}
"""The meaning of each pattern, in words."""
Name = Annotated[str, msgspec.Meta(pattern=_NAME)]
Title = Annotated[str, msgspec.Meta(pattern=_TITLE)]
ScopeName = Literal["read", "write", "admin", "operator"]
Scopes = Annotated[list[ScopeName], msgspec.Meta(min_length=1, max_length=4)]
Consistency = Literal["serializable", "snapshot"]
Seconds = Annotated[int, msgspec.Meta(ge=1, le=10 * 366 * 86_400)]
Grace = Annotated[int, msgspec.Meta(ge=0, le=30 * 86_400)]


class SessionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`scopes`, `database` and `expires_in` restrict the session."""

    api_key: str | None = None
    scopes: Scopes | None = None
    database: Name | None = None
    expires_in: Seconds | None = None


class CodeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`scopes`, `database` and `expires_in` restrict the session that the code is for."""

    scopes: Scopes | None = None
    database: Name | None = None
    expires_in: Seconds | None = None


class ConsoleSessionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    code: str


class DatabaseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    clone_of: Name | None = None


class DatabaseChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name | msgspec.UnsetType = msgspec.UNSET
    default: Literal[True] | msgspec.UnsetType = msgspec.UNSET
    delete_protection: bool | msgspec.UnsetType = msgspec.UNSET


class MoveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`organization` is the id of the database's owner, if that is not the token's own organization."""

    engine: Name
    organization: str | None = None


class EngineChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """New databases go to the engine with the fewest for its weight; with weight 0 none do."""

    weight: Annotated[int, msgspec.Meta(ge=0, le=1000)] | msgspec.UnsetType = msgspec.UNSET
    state: Literal["active", "draining"] | msgspec.UnsetType = msgspec.UNSET


class KeyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`consistency` applies to requests that do not name one."""

    name: Title
    scopes: Scopes
    database: Name | None = None
    expires_in: Seconds | None = None
    consistency: Consistency = "serializable"


class KeyChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`expires_in` counts from now; null removes the expiry."""

    name: Title | msgspec.UnsetType = msgspec.UNSET
    scopes: Scopes | msgspec.UnsetType = msgspec.UNSET
    expires_in: Seconds | msgspec.UnsetType | None = msgspec.UNSET
    consistency: Consistency | msgspec.UnsetType = msgspec.UNSET


class RotateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    grace_seconds: Grace = 0


class OrganizationRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    tier: str | None = None


class OrganizationChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The changes of an organization. `limits` are changed one by one; null leaves one to the tier and the settings
    again."""

    name: Name | msgspec.UnsetType = msgspec.UNSET
    tier: str | msgspec.UnsetType = msgspec.UNSET
    limits: dict[str, int | None] | msgspec.UnsetType = msgspec.UNSET


class SessionRecord(msgspec.Struct, frozen=True):
    """`database` is the name of the database that the session is bound to; null for all of the organization."""

    id: str
    created_at: Moment
    expires_at: Moment
    organization: str
    database: str | None
    scopes: list[str]


class ListedSession(SessionRecord, frozen=True):
    """`key` is the id of the session's key; `current` marks the session that asks."""

    key: str
    current: bool = False


class DatabaseRecord(msgspec.Struct, frozen=True):
    id: str
    name: str
    state: str
    activity: Literal["asleep", "awake"]
    engine: str
    default: bool
    delete_protection: bool
    size_bytes: int | None
    created_at: Moment


class EngineRecord(msgspec.Struct, frozen=True):
    """`problem` says why the engine cannot be used now; then what it would have to be asked for is null. `running` are
    connections that run a statement."""

    name: str
    state: str
    weight: int
    problem: str | None
    databases: int
    size_bytes: int | None
    connections: int | None
    running: int | None
    connections_max: int | None


class KeyRecord(msgspec.Struct, frozen=True):
    id: str
    name: str
    hint: str
    scopes: list[str]
    database: str | None
    state: str
    created_at: Moment
    expires_at: Moment | None
    last_used_at: Moment | None
    consistency: str


class OrganizationFields(msgspec.Struct, frozen=True):
    id: str
    name: str
    tier: str
    created_at: Moment


class OrganizationRecord(OrganizationFields, frozen=True):
    """`limits` are those that it has for itself, by the names of their settings."""

    limits: dict[str, int]


class UsageRecord(msgspec.Struct, frozen=True):
    hour: Moment
    database: str
    requests: int
    rows: int
    bytes: int
    errors: int


class AuditRecord(msgspec.Struct, frozen=True):
    """`address` is where the request came from: of a proxy or the alias, if there is one in between. Null for what was
    done on the machine itself. What the same key does again within an hour, as opening a session, is counted in one
    entry: `count`, with the time of the last."""

    id: int
    at: Moment
    action: str
    subject: str
    key: str | None
    session: str | None
    address: str | None
    request_id: str
    count: int
    last_at: Moment | None


class SessionOpened(msgspec.Struct):
    success: Literal[True]
    token: str
    expires_at: Moment
    expires_in: int
    session: SessionRecord


class CodeMade(msgspec.Struct):
    """`url` opens the console, signed in; null where the service does not know its own address."""

    success: Literal[True]
    code: str
    expires_at: Moment
    url: str | None


class SessionAnswer(msgspec.Struct):
    success: Literal[True]
    session: SessionRecord


class SessionRefreshed(SessionAnswer):
    expires_at: Moment


class SessionDestroyed(msgspec.Struct):
    success: Literal[True]
    state: Literal["destroyed"]


class Gone(msgspec.Struct):
    success: Literal[True]
    state: Literal["gone"]


class Listing(msgspec.Struct):
    """`next_cursor`, if not null, is the `cursor` of the next page."""

    success: Literal[True]
    next_cursor: str | None


class DatabaseList(Listing):
    items: list[DatabaseRecord]


class SessionList(Listing):
    items: list[ListedSession]


class KeyList(Listing):
    items: list[KeyRecord]


class OrganizationList(Listing):
    items: list[OrganizationRecord]


class UsageList(Listing):
    items: list[UsageRecord]


class AuditList(Listing):
    items: list[AuditRecord]


class DatabaseAnswer(DatabaseRecord, frozen=True):
    success: Literal[True]


class DatabaseMoved(DatabaseAnswer, frozen=True):
    """`way` is how the database was moved: by replication, while it was in use, or by a dump; then `reason` says why.
    `held_ms` is how long its requests were held."""

    way: Literal["dump", "replication"]
    held_ms: int
    reason: str | None


class EngineList(Listing):
    items: list[EngineRecord]


class EngineAnswer(EngineRecord, frozen=True):
    success: Literal[True]


class KeyAnswer(KeyRecord, frozen=True):
    success: Literal[True]


class KeyMade(KeyAnswer, frozen=True):
    """`key` is shown only this once."""

    key: str


class Rate(msgspec.Struct):
    """`requests` is null if there is no limit."""

    requests: int | None
    window_seconds: int


# size: one field for each limit.
class OrganizationLimits(msgspec.Struct):
    """`database_bytes` is null if a database may have any size, `organization_bytes` if all together may."""

    rate: Rate
    database_bytes: int | None
    organization_bytes: int | None
    databases: int
    statement_timeout_ms: int
    statement_timeout_ms_max: int
    stream_timeout_ms: int
    stream_timeout_ms_max: int
    export_timeout_ms: int
    export_timeout_ms_max: int
    definition_timeout_ms: int
    definition_timeout_ms_max: int
    transaction_timeout_ms: int
    transaction_timeout_ms_max: int
    transaction_statements: int
    body_bytes: int
    answer_bytes: int


class OrganizationAnswer(OrganizationRecord, frozen=True):
    success: Literal[True]


class OrganizationMade(OrganizationAnswer, frozen=True):
    """The organization has its first database; `key` is shown only this once."""

    key: str


class DatabaseName(msgspec.Struct, frozen=True):
    """A database that the token can use; `default` marks the one that is used where none is named."""

    name: str
    default: bool


class OwnOrganization(OrganizationFields, frozen=True):
    """`limits` are those in force."""

    success: Literal[True]
    databases: list[DatabaseName]
    limits: OrganizationLimits
