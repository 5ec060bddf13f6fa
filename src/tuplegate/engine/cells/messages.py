"""The messages between a worker and the supervisor about cells, one a line, over a pair of sockets."""

from enum import StrEnum
from typing import NamedTuple

import msgspec


class Word(StrEnum):
    """The first word of a message."""

    # From a worker.
    WANT = "want"
    """Wake the cell. The supervisor sends one of the answers below."""
    USE = "use"
    """The cell is in use from now on. A worker also answers REST so, if it needs the cell."""
    IDLE = "idle"
    RESTED = "rested"
    """All connections to the cell are closed."""
    HALT = "halt"
    """Stop the cell, and give it to this worker alone."""
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
"""The start of the text of FAILED if a worker asked for the kill. The rest is the reason, which tenants are told."""

STARTED = "started"
"""The text of AWAKE if the worker had to wait for the server's start."""


class Message(NamedTuple):
    """One message about one cell."""

    word: Word
    cell: str
    text: str = ""


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(tuple[Word, str, str])


def write(message: Message) -> bytes:
    return _ENCODER.encode(message) + b"\n"


class Reader:
    """Assembles messages from the data of a socket."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [Message(*_DECODER.decode(line)) for line in lines]
