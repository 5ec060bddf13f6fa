"""The messages between a worker and the supervisor about cells, one a line, over a pair of sockets.

Messages in opposite directions cross. So each names what it is about by a number, and one that comes too late is about
nothing: a worker's stay in a cell is numbered by the supervisor, which says AWAKE, and a halt by the worker that asks.
"""

from enum import StrEnum
from typing import NamedTuple

import msgspec


class Word(StrEnum):
    """The first word of a message."""

    # From a worker.
    WANT = "want"
    """Wake the cell. One of the answers below comes."""
    USE = "use"
    """The cell is in use from now on: also the answer of a worker that does not let go of it."""
    IDLE = "idle"
    RESTED = "rested"
    """All connections to the cell are closed, and the stay has ended."""
    HALT = "halt"
    """Stop the cell, and give it to the worker alone."""
    RELEASE = "release"
    GONE = "gone"
    """Released, and the directory is removed."""
    KILL = "kill"
    # From the supervisor.
    AWAKE = "awake"
    BUSY = "busy"
    FAILED = "failed"
    """The cell does not start, or has ended. The text says why."""
    WITHHELD = "withheld"
    """Somebody has halted the cell, and its server ends."""
    REST = "rest"
    """Close the connections to the cell, if nobody uses them."""
    HALTED = "halted"


AT_ONCE = "at once"
"""The text of HALT where the cell's server may be killed."""


KILLED = "the server of the database was killed: "
"""The beginning of the text of FAILED where a worker wanted that. The rest is the reason, which tenants are told."""

STARTED = "started"
"""The text of AWAKE where the cell was asleep before."""


class Message(NamedTuple):
    """One message about one cell, and about the stay or the halt of that number."""

    word: Word
    cell: str
    number: int = 0
    text: str = ""


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(tuple[Word, str, int, str])


def write(message: Message) -> bytes:
    return _ENCODER.encode(message) + b"\n"


class Reader:
    """Puts messages together from what comes over a socket."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [Message(*_DECODER.decode(line)) for line in lines]
