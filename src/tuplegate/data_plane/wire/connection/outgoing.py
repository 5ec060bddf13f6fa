"""Writes to the engine: what the client's messages have become, and statements of the service's own among them."""

import asyncio
import secrets
from collections import deque

from tuplegate.data_plane.wire.flow import HIDDEN, IDLE, Flow, Parts, Shown
from tuplegate.data_plane.wire.messages import SYNC_MESSAGE, write_run
from tuplegate.data_plane.wire.own_statements import OwnStatements
from tuplegate.engine import port


class Outgoing:
    """`flow` and `parts` know what is under way; `own` are statements of the service's own that are not answered.

    `shown` says which answers of the engine have to be looked at.
    """

    def __init__(self, link: port.WireSession) -> None:
        self._link = link
        self.flow = Flow()
        self.parts = Parts()
        self.shown = Shown()
        self.own: deque[OwnStatements] = deque()
        self._own_name = b"tuplegate_" + secrets.token_hex(8).encode()
        self._judged: list[bytes] = []
        """What the engine gets next."""
        self._settled: asyncio.Future[None] | None = None

    def add(self, judged: bytes) -> None:
        self._judged.append(judged)

    async def write(self) -> None:
        """Write what was added."""
        data = self._judged[0] if len(self._judged) == 1 else b"".join(self._judged)
        self._judged = []
        if data:
            self.tell_state()
            await self._link.write(data)

    def tell_state(self) -> None:
        """Tell the engine's side what runs."""
        if self.flow.is_running:
            self._link.note(port.WireState.RUNNING)
        else:
            self.tell_ready()

    def tell_ready(self) -> None:
        """Something has ended. What was sent behind it begins now, and has its own time."""
        self._link.note(port.WireState.IDLE if self.flow.status == IDLE else port.WireState.OPEN)

    # -- waiting --------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Wait until all that was sent is answered, or the engine waits for rows."""
        await self.write()
        while not self.flow.waits_for_client:
            self._settled = asyncio.get_running_loop().create_future()
            await self._settled

    def wake(self) -> None:
        """Something was answered, or rows are wanted."""
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    async def is_idle(self) -> bool:
        """Return whether nothing of the client's is under way; what is the service's own is waited for."""
        if self.own:
            await self.write()
            await self.own[-1].wait()
        return self.flow.status == IDLE and not self.flow.is_running

    # -- statements of the service's own --------------------------------------------------------------------------

    async def run_own(self, statements: tuple[bytes, ...]) -> bytes:
        """Run statements of the service's own before what follows; return their first value. Raises WireError."""
        data = self.make_own(statements, must_succeed=False)
        own = self.own[-1]
        self.tell_state()
        await self._link.write(data)
        return await own.wait()

    def make_own(self, statements: tuple[bytes, ...], *, must_succeed: bool) -> bytes:
        """Return messages with statements of the service's own, which are sent next."""
        self.note_own(must_succeed=must_succeed)
        return b"".join(write_run(self._own_name, statement) for statement in statements) + SYNC_MESSAGE

    def note_own(self, *, must_succeed: bool) -> None:
        """Note statements of the service's own, which are sent next."""
        self.own.append(OwnStatements(must_succeed=must_succeed))
        self.flow.sent(HIDDEN)
        self.shown.parts = True
        self.shown.rows = self.flow.hides

    def make_between(self, statements: tuple[bytes, ...]) -> bytes:
        """Return statements of the service's own that are sent next, between messages of the client's."""
        for _ in statements:
            self.parts.sent_own()
        return b"".join(write_run(self._own_name, statement) for statement in statements)
