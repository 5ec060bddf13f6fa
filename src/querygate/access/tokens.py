"""API keys as text: made, checked for typos without a look-up, hashed for the record. Pure.

`svc_k_` + public id + secret + checksum, all base62. Only the SHA-256 of the whole is ever stored.
"""

import hashlib
import zlib
from dataclasses import dataclass

KEY_PREFIX = "svc_k_"
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_LETTERS = frozenset(_ALPHABET.encode())
_ID_LENGTH = 12
_SECRET_LENGTH = 33
_CHECKSUM_LENGTH = 6
_BODY_LENGTH = _ID_LENGTH + _SECRET_LENGTH + _CHECKSUM_LENGTH
KEY_LENGTH = len(KEY_PREFIX) + _BODY_LENGTH

RANDOM_BYTES = 64
"""What `make_key` and `make_id` take: far more than they use, so that the last digits are not skewed."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key that was just made; `text` is shown once."""

    id: str
    text: str
    digest: bytes
    hint: str


def base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))


def make_id(random_bytes: bytes) -> str:
    """A short public id; of lower-case letters and digits, so that it can be part of a name in the engine."""
    number = int.from_bytes(random_bytes, "big")
    letters = "0123456789abcdefghijklmnopqrstuvwxyz"
    return "".join(letters[number // 36**i % 36] for i in range(_ID_LENGTH))


def make_key(random_bytes: bytes) -> Key:
    if len(random_bytes) != RANDOM_BYTES:
        raise ValueError(f"make_key takes {RANDOM_BYTES} random bytes")
    number = int.from_bytes(random_bytes, "big")
    body = base62(number, _ID_LENGTH + _SECRET_LENGTH)
    text = KEY_PREFIX + body + _checksum(body)
    return Key(body[:_ID_LENGTH], text, digest(text.encode()), f"{text[:10]}…{text[-4:]}")


def digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def key_id(token: bytes) -> str | None:
    """The public id of a well-formed key; None for anything else, a key with a typo included."""
    if len(token) != KEY_LENGTH or not token.startswith(KEY_PREFIX.encode()):
        return None
    body = token[len(KEY_PREFIX) :]
    if not _LETTERS.issuperset(body):
        return None
    text = body.decode("ascii")
    unchecked, checksum = text[:-_CHECKSUM_LENGTH], text[-_CHECKSUM_LENGTH:]
    return unchecked[:_ID_LENGTH] if _checksum(unchecked) == checksum else None


def _checksum(body: str) -> str:
    return base62(zlib.crc32(body.encode()), _CHECKSUM_LENGTH)
