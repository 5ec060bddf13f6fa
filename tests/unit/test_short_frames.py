"""Short frames of a WebSocket are read and written as the library does it, and all others are left to it."""

import pytest
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side

from tuplegate.http.parsing.framing import Buffer
from tuplegate.http.short_frames import measure_frame, read_frame, write_frame
from tuplegate.http.websocket import Frames, WebSocketBounds

MASK = b"\x01\x80\xff\x00"
SIZES = (1, 2, 125, 126, 127, 1000, 4000)


def write(frame: Frame, *, masked: bool) -> bytes:
    return frame.serialize(mask=masked)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("masked", [True, False])
def test_a_whole_short_frame_is_read(size: int, masked: bool) -> None:
    payload = bytes(number % 251 for number in range(size))
    assert read_frame(write(Frame(Opcode.BINARY, payload), masked=masked), masked=masked) == payload


@pytest.mark.parametrize("size", [*SIZES, 0, 65_535, 65_536])
def test_the_library_reads_what_is_written(size: int) -> None:
    payload = bytes(number % 251 for number in range(size))
    for side, mask in ((Side.SERVER, MASK), (Side.CLIENT, b"")):
        reader = Protocol(side, max_size=None)
        reader.receive_data(write_frame(payload, mask))
        [frame] = reader.events_received()
        assert frame == Frame(Opcode.BINARY, payload)
    assert write_frame(payload) == write(Frame(Opcode.BINARY, payload), masked=False)


@pytest.mark.parametrize("masked", [True, False])
def test_everything_else_is_left_to_the_library(masked: bool) -> None:
    whole = write(Frame(Opcode.BINARY, b"a" * 200), masked=masked)
    others = [
        write(Frame(Opcode.TEXT, b"text"), masked=masked),
        write(Frame(Opcode.BINARY, b"part", fin=False), masked=masked),
        write(Frame(Opcode.CONT, b"part"), masked=masked),
        write(Frame(Opcode.PING, b"ping"), masked=masked),
        write(Frame(Opcode.CLOSE, b"\x03\xe8"), masked=masked),
        write(Frame(Opcode.BINARY, b""), masked=masked),
        write(Frame(Opcode.BINARY, b"wrong"), masked=not masked),
        write(Frame(Opcode.BINARY, b"b" * 70_000), masked=masked),
        b"\xc2" + whole[1:],
        whole + whole,
        b"",
        *(whole[:size] for size in range(len(whole))),
    ]
    assert [read_frame(other, masked=masked) for other in others] == [None] * len(others)


@pytest.mark.parametrize("size", [*SIZES, 0, 65_535, 65_536])
@pytest.mark.parametrize("masked", [True, False])
def test_a_frame_is_measured(size: int, masked: bool) -> None:
    assert measure_frame(size, masked=masked) == len(write(Frame(Opcode.BINARY, b"a" * size), masked=masked))


def test_what_looks_like_a_frame_inside_of_one_is_none() -> None:
    """Wherever the bytes are cut: the library may have read the head of a frame, and nothing else of it."""
    inside = write_frame(b"b" * 14, MASK)
    frame = bytes([0x82, 0x80 | len(inside) - 4]) + inside  # its mask is the head of what is inside
    payload = bytes(byte ^ inside[place % 4] for place, byte in enumerate(inside[4:]))
    assert read_frame(inside, masked=True) == b"b" * 14
    for cut in range(len(frame) + 1):
        frames, unread = Frames(WebSocketBounds(1000, 1000)), Buffer()
        payloads = []
        for part in (frame[:cut], frame[cut:]):
            unread.feed(part)
            payloads += frames.read_some(unread)[0]
        assert payloads == [payload], cut
        unread.feed(inside)
        assert frames.read_some(unread) == ([b"b" * 14], 1)
