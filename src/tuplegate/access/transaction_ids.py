"""Ids of transactions, made so that the outcome can be found without a record. Pure.

An id is `txn_`, a letter for the kind, the engine's number of the transaction, a random word, and a MAC over all of it
and the database. Nobody can forge one, and a key of another database cannot ask for it. With several engines, a mark
before the MAC tells which engine gave the number. Where another server can take the place of an engine, the history of
the number is there, too. Lengths tell which of them an id has.
"""

import hmac
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from tuplegate.access.tokens import read_base62, write_base62

PREFIX: Final = "txn_"
_NUMBER_LENGTH: Final = 11
_WORD_LENGTH: Final = 10
_MAC_LENGTH: Final = 22
MARK_LENGTH: Final = 6
_HISTORY_LENGTH: Final = 7
_LENGTH: Final = len(PREFIX) + 1 + _NUMBER_LENGTH + _WORD_LENGTH + _MAC_LENGTH
NONCE_BYTES: Final = 16


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


@dataclass(frozen=True, slots=True)
class TransactionId:
    kind: IdKind
    number: int = 0
    word: str = ""
    mark: str = ""
    history: int = 0


def make_word(random_bytes: bytes) -> str:
    return write_base62(int.from_bytes(random_bytes, "big"), _WORD_LENGTH)


def write_id(id: TransactionId, database: str, secret: bytes, nonce: bytes) -> str:
    """Write the id as text. The nonce is used if the id has no word of its own."""
    text = id.kind + write_base62(id.number, _NUMBER_LENGTH) + (id.word or make_word(nonce)) + id.mark
    if id.history:
        text += write_base62(id.history, _HISTORY_LENGTH)
    return PREFIX + text + _mac(text, database, secret)


def read_id(text: str, database: str, secret: bytes) -> TransactionId | None:
    """Return the id if this installation made it for this database; None otherwise."""
    more = len(text) - _LENGTH
    marked = more in (MARK_LENGTH, MARK_LENGTH + _HISTORY_LENGTH)
    known = marked or more in (0, _HISTORY_LENGTH)
    if not known or not text.startswith(PREFIX) or not text.isascii():
        return None
    body, mac = text[len(PREFIX) : -_MAC_LENGTH], text[-_MAC_LENGTH:]
    if not hmac.compare_digest(mac, _mac(body, database, secret)):
        return None
    number = read_base62(body[1 : 1 + _NUMBER_LENGTH])
    rest = body[1 + _NUMBER_LENGTH :]
    word, rest = rest[:_WORD_LENGTH], rest[_WORD_LENGTH:]
    mark, history = (rest[:MARK_LENGTH], rest[MARK_LENGTH:]) if marked else ("", rest)
    return TransactionId(IdKind(body[0]), number, word, mark, read_base62(history) if history else 0)


def _mac(text: str, database: str, secret: bytes) -> str:
    mac = _begin_mac(secret).copy()
    mac.update(f"{database}/{text}".encode())
    return write_base62(int.from_bytes(mac.digest(), "big"), _MAC_LENGTH)


@lru_cache(maxsize=8)
def _begin_mac(secret: bytes) -> hmac.HMAC:
    """Return the beginning of every MAC with this secret. To begin anew costs more than all the rest."""
    return hmac.new(secret, digestmod="sha256")
