"""Reads the header `Neon-Connection-String`: its password is the key, its path the database."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote_to_bytes

from tuplegate.data_plane.neon.errors import write_error
from tuplegate.data_plane.neon.options import SqlOptions
from tuplegate.http.exchange import Exchange
from tuplegate.http.message import Head
from tuplegate.protocol.errors import ServiceError

_KNOWN_MAX: Final = 100
"""Heads that were read. Whoever sends them need not have a key, and each may take 32 KiB."""

_FORM: Final = re.compile(
    rb"postgres(?:ql)?://(?:[^:@/?#]*(?::(?P<password>[^@/?#]*))?@)?[^@/?#]*(?:/(?P<database>[^?#]*))?(?:[?#].*)?",
    re.IGNORECASE | re.DOTALL,
)
_NEVER_IN_A_HEADER: Final = re.compile(rb"[\0-\x1f\x7f]")
_HINT: Final = "It is postgresql://any:API_KEY@HOST/DATABASE, with the user and the host as you like."


class _Translation:
    """The headers of a request as the service reads them, and the options among them once they were asked for."""

    __slots__ = ("headers", "options")

    def __init__(self, headers: Mapping[bytes, bytes]) -> None:
        self.headers = headers
        self.options: SqlOptions | None = None


_known: dict[Head, _Translation] = {}
"""A driver sends the same head again and again, and it is parsed once: see `HeadCache`."""


def translate_login(exchange: Exchange) -> None:
    """Put the key and the database where every route has them, and have errors written as Neon's clients read them.

    A token in `Authorization` goes before the password. Raises malformed_request and unauthenticated.
    """
    exchange.error_writer = write_error
    known = _known.get(exchange.head)
    if known is None:
        known = _Translation(_translate(exchange.headers))
        if len(_known) >= _KNOWN_MAX:
            _known.clear()
        _known[exchange.head] = known
    exchange.headers = known.headers


def find_options(exchange: Exchange) -> SqlOptions:
    """Return the options of a request whose login was translated. Raises malformed_request."""
    known = _known.get(exchange.head)
    if known is None:
        return SqlOptions(exchange.headers)
    if known.options is None:
        known.options = SqlOptions(known.headers)
    return known.options


def _translate(headers: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
    """Return the headers with what the connection string says. No error repeats any of it: the key is in it."""
    text = headers.get(b"neon-connection-string")
    has_token = b"authorization" in headers
    if text is None:
        if not has_token:
            raise ServiceError("unauthenticated", "the request has no Neon-Connection-String", hint=_HINT)
        return headers
    found = _FORM.fullmatch(text)
    if found is None:
        raise ServiceError("malformed_request", "the Neon-Connection-String is not a URL of PostgreSQL", hint=_HINT)
    password, database = unquote_to_bytes(found["password"] or b""), unquote_to_bytes(found["database"] or b"")
    if _NEVER_IN_A_HEADER.search(password + database) is not None:
        raise ServiceError("malformed_request", "the Neon-Connection-String has a control character", hint=_HINT)
    translated = dict(headers)
    if database:
        translated[b"tuplegate-database"] = database
    if not has_token:
        if not password:
            raise ServiceError("unauthenticated", "the Neon-Connection-String has no password", hint=_HINT)
        translated[b"authorization"] = b"Bearer " + password
    return translated
