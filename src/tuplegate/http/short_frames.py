"""Reads and writes the most frequent frames of a WebSocket: whole, binary and short. Pure.

The library handles all others, since it knows all rules. It could handle these as well, but takes ten times as long for
each frame as a short message deserves.
"""

import struct
from typing import Final

try:
    from websockets.speedups import apply_mask
except ImportError:  # without its C part the library is slower, and so is this
    from websockets.utils import apply_mask

_WHOLE_BINARY: Final = 0x82
"""The first byte of a binary message in one frame."""
_MASKED: Final = 0x80
_TWO_BYTES, _EIGHT_BYTES = 126, 127
"""Stand for a length that is in the bytes behind."""
_READ_MAX: Final = 4 * 1024


def read_frame(data: bytes, *, masked: bool) -> bytes | None:
    """Return the payload, if the data is such a frame and nothing else; None otherwise. `masked`: it must be."""
    size = len(data)
    if size < 3 or size > _READ_MAX or data[0] != _WHOLE_BINARY:
        return None
    length = data[1] - _MASKED if masked else data[1]
    start = 2
    if length == _TWO_BYTES:
        if size < 4:
            return None
        length = data[2] << 8 | data[3]
        start = 4
    elif length > _TWO_BYTES:
        return None
    if masked:
        start += 4
    if length <= 0 or size != start + length:
        return None
    return apply_mask(data[start:], data[start - 4 : start]) if masked else data[start:]


def write_frame(data: bytes, mask: bytes = b"") -> bytes:
    """Return the data as one binary message, masked where a mask is given."""
    length, bit = len(data), _MASKED if mask else 0
    if length < _TWO_BYTES:
        head = b"%c%c" % (_WHOLE_BINARY, bit | length)
    elif length < 1 << 16:
        head = struct.pack(">BBH", _WHOLE_BINARY, bit | _TWO_BYTES, length)
    else:
        head = struct.pack(">BBQ", _WHOLE_BINARY, bit | _EIGHT_BYTES, length)
    return head + mask + apply_mask(data, mask) if mask else head + data


def measure_frame(length: int, *, masked: bool) -> int:
    """Return the least bytes of a frame with a payload of that length: the library also accepts longer heads. Code that
    bypasses the library subtracts those of the frames that it has returned from the bytes that it was given. Only if
    nothing is left is the library between two frames: it takes the head of a frame out of its buffer early."""
    extended = 0 if length < _TWO_BYTES else 2 if length < 1 << 16 else 8
    return 2 + extended + (4 if masked else 0) + length
