"""Connections over which a client speaks to the engine itself, in the engine's own protocol."""

from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Protocol

import msgspec

from tuplegate.engine.port.engine_failures import StatementFailed
from tuplegate.engine.port.work import Bounds, Target


class WireState(Enum):
    """The state of such a connection in the engine."""

    IDLE = "idle"
    OPEN = "in a transaction, and waits"
    RUNNING = "runs something"


class WireSession(Protocol):
    """A connection of a target's role, for one client alone, closed when that has left.

    Its user passes bytes on in both directions, and says what they mean where the service has to know it.
    """

    async def read(self) -> bytes:
        """Return what the engine has sent; nothing when it has closed the connection."""

    async def write(self, data: bytes) -> None:
        """Send bytes to the engine. Waits while it does not take them."""

    async def admit(self, begins: int) -> None:
        """To be called before a statement is written, which begins so many transactions at most.

        Raises StatementFailed, EngineBusy or EngineUnavailable where it may not run: a transaction that is open must
        fail, then.
        """

    def bound(self, bounds: Bounds) -> None:
        """Give what is sent from now on these bounds. While something runs, the longer time of both holds."""

    def count_begun(self, begins: int) -> None:
        """Note that so many transactions may begin beside those of the client's statements."""

    def note(self, state: WireState) -> None:
        """Note what the engine does from now on."""

    def explain(self, sqlstate: str) -> StatementFailed | None:
        """Return why the service has ended what ran, or the connection; None where it was somebody else."""

    async def cancel(self) -> None:
        """Cancel what runs, for the client."""


class OpenedWire(msgspec.Struct, frozen=True):
    """Such a connection, and what is known of it from the start.

    `greeting` are the messages with which the engine has told its parameters. `blocks_pipelines` says that what follows
    another statement up to the next Sync runs inside of a transaction block, and cannot commit.
    """

    session: WireSession
    greeting: bytes
    blocks_pipelines: bool


class Wires(Protocol):
    """Opens such connections."""

    def wire(
        self, target: Target, settings: dict[str, str], application: str, bounds: Bounds
    ) -> AbstractAsyncContextManager[OpenedWire]:
        """Open a connection over which a client speaks to the engine itself; leaving the block ends it.

        `settings` are the client's own, `application` the name that it gives itself; statements have these bounds until
        they get others. Raises StatementFailed where the engine refuses the settings, EngineBusy where there are as
        many connections as may be, and NotSupported.
        """
