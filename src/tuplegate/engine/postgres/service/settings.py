"""The settings that the adapter is built with."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from tuplegate.engine.bundled.binaries import DumpTool
from tuplegate.engine.bundled.disk import Disk
from tuplegate.engine.libpq.connections.unread_rows import Stocks
from tuplegate.engine.libpq.pools.crowd import Crowd
from tuplegate.engine.port import Weakness
from tuplegate.engine.postgres.replication.primary import Primary
from tuplegate.engine.postgres.safety.tally import Tally


# size: this class is a table; each field is a bound, or a fact about the engine.
@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Bounds of the adapter. `conninfo` is libpq's, with the installation's owner, without database and options."""

    conninfo: str
    installation: str
    secret: bytes
    connections_max: int = 90
    connections_per_target_max: int = 16
    connections_per_owner_max: int = 60
    queue_max: int = 1000
    connect_timeout_s: float = 10.0
    idle_close_s: float = 60.0
    attempts_max: int = 50
    primary: Primary | None = None
    """The engine's primary; None for a server that is never replaced."""
    tally: Tally = field(default_factory=Tally)
    worker: int = 0
    exclusive: bool = True
    dump_tools: tuple[DumpTool, ...] = ()
    dumps_max: int = 2
    hold_place: Callable[[str], AbstractAsyncContextManager[bool]] | None = None
    """Holds a name for all engines of the installation; None if this is the only engine."""
    disk: Disk | None = None
    """The disk of the engine's data, if it is watched."""
    transaction_life_s: float = 3600.0
    """How long a client that speaks the engine's protocol itself may leave a transaction open."""
    replicas: tuple[str, ...] = ()
    """Conninfos of standbys, with the installation's owner."""
    is_replica: bool = False
    """Whether `conninfo` is a standby's."""
    rows_bytes_max: int = 256 * 2**20
    """The bound on rows in memory that came from the engine and are in no answer yet."""
    stocks: Stocks | None = None
    """The count of such rows, if it is shared with other engines."""
    kill: Callable[[str], None] | None = None
    """Kills the server of a database, with all that runs there; None if that would hit other databases."""
    crowd: Crowd | None = None
    """The pools that its connections are bounded together with, if there are others."""
    weaknesses: tuple[Weakness, ...] = ()
    """The weaknesses that were found at the start."""
