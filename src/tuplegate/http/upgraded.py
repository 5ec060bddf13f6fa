"""Connections that began with an HTTP request and speak another protocol since.

Such a connection holds no lane and is no running request. It still counts among the connections of its server, is
checked once a second, gives way when places are short, and is closed when the server stops.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tuplegate.http.sharing.intake import Intake
from tuplegate.http.sharing.precedence import NEW_S, Standing, Waiting
from tuplegate.http.sharing.stalls import ClientProgress
from tuplegate.http.writing import Outgoing


@dataclass(frozen=True, slots=True)
class Handed:
    """The state that an HTTP connection hands to its successor. Bytes that have arrived already are in the intake.
    `on_lost` must be called when the connection is gone."""

    transport: asyncio.Transport
    outgoing: Outgoing
    progress: ClientProgress
    intake: Intake
    reader_timeout_s: float
    opened_at: float
    on_lost: "Callable[[UpgradedConnection], None]"


class ClientConnection(asyncio.Protocol):
    """The part that all connections of clients have."""

    _out: Outgoing
    _opened_at: float

    @property
    def address(self) -> str:
        return self._out.address

    @property
    def owner(self) -> str:
        """The organization whose connection this is, or its address while that is unknown."""
        return self._out.owner

    def _stand(self, waiting: Waiting, since: float) -> Standing:
        owner = self._out.owner
        is_new = asyncio.get_running_loop().time() - self._opened_at < NEW_S
        return Standing(owner, owner != self._out.address, waiting, is_new, self._opened_at if is_new else since)

    def pause_writing(self) -> None:
        self._out.note_behind()

    def resume_writing(self) -> None:
        self._out.note_caught_up()


class UpgradedConnection(ClientConnection):
    """The successor of an HTTP connection."""

    def __init__(self, handed: Handed) -> None:
        self._transport = handed.transport
        self._out = handed.outgoing
        self._progress = handed.progress
        self._intake = handed.intake
        self._reader_timeout_s = handed.reader_timeout_s
        self._opened_at = handed.opened_at
        self._on_lost = handed.on_lost

    def begin(self) -> None:
        """Take over."""
        raise NotImplementedError

    def stop(self) -> None:
        """The server stops: end soon, in order."""
        raise NotImplementedError

    def cut_short(self) -> None:
        """Close now: the time for an end in order is over."""
        raise NotImplementedError

    @property
    def is_ending(self) -> bool:
        """Return whether the connection only waits for its end."""
        return False

    def standing(self) -> Standing | None:
        """See `Places`."""
        if self._out.is_lost:
            return None
        return self._stand(Waiting.END if self.is_ending else Waiting.MESSAGES, self._opened_at)

    def give_way(self) -> None:
        self._out.cut_off()

    def check_time(self, now: float) -> None:
        """Close the connection if the client takes nothing. Called once a second."""
        self._out.charge_again()
        if self._progress.has_taken_all(now, self._out.written):
            return
        if self._progress.measure_stall_s(now, self._out.written) > self._reader_timeout_s:
            self._out.cut_off()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._intake.end()
        self._out.note_lost()
        self._on_lost(self)


Upgrade = Callable[[Handed], UpgradedConnection]
"""Makes the successor of a connection whose request was answered with 101."""
