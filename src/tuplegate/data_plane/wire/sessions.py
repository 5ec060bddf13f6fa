"""The open connections of this worker: how many, with which keys, and by which numbers they can be cancelled."""

import asyncio
import hmac
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from tuplegate.access.scopes import Scope
from tuplegate.admission.fair_use.seats import WorkerSeats
from tuplegate.admission.identity import IdentityCache, access_of
from tuplegate.background import tick
from tuplegate.data_plane.wire.admission import WireCounts
from tuplegate.data_plane.wire.connection.connection import WireConnection
from tuplegate.data_plane.wire.messages import WireError
from tuplegate.metrics.sums import Counted
from tuplegate.protocol.errors import ServiceError

_WORKER_SHIFT: Final = 24
_LOOK_S: Final = 1.0
_FINISH_S: Final = 5.0
_SECRET_BYTES: Final = {0: 4}
_SECRET_BYTES_LATER: Final = 32
"""Bytes of a secret to cancel by: four in version 3.0 of the protocol."""
WRONG_MAX: Final = 100
"""The wrong secrets after which a connection cannot be cancelled any more: four bytes can be found by trying."""


@dataclass(slots=True)
class _Open:
    connection: WireConnection
    secret: bytes
    wrong: int = 0


class WireSessions:
    """The open connections of one worker. `worker` is its number, which is part of the numbers of its connections."""

    def __init__(self, worker: int, seats: WorkerSeats, idle_s: float) -> None:
        self._worker = worker
        self._seats = seats
        self._idle_s = idle_s
        self._open: dict[int, _Open] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.counts = WireCounts()

    # -- seats and numbers ----------------------------------------------------------------------------------------

    def take_seat(self, organization: str) -> Callable[[], None]:
        """Take a seat for one more connection, and return what gives it back. Raises WireError."""
        try:
            return self._seats.take(organization)
        except ServiceError as full:
            raise WireError("53300", full.body.message, hint="Close one, or use a pool of connections.") from full

    def add(self, connection: WireConnection, minor: int) -> tuple[int, bytes]:
        """Return the number and the secret that the connection can be cancelled by; `remove` must follow."""
        number = 0
        while not number or number in self._open:
            number = (self._worker + 1) << _WORKER_SHIFT | secrets.randbits(_WORKER_SHIFT)
        secret = secrets.token_bytes(_SECRET_BYTES.get(minor, _SECRET_BYTES_LATER))
        self._open[number] = _Open(connection, secret)
        self.counts.opened += 1
        return number, secret

    def remove(self, number: int) -> None:
        self._open.pop(number, None)

    def measure(self) -> Counted:
        """Return its counts, named as in the table of metrics."""
        counts = self.counts
        events = {"wire_connections_total": counts.opened, "wire_statements_total": counts.statements}
        events |= {"wire_bytes_total in": counts.bytes_in, "wire_bytes_total out": counts.bytes_out}
        return events, {"wire_connections_open": len(self._open)}

    def find_worker(self, number: int) -> int:
        """Return the worker that has given the number, if any has."""
        return (number >> _WORKER_SHIFT) - 1

    async def cancel(self, number: int, secret: bytes) -> None:
        """Cancel the statement on a connection of this worker. A wrong secret has no effect and no answer."""
        found = self._open.get(number)
        if found is None or found.wrong >= WRONG_MAX:
            return
        if not hmac.compare_digest(found.secret, secret):
            found.wrong += 1
            return
        try:
            await found.connection.cancel()
        except TimeoutError:
            pass  # the statement goes on, as with any cancel that comes too late

    def do_later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do work that no request waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Wait a moment for the work of `do_later`."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_FINISH_S)

    # -- ends -----------------------------------------------------------------------------------------------------

    @property
    def _connections(self) -> list[WireConnection]:
        return [found.connection for found in self._open.values()]

    @property
    def tokens(self) -> set[bytes]:
        return {connection.token for connection in self._connections}

    def revoke(self, token: bytes) -> None:
        """End the connections of a token that is no longer valid."""
        for connection in self._connections:
            if connection.token == token:
                connection.end(WireError("57P01", "the key is revoked or expired, or its rights changed"), at_once=True)

    async def watch(self, identities: IdentityCache) -> None:
        """End idle connections, and those with a key that expired or has fewer rights now. Runs for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await tick(_LOOK_S)
            now = loop.time()
            for connection in self._connections:
                if connection.is_idle and now - connection.heard_at > self._idle_s:
                    message = f"nothing was sent for {self._idle_s:g} seconds"
                    connection.end(WireError("57P05", message), at_once=True)
            for token in self.tokens:
                await self._look_at(token, identities, now)

    async def _look_at(self, token: bytes, identities: IdentityCache, now: float) -> None:
        try:
            identity = await identities.identify_token(token, "", now)
        except ServiceError as refusal:
            if refusal.status == 401:
                self.revoke(token)
            return
        for connection in self._connections:
            if connection.token != token:
                continue
            bound = identity.principal.database
            is_same = access_of(identity.scopes) is connection.target.access and bound in (None, connection.target.id)
            if Scope.READ in identity.scopes and is_same:
                connection.identity = identity
            else:
                self.revoke(token)
