"""Limits the groups in which clients may ask the server to agree on a key: only curves.

OpenSSL also offers finite fields of up to 8192 bits. A client asks for one with bytes that it makes up, and the server
computes for a good part of a second: a few clients without a key could stall everybody.

Before Python 3.15 the `ssl` module can name one curve for a context, not a list. One curve for all would cost most
clients a round trip, because they guess another. So there is a context for each curve, and the client's hello is looked
at before it is chosen. Whatever that finds, the connection gets one of these curves: OpenSSL sees to that.
"""

from collections.abc import Container
from typing import Final

from tuplegate.http.tls.records import HEADER, MESSAGE_HEADER

COMMON: Final = "prime256v1"
"""The curve that every client has."""
CURVES: Final = {0x1D: "X25519", 0x17: COMMON, 0x18: "secp384r1"}
"""By the numbers that a hello has for them."""
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2: older ciphers would bring back the finite fields."""

_VERSION_AND_RANDOM: Final = 2 + 32
_SUPPORTED_GROUPS: Final = 10
_EXTENSIONS_MAX: Final = 64
"""Of a hello, that are looked at. Clients send about 20."""


def choose_curve(records: bytes, available: Container[str]) -> str:
    """Return the available curve that the client likes best, by the record that begins its hello; the common one where
    that record does not say."""
    try:
        groups = _find_groups(records)
    except IndexError:
        return COMMON
    for at in range(0, len(groups) - 1, 2):
        curve = CURVES.get(groups[at] << 8 | groups[at + 1])
        if curve is not None and curve in available:
            return curve
    return COMMON


def _find_groups(records: bytes) -> bytes:
    """Return the numbers of a hello's groups. Raises IndexError where they are not found."""
    records = records[: HEADER + (records[3] << 8 | records[4])]  # the first of them
    at = HEADER + MESSAGE_HEADER + _VERSION_AND_RANDOM
    at += 1 + records[at]  # the id of a session
    at += 2 + (records[at] << 8 | records[at + 1])  # ciphers
    at += 1 + records[at]  # ways to compress
    at += 2  # the length of the extensions
    for _ in range(_EXTENSIONS_MAX):
        kind, length = records[at] << 8 | records[at + 1], records[at + 2] << 8 | records[at + 3]
        at += 4
        if kind == _SUPPORTED_GROUPS:
            return records[at + 2 : at + length]
        at += length
    raise IndexError
