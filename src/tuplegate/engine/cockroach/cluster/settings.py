"""The settings of a worker's engine."""

from dataclasses import dataclass

from tuplegate.engine.libpq.connections.unread_rows import Stocks
from tuplegate.engine.libpq.pools.definitions import Versions
from tuplegate.engine.port import Weakness


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The settings of one worker. `conninfo` is the login of the service's own role. All connections together hold at
    most `rows_bytes_max` of rows. `versions` are those of definitions, shared by all workers."""

    conninfo: str
    secret: bytes
    worker: int
    versions: Versions
    connections_max: int
    connections_per_target_max: int
    connections_per_owner_max: int
    queue_max: int
    idle_close_s: float
    attempts_max: int
    connect_timeout_s: float = 10.0
    rows_bytes_max: int = 256 * 2**20
    stocks: Stocks | None = None
    weaknesses: tuple[Weakness, ...] = ()
