"""Connections for the service's own use, with a tenant's rights."""

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from tuplegate.engine.port.results import SessionResult
from tuplegate.engine.port.work import Target


class EngineSession(Protocol):
    """One connection for the service's own use. Its user begins and ends transactions."""

    async def run(self, sql: str, *params: str | None) -> SessionResult:
        """Run one statement as it stands. Raises TimedOut once the session's time is over."""


class Sessions(Protocol):
    """Opens such connections, and makes room for what they try."""

    def session(self, target: Target, timeout_ms: int) -> AbstractAsyncContextManager[EngineSession]:
        """Open a connection of the target's role. Leaving the block closes it and rolls back what is not committed."""

    def scratch(self, database: str) -> AbstractAsyncContextManager[str]:
        """Make a new, empty schema that the database's writing role owns, and yield its name.

        Leaving the block drops it with everything in it. If the worker dies first, the next one does.
        """
