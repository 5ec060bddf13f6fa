"""Lists in pages: a cursor names the last record that was seen, so that what is added later moves nothing."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import msgspec


class Dated(Protocol):
    """What is listed in the order of its making."""

    @property
    def id(self) -> str: ...

    @property
    def created_at(self) -> datetime: ...


class BadCursor(Exception):
    """The text is no cursor of ours."""


@dataclass(frozen=True, slots=True)
class Page:
    """At most `limit` records behind the one that `after` names."""

    limit: int
    after: tuple[datetime, str] | None = None


def make_cursor(last: Dated) -> str:
    return urlsafe_b64encode(msgspec.json.encode((last.created_at, last.id))).decode().rstrip("=")


def read_cursor(text: str) -> tuple[datetime, str]:
    try:
        return msgspec.json.decode(
            urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)), type=tuple[datetime, str]
        )
    except (ValueError, msgspec.MsgspecError) as exc:
        raise BadCursor from exc


def page_of(alias: str, page: Page, sql: str, *params: str | None) -> tuple[str, list[str | None]]:
    """Statement and parameters for one page, and one record more, which says whether another page follows."""
    after, place = page.after, len(params) + 1
    order = f"({alias}.created_at, {alias}.id)"
    statement = (
        f"{sql} AND (${place}::timestamptz IS NULL OR {order} > (${place}::timestamptz, ${place + 1}::text))"
        f" ORDER BY {alias}.created_at, {alias}.id LIMIT ${place + 2}::int"
    )
    last = (None, None) if after is None else (after[0].isoformat(), after[1])
    return statement, [*params, *last, str(page.limit + 1)]
