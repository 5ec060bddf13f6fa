"""API keys, session tokens and one-time codes as text: made, checked for typos without a look-up, and hashed for the
record. Pure.

A token is `svc_k_`, `svc_s_` or `svc_c_`, a public id, a secret and a checksum, all base62. Only the SHA-256 of the
whole is ever stored.
"""

import hashlib
import zlib
from dataclasses import dataclass
from enum import Enum
from typing import Final


class TokenKind(Enum):
    """The kind of a token; its value is how the token begins."""

    KEY = "svc_k_"
    SESSION = "svc_s_"
    CODE = "svc_c_"
    """Opens one session, in the console, and nothing else."""


BEGINNING: Final = "svc_"
"""How every token begins."""

_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_LETTERS: Final = frozenset(_ALPHABET.encode())
_ID_LENGTH: Final = 12
_SECRET_LENGTH: Final = 33
_CHECKSUM_LENGTH: Final = 6
_BODY_LENGTH: Final = _ID_LENGTH + _SECRET_LENGTH + _CHECKSUM_LENGTH
_PREFIX_LENGTH: Final = 6
TOKEN_LENGTH: Final = _PREFIX_LENGTH + _BODY_LENGTH

RANDOM_BYTES: Final = 64
"""Taken by `make_token` and `make_id`: far more than they use, so that the last digits are not skewed."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token that was just made; `text` is shown once."""

    id: str
    text: str
    digest: bytes
    hint: str


_PAIRS: Final = [first + second for first in _ALPHABET for second in _ALPHABET]
_PART_PAIRS: Final = 5
_PART: Final = 62 ** (2 * _PART_PAIRS)
"""The largest part that fits a machine word: arithmetic with longer numbers costs far more."""


def write_base62(number: int, length: int) -> str:
    """Return the last `length` digits of the number."""
    pairs: list[str] = []
    part = 0
    for index in range((length + 1) // 2):
        if index % _PART_PAIRS == 0:
            part = number % _PART
            number //= _PART
        pairs.append(_PAIRS[part % len(_PAIRS)])
        part //= len(_PAIRS)
    pairs.reverse()
    return "".join(pairs)[-length:]


def read_base62(text: str) -> int:
    """Return the number that `write_base62` wrote."""
    number = 0
    for letter in text:
        number = number * 62 + _ALPHABET.index(letter)
    return number


def make_id(random_bytes: bytes) -> str:
    """Return a short public id of lower-case letters and digits, so that it can be part of a name in the engine."""
    number = int.from_bytes(random_bytes, "big")
    letters = "0123456789abcdefghijklmnopqrstuvwxyz"
    return "".join(letters[number // 36**i % 36] for i in range(_ID_LENGTH))


def make_token(kind: TokenKind, random_bytes: bytes, id: str | None = None) -> Token:
    """Return a new token; with `id`, a new secret for the key that has this id."""
    if len(random_bytes) != RANDOM_BYTES:
        raise ValueError(f"make_token takes {RANDOM_BYTES} random bytes")
    body = write_base62(int.from_bytes(random_bytes, "big"), _ID_LENGTH + _SECRET_LENGTH)
    if id is not None:
        body = id + body[_ID_LENGTH:]
    text = kind.value + body + _checksum(body)
    return Token(body[:_ID_LENGTH], text, hash_token(text.encode()), f"{text[:10]}…{text[-4:]}")


def hash_token(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def read_token(token: bytes) -> tuple[TokenKind, str] | None:
    """Return the kind and public id of a well-formed token; None for anything else, including one with a typo."""
    if len(token) != TOKEN_LENGTH:
        return None
    kind = _KINDS.get(token[:_PREFIX_LENGTH])
    body = token[_PREFIX_LENGTH:]
    if kind is None or not _LETTERS.issuperset(body):
        return None
    text = body.decode("ascii")
    unchecked, checksum = text[:-_CHECKSUM_LENGTH], text[-_CHECKSUM_LENGTH:]
    return (kind, unchecked[:_ID_LENGTH]) if _checksum(unchecked) == checksum else None


_KINDS: Final = {kind.value.encode(): kind for kind in TokenKind}


def _checksum(body: str) -> str:
    return write_base62(zlib.crc32(body.encode()), _CHECKSUM_LENGTH)
