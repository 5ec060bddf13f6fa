"""The messages between a worker and the supervisor about cells, one a line, over a pair of sockets.

Messages in opposite directions cross. So each names what it is about by a number, and one that comes too late is about
nothing: a worker's stay in a cell is numbered by the supervisor, which says AWAKE, and a halt by the worker that asks.
"""

import socket
from enum import StrEnum
from typing import NamedTuple

import msgspec


class Word(StrEnum):
    """The first word of a message."""

    # From a worker.
    WANT = "want"
    """Wake the cell. The supervisor sends one of the answers below."""
    USE = "use"
    """The cell is in use from now on. A worker also answers REST and LEAVE so, if it needs the cell."""
    IDLE = "idle"
    RESTED = "rested"
    """All connections to the cell are closed, and the stay has ended."""
    HALT = "halt"
    """Stop the cell once no statement runs there, and give it to this worker alone."""
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
    """Somebody halts the cell."""
    REST = "rest"
    """Close the connections to the cell, if nobody uses them."""
    LEAVE = "leave"
    """Close the connections to the cell, if no statement runs there: somebody halts it."""
    HALTED = "halted"
    COUNT = "count"
    """So many cells are awake, as the number says. It is about no cell."""


AT_ONCE = "at once"
"""The text of HALT where the cell's server may be killed."""


KILLED = "the server of the database was killed: "
"""The start of the text of FAILED if a worker asked for the kill. The rest is the reason, which tenants are told."""

STARTED = "started"
"""The text of AWAKE if the worker had to wait for the server's start."""


class Message(NamedTuple):
    """One message about one cell, and about the stay or the halt of that number."""

    word: Word
    cell: str
    number: int = 0
    text: str = ""


_READ_BYTES = 2**16
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(tuple[Word, str, int, str])


class MessageSocket:
    """One end of a line. Nothing here blocks: what does not fit into the socket just now waits for the next `flush`."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.end = end
        self._begun = b""
        self._unsent = b""

    def read(self) -> list[Message]:
        """Return the messages that have arrived. Raises EOFError if the other side is gone."""
        try:
            data = self.end.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            raise EOFError
        *lines, self._begun = (self._begun + data).split(b"\n")
        return [Message(*_DECODER.decode(line)) for line in lines]

    def send(self, message: Message) -> bool:
        """Send a message, as far as there is room. Return whether nothing is left."""
        self._unsent += _ENCODER.encode(message) + b"\n"
        return self.flush()

    def flush(self) -> bool:
        """Send what is left, as far as there is room. Return whether nothing is left."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self.end.send(self._unsent) :]
        except BlockingIOError:
            return False
        except OSError:
            self._unsent = b""  # the other side is gone
        return True
