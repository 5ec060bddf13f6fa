"""Reads the header `Neon-Connection-String`: its password is the key, its path the database."""

import re
from typing import Final
from urllib.parse import unquote_to_bytes

from tuplegate.data_plane.neon.errors import write_error
from tuplegate.http.exchange import Exchange
from tuplegate.protocol.errors import ServiceError

_KNOWN_MAX: Final = 1000
_KNOWN_LENGTH_MAX: Final = 500
"""Of strings that are kept: whoever sends them need not have a key."""

_FORM: Final = re.compile(
    rb"postgres(?:ql)?://(?:[^:@/?#]*(?::(?P<password>[^@/?#]*))?@)?[^@/?#]*(?:/(?P<database>[^?#]*))?(?:[?#].*)?",
    re.IGNORECASE | re.DOTALL,
)
_NEVER_IN_A_HEADER: Final = re.compile(rb"[\0-\x1f\x7f]")
_HINT: Final = "It is postgresql://any:API_KEY@HOST/DATABASE, with the user and the host as you like."


class Login:
    """The contents of a connection string, as the headers that the service reads; None where it says nothing."""

    __slots__ = ("authorization", "database")

    def __init__(self, authorization: bytes | None, database: bytes | None) -> None:
        self.authorization = authorization
        self.database = database


_known: dict[bytes, Login] = {}


def translate_login(exchange: Exchange) -> None:
    """Put the key and the database where every route has them, and have errors written as Neon's clients read them.

    A token in `Authorization` goes before the password. Raises malformed_request and unauthenticated.
    """
    exchange.error_writer = write_error
    headers = exchange.headers
    text = headers.get(b"neon-connection-string")
    if text is None:
        if b"authorization" not in headers:
            raise ServiceError("unauthenticated", "the request has no Neon-Connection-String", hint=_HINT)
        return
    login = _known.get(text)
    if login is None:
        login = _read(text)
    translated = dict(headers)
    if login.database is not None:
        translated[b"tuplegate-database"] = login.database
    if b"authorization" not in headers:
        if login.authorization is None:
            raise ServiceError("unauthenticated", "the Neon-Connection-String has no password", hint=_HINT)
        translated[b"authorization"] = login.authorization
    exchange.headers = translated


def _read(text: bytes) -> Login:
    """Read a string and remember what it says. No error repeats any of it: the key is in it."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ServiceError("malformed_request", "the Neon-Connection-String is not a URL of PostgreSQL", hint=_HINT)
    password, database = (unquote_to_bytes(found[name] or b"") for name in ("password", "database"))
    if _NEVER_IN_A_HEADER.search(password + database) is not None:
        raise ServiceError("malformed_request", "the Neon-Connection-String has a control character", hint=_HINT)
    login = Login(b"Bearer " + password if password else None, database or None)
    if len(text) <= _KNOWN_LENGTH_MAX:
        if len(_known) >= _KNOWN_MAX:
            _known.clear()
        _known[text] = login
    return login
