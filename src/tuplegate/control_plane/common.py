"""Functions that the routes of the control plane share: read bodies and pages, answer with records."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from tuplegate.access.states import IllegalTransition, Life
from tuplegate.admission.identity import Identity
from tuplegate.catalog.catalog import Catalog
from tuplegate.catalog.paging import BadCursor, Dated, Page, make_cursor, read_cursor
from tuplegate.engine.port import EngineUnavailable, OutcomeUnknown, StatementFailed
from tuplegate.http.exchange import Exchange
from tuplegate.http.query_string import read_query, whole_number
from tuplegate.http.requests import check_content_type, read_json
from tuplegate.protocol.control import DatabaseRecord
from tuplegate.protocol.errors import ServiceError

_T = TypeVar("_T")
_encode = msgspec.json.Encoder().encode

LIMIT_DEFAULT, LIMIT_MAX = 100, 1000
_UNIQUE_VIOLATION, _FOREIGN_KEY_VIOLATION = "23505", "23503"


def read_body(exchange: Exchange, kind: type[_T]) -> _T:
    """Decode the body as a message. A missing body is an empty object. Such a route takes no query in its URL."""
    read_query(exchange)
    body = exchange.body
    if body:
        check_content_type(exchange, "application/json")
    return read_json(msgspec.json.Decoder(kind).decode, body or b"{}", kind)


def answer(exchange: Exchange, fields: Mapping[str, object], status: int = 200) -> None:
    exchange.respond(status, _encode({"success": True, **fields}))


def drop_unset(value: _T | msgspec.UnsetType) -> _T | None:
    """Return the value, or None if the request did not have the field."""
    return None if isinstance(value, msgspec.UnsetType) else value


def get_fields(record: msgspec.Struct) -> dict[str, object]:
    return msgspec.structs.asdict(record)


def read_limit(given: dict[str, str], default: int = LIMIT_DEFAULT) -> int:
    return whole_number(given, "limit", default, 1, LIMIT_MAX)


def read_page(exchange: Exchange) -> Page:
    return find_page(read_query(exchange, ("limit", "cursor")))


def find_page(given: dict[str, str], default: int = LIMIT_DEFAULT) -> Page:
    """Return the page that these parameters ask for. Raises malformed_request."""
    limit = read_limit(given, default)
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
def report_loss_as_unknown() -> Iterator[None]:
    """Report an engine lost within the block as an unknown outcome: the change before it is done."""
    try:
        yield
    except EngineUnavailable as gone:
        raise OutcomeUnknown("the engine was lost after the change") from gone


@contextmanager
def translate_refusal(*, taken: str = "", gone: str = "") -> Iterator[None]:
    """Translate a change that the catalog refuses: a name that is taken, or a thing that was deleted meanwhile."""
    try:
        yield
    except StatementFailed as failure:
        if taken and failure.sqlstate == _UNIQUE_VIOLATION:
            raise ServiceError("already_exists", taken) from failure
        if gone and failure.sqlstate == _FOREIGN_KEY_VIOLATION:
            raise ServiceError("not_found", gone) from failure
        raise


async def find_database(catalog: Catalog, identity: Identity, name: str) -> DatabaseRecord:
    """Find a database by name, if the token may manage it. Raise not_found otherwise."""
    principal = identity.principal
    record = await catalog.databases.show(principal.organization, principal.database, name)
    if record is None:
        raise ServiceError("not_found", f"there is no database {name!r}")
    return record


def check_transition(life: Life, state: str, event: str, what: str) -> str:
    """Return the state after the event; `what` names the thing in the error. Raise wrong_state if it is not allowed."""
    try:
        return life.after(state, event)
    except IllegalTransition as exc:
        raise ServiceError("wrong_state", f"{what} is {state}") from exc
