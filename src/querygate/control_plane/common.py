"""What the routes of the control plane share: reading bodies and pages, answering with records, naming the actor."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar
from urllib.parse import parse_qsl

import msgspec

from querygate.catalog.paging import BadCursor, Dated, Page, make_cursor, read_cursor
from querygate.engine.port import EngineUnavailable, OutcomeUnknown, StatementFailed
from querygate.http.exchange import Exchange
from querygate.http.requests import check_content_type, read_json
from querygate.protocol.errors import ServiceError

_T = TypeVar("_T")
_encode = msgspec.json.Encoder().encode

LIMIT_DEFAULT, LIMIT_MAX = 100, 1000
_UNIQUE_VIOLATION, _FOREIGN_KEY_VIOLATION = "23505", "23503"


def read_body(exchange: Exchange, kind: type[_T]) -> _T:
    """The body as a message; no body at all is an empty object. What is asked in a body has no query in its URL."""
    query_of(exchange)
    body = exchange.read_body()
    if body:
        check_content_type(exchange, "application/json")
    return read_json(msgspec.json.Decoder(kind).decode, body or b"{}")


def answer(exchange: Exchange, fields: Mapping[str, object], status: int = 200) -> None:
    exchange.respond(status, _encode({"success": True, **fields}))


def fields_of(record: msgspec.Struct) -> dict[str, object]:
    return msgspec.structs.asdict(record)


def query_of(exchange: Exchange, *known: str) -> dict[str, str]:
    """The parameters of the URL; each once, and none that the route does not know."""
    values: dict[str, str] = {}
    try:
        pairs = parse_qsl(exchange.query, keep_blank_values=True, strict_parsing=True) if exchange.query else []
    except ValueError as exc:
        raise ServiceError("malformed_request", f"the query of the URL cannot be read: {exc}") from exc
    for name, value in pairs:
        if name not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise ServiceError("malformed_request", f"{exchange.path} knows no parameter {name!r}; {takes}")
        if name in values:
            raise ServiceError("malformed_request", f"the parameter {name!r} is given twice")
        values[name] = value
    return values


def read_limit(text: str | None) -> int:
    if text is None:
        return LIMIT_DEFAULT
    if not text.isascii() or not text.isdigit() or len(text) > 4 or not 1 <= int(text) <= LIMIT_MAX:
        raise ServiceError(
            "malformed_request", f"limit must be a whole number from 1 to {LIMIT_MAX}, not {text[:20]!r}"
        )
    return int(text)


def read_page(exchange: Exchange) -> Page:
    given = query_of(exchange, "limit", "cursor")
    limit = read_limit(given.get("limit"))
    cursor = given.get("cursor")
    if cursor is None:
        return Page(limit)
    try:
        return Page(limit, read_cursor(cursor))
    except BadCursor as exc:
        raise bad_cursor() from exc


def bad_cursor() -> ServiceError:
    return ServiceError("malformed_request", "the cursor is none that this list has given out")


def answer_page(exchange: Exchange, page: Page, records: Sequence[Dated]) -> None:
    shown = records[: page.limit]
    more = make_cursor(shown[-1]) if len(records) > page.limit else None
    answer(exchange, {"items": shown, "next_cursor": more})


@contextmanager
def after_change() -> Iterator[None]:
    """Where the engine is lost in here, the change itself is done, and nobody may hear that it is not."""
    try:
        yield
    except EngineUnavailable as gone:
        raise OutcomeUnknown("the engine was lost after the change") from gone


@contextmanager
def refusing(*, taken: str = "", gone: str = "") -> Iterator[None]:
    """What it means where the catalog refuses a change: a name that is not free, a thing that was deleted meanwhile."""
    try:
        yield
    except StatementFailed as failure:
        if taken and failure.sqlstate == _UNIQUE_VIOLATION:
            raise ServiceError("already_exists", taken) from failure
        if gone and failure.sqlstate == _FOREIGN_KEY_VIOLATION:
            raise ServiceError("not_found", gone) from failure
        raise
