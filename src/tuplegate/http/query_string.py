"""Reads the query string of a URL. Parameters that a route does not know are refused, not ignored."""

from collections.abc import Collection
from urllib.parse import parse_qsl

from tuplegate.http.exchange import Exchange
from tuplegate.protocol.errors import ServiceError

_FIELDS_MAX = 20


def read_query(exchange: Exchange, names: Collection[str] = ()) -> dict[str, str]:
    """Return the parameters by name. Refuses names that the route does not take, and names given twice."""
    if not exchange.query:
        return {}
    try:
        pairs = parse_qsl(
            exchange.query, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=_FIELDS_MAX
        )
    except ValueError as exc:  # a UnicodeDecodeError is one too
        raise ServiceError(
            "malformed_request", "the query string is not name=value in UTF-8, or has too many parameters"
        ) from exc
    values: dict[str, str] = {}
    for name, value in pairs:
        if name not in names:
            takes = ", ".join(names) if names else "none"
            raise ServiceError(
                "malformed_request", f"{exchange.path} has no parameter {name!r}", hint=f"It takes: {takes}"
            )
        if name in values:
            raise ServiceError("malformed_request", f"the parameter {name!r} is given twice")
        values[name] = value
    return values


def whole_number(values: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    text = values.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise ServiceError("malformed_request", f"{name} is a whole number from {least} to {most}, not {text!r}")
    return int(text)


def one_of(values: dict[str, str], name: str, default: str, choices: Collection[str]) -> str:
    text = values.get(name, default)
    if text not in choices:
        raise ServiceError("malformed_request", f"{name} is one of {', '.join(choices)}, not {text!r}")
    return text
