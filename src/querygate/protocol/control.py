"""What the control plane takes and answers. Strict on the way in; records are what the catalog holds, shown."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_-]{0,62}\Z")]
Title = Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f\x7f]{1,200}\Z")]
ScopeName = Literal["read", "write", "admin", "operator"]
Scopes = Annotated[list[ScopeName], msgspec.Meta(min_length=1, max_length=4)]
Seconds = Annotated[int, msgspec.Meta(ge=1, le=10 * 366 * 86_400)]
Grace = Annotated[int, msgspec.Meta(ge=0, le=30 * 86_400)]


class SessionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    api_key: str | None = None
    scopes: Scopes | None = None
    database: Name | None = None


class DatabaseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    clone_of: Name | None = None


class DatabaseChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name | msgspec.UnsetType = msgspec.UNSET
    default: Literal[True] | msgspec.UnsetType = msgspec.UNSET
    delete_protection: bool | msgspec.UnsetType = msgspec.UNSET


class KeyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Title
    scopes: Scopes
    database: Name | None = None
    expires_in: Seconds | None = None


class KeyChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`expires_in` counts from now; null takes the expiry away."""

    name: Title | msgspec.UnsetType = msgspec.UNSET
    scopes: Scopes | msgspec.UnsetType = msgspec.UNSET
    expires_in: Seconds | msgspec.UnsetType | None = msgspec.UNSET


class RotateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    grace_seconds: Grace = 0


class OrganizationRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    tier: str | None = None


class OrganizationChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name | msgspec.UnsetType = msgspec.UNSET
    tier: str | msgspec.UnsetType = msgspec.UNSET


class SessionRecord(msgspec.Struct, frozen=True):
    """`database` is the name of the one it is bound to, or null for all of the organization."""

    id: str
    created_at: datetime
    expires_at: datetime
    organization: str
    database: str | None
    scopes: list[str]


class DatabaseRecord(msgspec.Struct, frozen=True):
    id: str
    name: str
    state: str
    default: bool
    delete_protection: bool
    size_bytes: int | None
    created_at: datetime


class KeyRecord(msgspec.Struct, frozen=True):
    id: str
    name: str
    hint: str
    scopes: list[str]
    database: str | None
    state: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None


class OrganizationRecord(msgspec.Struct, frozen=True):
    id: str
    name: str
    tier: str
    created_at: datetime


class UsageRecord(msgspec.Struct, frozen=True):
    hour: datetime
    database: str
    requests: int
    rows: int
    bytes: int
    errors: int


class AuditRecord(msgspec.Struct, frozen=True):
    id: int
    at: datetime
    action: str
    subject: str
    key: str | None
    session: str | None
    request_id: str
