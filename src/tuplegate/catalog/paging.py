"""Lists in pages. A cursor names the last record that was seen, so records added later do not shift the pages."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Protocol

import msgspec


class Dated(Protocol):
    """A record of a list that is ordered by creation."""

    @property
    def id(self) -> str: ...

    @property
    def created_at(self) -> datetime: ...


ORDER = "r.created_at, r.id"
"""The order of a page, for `read`."""


class BadCursor(Exception):
    """The text is not a cursor made by this service."""


@dataclass(frozen=True, slots=True)
class Page:
    """At most `limit` records that follow the one named by `after`."""

    limit: int
    after: tuple[datetime, str] | None = None


def make_cursor(last: Dated) -> str:
    return write_cursor(last.created_at, last.id)


def read_cursor(text: str) -> tuple[datetime, str]:
    """Return the position that a cursor names. Raise BadCursor for text that `write_cursor` would not have written."""
    try:
        at, id = msgspec.json.decode(urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)), type=_Value)
        at = at.astimezone(UTC)
    except (ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as exc:
        raise BadCursor from exc
    if write_cursor(at, id) != text:
        raise BadCursor
    return at, id


_Value = tuple[Annotated[datetime, msgspec.Meta(tz=True)], Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z_-]+\Z")]]


def write_cursor(at: datetime, id: str) -> str:
    return urlsafe_b64encode(msgspec.json.encode((at, id))).decode().rstrip("=")


def build_page(alias: str, page: Page, sql: str, *params: str | None) -> tuple[str, list[str | None]]:
    """Return the statement and parameters for one page, plus one record that tells whether another page follows."""
    after, place = page.after, len(params) + 1
    order = f"({alias}.created_at, {alias}.id)"
    statement = (
        f"{sql} AND (${place}::timestamptz IS NULL OR {order} > (${place}::timestamptz, ${place + 1}::text))"
        f" ORDER BY {alias}.created_at, {alias}.id LIMIT ${place + 2}::int"
    )
    last = (None, None) if after is None else (after[0].isoformat(), after[1])
    return statement, [*params, *last, str(page.limit + 1)]
