"""Reads the header `Neon-Connection-String`: its password is the key, its path the database."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote_to_bytes

from tuplegate.data_plane.neon.errors import write_error
from tuplegate.data_plane.neon.options import SqlOptions
from tuplegate.http.exchange import Exchange
from tuplegate.protocol.errors import ServiceError

_FORM: Final = re.compile(
    rb"postgres(?:ql)?://(?:[^:@/?#]*(?::(?P<password>[^@/?#]*))?@)?[^@/?#]*(?:/(?P<database>[^?#/@:,]*))?(?:[?#].*)?",
    re.IGNORECASE | re.DOTALL,
)
"""A second string behind the first is no name of a database: an error would repeat it, with the key inside."""
_NEVER_IN_A_HEADER: Final = re.compile(rb"[\0-\x1f\x7f]")
_HINT: Final = "It is postgresql://any:API_KEY@HOST/DATABASE, with the user and the host as you like."


class _Translation:
    """The headers of a request as the service reads them, and the options among them once they were asked for.

    A driver sends the same head again and again, so it is noted there.
    """

    def __init__(self, headers: Mapping[bytes, bytes]) -> None:
        self.headers = headers
        self.options: SqlOptions | None = None


def translate_login(exchange: Exchange) -> None:
    """Put the key and the database where every route has them, and have errors written as Neon's clients read them. A
    token in `Authorization` takes precedence over the password. Raises malformed_request and unauthenticated."""
    exchange.error_writer = write_error
    noted = exchange.head.noted
    if not isinstance(noted, _Translation):
        noted = exchange.head.noted = _Translation(_translate(exchange.headers))
    exchange.headers = noted.headers


def find_options(exchange: Exchange) -> SqlOptions:
    """Return the options of a request whose login was translated. Raises malformed_request."""
    noted = exchange.head.noted
    assert isinstance(noted, _Translation)
    if noted.options is None:
        noted.options = SqlOptions(noted.headers)
    return noted.options


def _translate(headers: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
    """Return the headers with the data of the connection string. No error repeats any part of it: the key is in it."""
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
