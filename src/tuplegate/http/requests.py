"""Reads a request: its content type and its body. Every mistake in it is explained to the client."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from tuplegate.http.exchange import Exchange
from tuplegate.http.query_string import read_query
from tuplegate.protocol.errors import ServiceError
from tuplegate.protocol.mistakes import explain_mistake, explain_not_json

_T = TypeVar("_T")


def read_json(decode: Callable[[bytes], _T], body: bytes, kind: Any) -> _T:
    """Return the body as a message of this kind, which `decode` makes. Raises malformed_request in plain words.

    The strict decoder does not look into raw parts, so UTF-8 is checked first.
    """
    try:
        if not body.isascii():
            body.decode()
        return decode(body)
    except msgspec.ValidationError as exc:
        raise explain_mistake(str(exc), kind) from exc
    except RecursionError as exc:
        raise ServiceError("malformed_request", "the body is nested too deeply") from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise explain_not_json(body, exc, kind) from exc


def check_request(exchange: Exchange, wanted: str) -> None:
    """Check a request to a route that takes a body of this type and no query string."""
    if exchange.query:
        read_query(exchange)
    check_content_type(exchange, wanted)


def check_content_type(exchange: Exchange, wanted: str) -> None:
    """Check the content type. A body without one is taken to have the type that the route takes."""
    header = exchange.headers.get(b"content-type")
    if header is None or header == wanted.encode():
        return
    kind, *parameters = header.decode("latin-1").lower().split(";")
    charsets = [p.partition("=")[2].strip(' "') for p in parameters if p.strip().startswith("charset")]
    if kind.strip() != wanted or any(charset not in ("utf-8", "utf8", "us-ascii") for charset in charsets):
        raise ServiceError(
            "unsupported_media_type",
            f"{exchange.path} takes {wanted} in UTF-8, not {header.decode('latin-1')}",
            hint=f"Send the header Content-Type: {wanted}",
        )
