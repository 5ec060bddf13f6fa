"""Joins a client's connection to one behind it, byte by byte, once both have left HTTP.

A side that does not take its data pauses the other. Both end together.
"""

import asyncio

from tuplegate.http.forwarding.upstream import UpstreamConnection
from tuplegate.http.upgraded import Handed, UpgradedConnection


class JoinedConnection(UpgradedConnection):
    """The client's side. The connection behind checks the bytes and decides when it ends; it accompanies the client's,
    and so ends with that one."""

    def __init__(self, handed: Handed, upstream: UpstreamConnection) -> None:
        super().__init__(handed)
        self._behind = upstream.transport
        self._upstream = upstream
        self._out.pass_to(self._resume_behind)

    def begin(self) -> None:
        unread = self._intake.unread.take_all()
        self._intake.end()
        first = self._upstream.take_over(_Behind(self))
        if first:
            self._out.write(first)
        if unread:
            self._behind.write(unread)
        if self._behind.is_closing():
            self._transport.close()
        elif not self._out.is_behind:
            self._behind.resume_reading()

    def data_received(self, data: bytes) -> None:
        if not self._behind.is_closing():
            self._behind.write(data)

    def pause_writing(self) -> None:
        super().pause_writing()
        if not self._behind.is_closing():
            self._behind.pause_reading()

    def _resume_behind(self) -> None:
        if not self._behind.is_closing():
            self._behind.resume_reading()

    def stop(self) -> None:
        """Do nothing: the server behind says goodbye in its own words, or the time runs out."""

    def cut_short(self) -> None:
        self.give_way()

    # -- from the other side --------------------------------------------------------------------------------------

    def pass_on(self, data: bytes) -> None:
        self._out.write(data)

    def pause_client(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_client(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def end(self) -> None:
        """Close after the client was sent everything."""
        self._transport.close()


class _Behind(asyncio.Protocol):
    """The side of the connection behind."""

    def __init__(self, front: JoinedConnection) -> None:
        self._front = front

    def data_received(self, data: bytes) -> None:
        self._front.pass_on(data)

    def pause_writing(self) -> None:
        self._front.pause_client()

    def resume_writing(self) -> None:
        self._front.resume_client()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._front.end()
