"""The end of a connection: its words, and its moment."""

import asyncio

from tuplegate.data_plane.wire.flow import Flow
from tuplegate.data_plane.wire.messages import WireError


class Ending:
    """`error` are the last words of the service, once it is to end. `is_expected`: the client or the engine has said
    its own, so it needs none when the engine closes."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._is_due = asyncio.Event()
        self.error: WireError | None = None
        self.is_expected = False

    def end(self, error: WireError, *, at_once: bool) -> None:
        """End the connection with these words: at once, or when nothing runs any more."""
        if self.error is None or at_once:
            self.error = error
        if at_once or not self._flow.is_running:
            self._is_due.set()

    def check(self) -> None:
        """Raise the last words where nothing runs any more."""
        if self.error is not None and not self._flow.is_running:
            raise self.error

    async def wait(self) -> None:
        """Wait until it is to end, and raise the last words."""
        await self._is_due.wait()
        assert self.error is not None
        raise self.error
