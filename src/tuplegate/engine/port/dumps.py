"""Dumps: everything that a tenant has, as a file."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol


class Dumps(Protocol):
    """Dumps databases."""

    def dump(
        self, database: str, timeout_s: float, organization: str | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Give everything that the tenant has in the database at one moment, as a file in the engine's own format.

        An `organization` gets no more than its share of the places; None is the service itself.

        The block is entered when the first bytes are there, so most failures come before any. A dump that ends early
        raises: what was read so far is no file. Raises NotSupported, AlreadyRunning, EngineBusy, DumpFailed.
        """
