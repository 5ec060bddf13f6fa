"""Ids of transactions, made so that the outcome can be found without a record.

An id is `txn_`, a letter for the kind, the engine's number of the transaction, a random word, and a MAC over all of it
and the database. Nobody can forge one, and a key of another database cannot ask for it. With several engines, a mark
before the MAC tells which engine gave the number. If another server can replace an engine, the history of the number is
there, too. The length tells which of them an id has. Pure.
"""

import hashlib
import hmac
from binascii import b2a_base64
from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple

from tuplegate.access.tokens import read_base62, write_base62

PREFIX: Final = "txn_"
_NUMBER_LENGTH: Final = 11
_WORD_LENGTH: Final = 10
_MAC_LENGTH: Final = 22
MARK_LENGTH: Final = 6
_HISTORY_LENGTH: Final = 7
_LENGTH: Final = len(PREFIX) + 1 + _NUMBER_LENGTH + _WORD_LENGTH + _MAC_LENGTH

_DIGEST_BYTES: Final = 17
_WORD_BYTES: Final = 8
_AHEAD_BYTES: Final = 512 * _WORD_BYTES
_LETTERS_ONLY: Final = bytes.maketrans(b"+/", b"AB")
"""Two letters stand for two values each. That costs at most one of the six bits of a letter; a MAC has 22 letters."""


class IdKind(StrEnum):
    """The part of the outcome that the id itself tells."""

    NUMBERED = "n"
    """The engine knows the outcome under this number; it is committed, or decided."""
    READ_ONLY = "r"
    """It wrote nothing, so it counts as committed."""
    ABORTED = "a"
    """It failed; nothing of it was applied."""
    OPEN = "o"
    """It stays open between requests. The number tells the worker that holds it, the word which one it is there."""
    LOST = "l"
    """The engine was lost during the commit; by number and word the engine can find out the outcome."""


class TransactionId(NamedTuple):
    kind: IdKind
    number: int = 0
    word: str = ""
    mark: str = ""
    history: int = 0


RandomBytes = Callable[[int], bytes]
"""Returns this many unpredictable bytes."""


class Words:
    """Random words, made from bytes that were asked for ahead: asking for each word takes longer than the rest of an
    id.

    A process that is forked later would get the same ones, so each needs its own.
    """

    def __init__(self, random_bytes: RandomBytes) -> None:
        self._random_bytes = random_bytes
        self._random = b""
        self._used = 0

    def make(self) -> str:
        begin = self._used
        if begin == len(self._random):
            self._random, begin = self._random_bytes(_AHEAD_BYTES), 0
        self._used = end = begin + _WORD_BYTES
        return _write_letters(self._random[begin:end], _WORD_LENGTH)


class TransactionIds:
    """The ids of an installation, which its `secret` signs."""

    def __init__(self, secret: bytes, random_bytes: RandomBytes) -> None:
        self._words = Words(random_bytes)
        self._mac = hashlib.blake2b(key=hashlib.blake2b(secret).digest(), digest_size=_DIGEST_BYTES)
        """The start of every MAC, computed once: that costs more than the rest of it."""

    def write(self, id: TransactionId, database: str) -> str:
        """Write the id as text, with a random word if it has none."""
        text = id.kind + write_base62(id.number, _NUMBER_LENGTH) + (id.word or self._words.make()) + id.mark
        if id.history:
            text += write_base62(id.history, _HISTORY_LENGTH)
        return PREFIX + text + self._sign(text, database)

    def read(self, text: str, database: str) -> TransactionId | None:
        """Return the id if this installation made it for this database; None otherwise."""
        more = len(text) - _LENGTH
        marked = more in (MARK_LENGTH, MARK_LENGTH + _HISTORY_LENGTH)
        known = marked or more in (0, _HISTORY_LENGTH)
        if not known or not text.startswith(PREFIX) or not text.isascii():
            return None
        body, mac = text[len(PREFIX) : -_MAC_LENGTH], text[-_MAC_LENGTH:]
        if not hmac.compare_digest(mac, self._sign(body, database)):
            return None
        number = read_base62(body[1 : 1 + _NUMBER_LENGTH])
        rest = body[1 + _NUMBER_LENGTH :]
        word, rest = rest[:_WORD_LENGTH], rest[_WORD_LENGTH:]
        mark, history = (rest[:MARK_LENGTH], rest[MARK_LENGTH:]) if marked else ("", rest)
        return TransactionId(IdKind(body[0]), number, word, mark, read_base62(history) if history else 0)

    def _sign(self, text: str, database: str) -> str:
        mac = self._mac.copy()
        mac.update(f"{database}/{text}".encode())
        return _write_letters(mac.digest(), _MAC_LENGTH)


def _write_letters(value: bytes, length: int) -> str:
    """Return letters and digits from which the value cannot be read again."""
    return b2a_base64(value, newline=False)[:length].translate(_LETTERS_ONLY).decode()
