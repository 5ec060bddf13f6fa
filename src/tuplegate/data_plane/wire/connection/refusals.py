"""Statements that may not run: the engine refuses others in their place, and its errors become ours."""

import secrets
from typing import Final

from tuplegate.data_plane.wire.messages import WireError, write_execute, write_query

_REFUSED: Final = b"tuplegate_refused_"
_REFUSED_DIGITS: Final = 32


class Refusals:
    """Errors for the client, by the names that the engine refuses."""

    def __init__(self) -> None:
        self._told: dict[bytes, bytes] = {}

    def write_text(self, error: WireError) -> bytes:
        """Return a text that the engine refuses by itself, and note the error for the client."""
        return write_query(b'EXECUTE "%b"' % self._add(error))

    def write_part(self, error: WireError) -> bytes:
        """Return the same for a message of the extended protocol."""
        return write_execute(self._add(error))

    def _add(self, error: WireError) -> bytes:
        # A name that a client could know beforehand it could give to a statement of its own.
        name = _REFUSED + secrets.token_hex(_REFUSED_DIGITS // 2).encode()
        self._told[name] = error.write("ERROR")
        return name

    def take(self, text: bytes) -> bytes | None:
        """Return the error for the client in place of one with this text; None if the error is the engine's own."""
        if self._told and _REFUSED in text:
            return self._told.pop(_REFUSED + text.partition(_REFUSED)[2][:_REFUSED_DIGITS], None)
        return None

    def forget(self) -> None:
        """Forget what the engine has skipped: nothing is under way any more."""
        self._told.clear()
