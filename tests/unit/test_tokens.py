"""API keys as text: their form, their strength, and the typos that are seen without a look-up."""

import hashlib
import math
import random
import re
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tuplegate.access.tokens import (
    RANDOM_BYTES,
    TOKEN_LENGTH,
    TokenKind,
    hash_token,
    make_id,
    make_token,
    read_token,
    write_base62,
)

LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ID_LENGTH, CHECKSUM_LENGTH = 12, 6
SECRET_LENGTH = TOKEN_LENGTH - len(TokenKind.KEY.value) - ID_LENGTH - CHECKSUM_LENGTH

random_bytes = st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES)


@given(random_bytes)
def test_a_key_has_its_form(given_bytes: bytes) -> None:
    """Prefix, public id, secret and checksum, all of one fixed length that a secret scanner can look for."""
    key = make_token(TokenKind.KEY, given_bytes)
    assert re.fullmatch(r"svc_k_[0-9A-Za-z]+", key.text)
    assert len(key.text) == TOKEN_LENGTH
    assert key.text[len(TokenKind.KEY.value) :].startswith(key.id)
    assert len(key.id) == ID_LENGTH
    assert read_token(key.text.encode()) == (TokenKind.KEY, key.id)


@given(random_bytes)
def test_the_digest_is_of_the_whole_key(given_bytes: bytes) -> None:
    """What is stored is a SHA-256 and not the key."""
    key = make_token(TokenKind.KEY, given_bytes)
    assert key.digest == hashlib.sha256(key.text.encode()).digest() == hash_token(key.text.encode())


@given(random_bytes)
def test_the_hint_gives_little_away(given_bytes: bytes) -> None:
    """First and last letters, none of them of the secret."""
    key = make_token(TokenKind.KEY, given_bytes)
    first, last = key.hint.split("…")
    assert key.text.startswith(first)
    assert key.text.endswith(last)
    assert len(first) <= len(TokenKind.KEY.value) + ID_LENGTH
    assert len(last) <= CHECKSUM_LENGTH


def test_a_secret_has_at_least_190_random_bits() -> None:
    """By its length, and because every place of it takes every letter about equally often."""
    assert SECRET_LENGTH * math.log2(62) >= 190
    source = random.Random(1)
    keys = [make_token(TokenKind.KEY, source.randbytes(RANDOM_BYTES)).text for _ in range(6200)]
    for place in range(len(TokenKind.KEY.value), TOKEN_LENGTH - CHECKSUM_LENGTH):
        counts = Counter(key[place] for key in keys)
        assert set(counts) == set(LETTERS), f"place {place}"
        assert 50 < min(counts.values()) <= max(counts.values()) < 160, f"place {place}"


def test_too_little_randomness_is_refused() -> None:
    """A key is never made of fewer bytes than it was designed for."""
    for size in (0, 32, RANDOM_BYTES - 1, RANDOM_BYTES + 1):
        with pytest.raises(ValueError, match="random bytes"):
            make_token(TokenKind.KEY, b"\0" * size)


@given(random_bytes, st.integers(0, TOKEN_LENGTH - 1), st.characters())
@example(bytes(RANDOM_BYTES), 4, "s")
def test_one_wrong_letter_is_seen(given_bytes: bytes, place: int, letter: str) -> None:
    """Wherever it is, and whatever stands there instead; but for the letter that tells a key from a session."""
    text = make_token(TokenKind.KEY, given_bytes).text
    wrong = text[:place] + letter + text[place + 1 :]
    seen = wrong != text and not wrong.startswith(TokenKind.SESSION.value)
    assert (read_token(wrong.encode("utf-8", "surrogatepass")) is None) == seen


@given(random_bytes, st.integers(0, TOKEN_LENGTH - 2))
def test_two_swapped_letters_are_seen(given_bytes: bytes, place: int) -> None:
    """The typo that hands make most."""
    text = make_token(TokenKind.KEY, given_bytes).text
    wrong = text[:place] + text[place + 1] + text[place] + text[place + 2 :]
    assert (read_token(wrong.encode()) is None) == (wrong != text)


@given(random_bytes, st.integers(0, TOKEN_LENGTH - 1), st.sampled_from(LETTERS))
def test_a_missing_or_doubled_letter_is_seen(given_bytes: bytes, place: int, letter: str) -> None:
    """A key has one length."""
    text = make_token(TokenKind.KEY, given_bytes).text
    assert read_token((text[:place] + text[place + 1 :]).encode()) is None
    assert read_token((text[:place] + letter + text[place:]).encode()) is None


@given(st.binary(max_size=2 * TOKEN_LENGTH))
def test_arbitrary_bytes_are_no_key(token: bytes) -> None:
    """They are refused without an exception."""
    assert read_token(token) is None


@pytest.mark.parametrize("change", [str.upper, str.lower, str.swapcase, lambda t: " " + t[1:], lambda t: t + "\n"])
def test_letters_are_exact(change: "type[str]") -> None:
    """Case and blanks are part of a key."""
    text = make_token(TokenKind.KEY, bytes(range(RANDOM_BYTES))).text
    assert read_token(change(text).encode()) is None


@given(st.integers(0, 62**8 - 1))
def test_base62_can_be_read_back(number: int) -> None:
    """Fixed length, highest digit first."""
    text = write_base62(number, 8)
    value = 0
    for letter in text:
        value = value * 62 + LETTERS.index(letter)
    assert value == number
    assert len(text) == 8


def test_ids_can_be_part_of_a_name_in_the_engine() -> None:
    """Lower-case letters and digits only, and not twice the same."""
    source = random.Random(2)
    ids = {make_id(source.randbytes(RANDOM_BYTES)) for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(r"[0-9a-z]{12}", id) for id in ids)
