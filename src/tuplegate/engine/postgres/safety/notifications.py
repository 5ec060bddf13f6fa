"""Keeps the engine's queue of notifications short, which all databases share.

The engine keeps a notification until every session that listens has read past it, whatever its channel or database. A
session does not read while it is in a transaction, nor while its client takes nothing. And it reads only when it is
told to, by a NOTIFY that commits. One that fails leaves its notifications in the queue and tells nobody. Once the queue
is full every NOTIFY fails, so nobody is told to read any more: it would stay full until the last idle listener leaves.

So while clients listen, the queue is looked at. To ask for its length lets the engine drop what all have read. When it
grows, the service sends a notification of its own, which tells every session to read that has fallen behind. When it
grows further, those that cannot read are ended, the longest waiting first; only those that may listen at all, since
nobody listens unseen (`data_plane/wire/listening.py`).
"""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final, Protocol, TypeVar

from tuplegate.engine import port
from tuplegate.engine.postgres.own.admin import METADATA_DATABASE, AdminConnector, AdminSession
from tuplegate.keeping import tick

WAKE_SHARE: Final = 1 / 16
"""With so much of the queue in use, sessions are told to read."""
END_SHARE: Final = 1 / 4
"""With so much in use, a session that may listen and does not read is ended."""
_FULL_S: Final = 1.0
"""When it is full for this long and nobody is in the way, idle sessions are ended: nobody can tell them to read."""
_TICK_S: Final = 1.0
_SHORT_TICK_S: Final = 0.1
_AFTER_S: Final = 10.0
"""How long the queue is looked at when no client is left: their server processes end a little later."""

_USAGE: Final = "SELECT pg_catalog.pg_notification_queue_usage()"
# It comes from a database in which nobody listens, so only who is four pages behind is told. Who notifies waits for all
# others that do, and some of those may wait for a standby.
_WAKE: Final = "SELECT pg_catalog.set_config('lock_timeout', '500ms', true), pg_catalog.pg_notify('tuplegate', '')"
_REASON: Final = (
    "the session listened and did not read: it was in a transaction, or its client took nothing, while the engine's"
    " queue of notifications was filling up"
)


class Listener(Protocol):
    """A session of a client."""

    @property
    def is_listening(self) -> bool:
        """Return whether the session may listen."""

    @property
    def busy_since(self) -> float | None:
        """Return since when it cannot have read notifications, on the loop's clock; None where it reads them."""

    def end_for(self, reason: str) -> None: ...


_L = TypeVar("_L", bound=Listener)


def choose_ended(sessions: Collection[_L], usage: float, woken_at: float, full_s: float) -> list[_L]:
    """Return the sessions to end: those that were told to read at `woken_at` and have not, one at a time. `full_s` is
    how long the queue has been full."""
    if usage < END_SHARE:
        return []
    listening = [session for session in sessions if session.is_listening]
    behind = {session: since for session in listening if (since := session.busy_since) is not None and since < woken_at}
    if behind:
        return [min(behind, key=lambda session: behind[session])]
    return listening if full_s >= _FULL_S else []


class NotificationWatch:
    """`sessions` gives those of this worker that may listen for longer than a request takes. `alone`: nobody else
    listens on the engine, so a queue that is full is full because of them."""

    def __init__(
        self,
        connector: AdminConnector,
        session: AdminSession,
        sessions: Callable[[], Collection[Listener]],
        *,
        alone: bool,
    ) -> None:
        self._connector = connector
        self._session = session
        self._sessions = sessions
        self._alone = alone
        self._time = asyncio.get_running_loop().time
        self._used_at = -_AFTER_S
        self._woken_at: float | None = None
        self._full_since: float | None = None

    async def watch(self) -> None:
        """Look at the queue for ever, while there are sessions."""
        while True:
            await tick(_TICK_S if self._woken_at is None else _SHORT_TICK_S)
            now = self._time()
            if self._sessions():
                self._used_at = now
            if now - self._used_at < _AFTER_S:
                with suppress(port.EngineFailure):  # it is asked again in a moment
                    await self._look(now)

    async def _look(self, now: float) -> None:
        [(used,)] = await self._session.fetch(_USAGE)
        usage = float(str(used))
        if usage < WAKE_SHARE:
            self._woken_at = self._full_since = None
            return
        self._full_since = None if usage < 1 else now if self._full_since is None else self._full_since
        full_s = 0.0 if self._full_since is None or not self._alone else now - self._full_since
        if self._woken_at is not None:
            for session in choose_ended(self._sessions(), usage, self._woken_at, full_s):
                session.end_for(_REASON)
        self._woken_at = self._time()
        async with AdminSession(self._connector, METADATA_DATABASE, local=True) as own:
            await own.fetch(_WAKE)
