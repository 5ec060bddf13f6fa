"""Connections over which a client speaks to the engine itself, in the engine's own protocol."""

from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Protocol

import msgspec

from tuplegate.engine.port.engine_failures import StatementFailed
from tuplegate.engine.port.work import Bounds, Target


class WireState(Enum):
    """The state of a wire connection in the engine."""

    IDLE = "idle"
    OPEN = "in a transaction, and waits"
    RUNNING = "runs something"


class WireSession(Protocol):
    """A connection of a target's role, for one client alone, closed when the client has left.

    Its user passes bytes on in both directions, and reports their meaning where the service needs it.
    """

    async def read(self) -> bytes:
        """Return the bytes that the engine has sent; nothing when it has closed the connection."""

    async def write(self, data: bytes) -> None:
        """Send bytes to the engine. Wait while it does not take them."""

    async def admit(self, begins: int) -> None:
        """Admit a statement that begins at most this many transactions. Call it before the statement is written.

        Raises StatementFailed, EngineBusy or EngineUnavailable if it may not run: then an open transaction must fail.
        """

    def bound(self, bounds: Bounds) -> None:
        """Set the bounds of statements sent from now on. While a statement runs, the longer of both times holds."""

    def count_begun(self, begins: int) -> None:
        """Note that this many transactions may begin beside those of the client's statements."""

    def note(self, state: WireState) -> None:
        """Note the state of the engine from now on."""

    def explain(self, sqlstate: str) -> StatementFailed | None:
        """Return why the service ended the statement or the connection; None if it did not."""

    async def cancel(self) -> None:
        """Cancel the running statement, for the client."""


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
        they get others. Raises StatementFailed if the engine refuses the settings, EngineBusy if there are too many
        connections, and NotSupported.
        """
