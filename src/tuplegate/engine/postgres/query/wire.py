"""Opens the connections of clients that speak PostgreSQL's protocol themselves."""

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import structlog

from tuplegate.engine import port
from tuplegate.engine.libpq.connections.commands import ConnectionLost
from tuplegate.engine.libpq.connections.link import Link
from tuplegate.engine.libpq.connections.tls_transport import NoAccess
from tuplegate.engine.libpq.pools.pool import Member
from tuplegate.engine.postgres.pools.pool import SettingsRefused
from tuplegate.engine.postgres.pools.pools import Pools
from tuplegate.engine.postgres.query.wire_run import Fetch, WireRun
from tuplegate.engine.postgres.safety.guard import SerializableGuard
from tuplegate.engine.postgres.service.settings import EngineSettings
from tuplegate.engine.run.run import Running

_log: Final = structlog.get_logger()

_REPORTED: Final = (
    "server_version", "server_encoding", "client_encoding", "application_name", "default_transaction_read_only",
    "in_hot_standby", "is_superuser", "session_authorization", "DateStyle", "IntervalStyle", "TimeZone",
    "integer_datetimes", "standard_conforming_strings", "scram_iterations", "search_path",
)  # fmt: skip
"""The parameters that a server of any version reports by itself. libpq returns each only by its name."""
_BLOCKS_PIPELINES: Final = 180000
"""The server version from which on a pipeline is a transaction block from its second statement on."""


class Wires:
    """The connections of one worker's clients that speak the protocol themselves."""

    def __init__(
        self, pools: Pools, running: Running, guard: SerializableGuard, fetch: Fetch, settings: EngineSettings
    ) -> None:
        self._pools = pools
        self._running = running
        self._guard = guard
        self._fetch = fetch
        self._most = max(1, settings.connections_max // 2)
        self._settings = settings
        self._opening = 0
        self._open: set[WireRun] = set()

    def let_go(self, databases: frozenset[str]) -> None:
        """End the connections to databases that are copied, reset or moved."""
        for run in self._open:
            if run.target.database in databases:
                run.end_for("the database is being copied, reset or moved; connect again in a moment")

    @asynccontextmanager
    async def open(
        self, target: port.Target, settings: dict[str, str], application: str, bounds: port.Bounds
    ) -> AsyncIterator[port.OpenedWire]:
        """Open a connection with the client's settings. Raises StatementFailed if the engine refuses them."""
        if len(self._open) + self._opening >= self._most:
            raise port.EngineBusy(f"{self._most} clients have a connection to the engine through this worker already")
        self._opening += 1
        try:
            run, greeting = await self._make(target, settings, application, bounds)
        finally:
            self._opening -= 1
        self._open.add(run)
        try:
            blocks_pipelines = run.member.pgconn.server_version >= _BLOCKS_PIPELINES
            yield port.OpenedWire(run, greeting, blocks_pipelines)
        finally:
            self._open.discard(run)
            run.leave()

    async def _make(
        self, target: port.Target, settings: dict[str, str], application: str, bounds: port.Bounds
    ) -> tuple[WireRun, bytes]:
        """Return the connection, and what its server has told at the start."""
        pool = self._pools.find_pool(target)
        pool.check()
        try:
            member = await pool.open_given(self._pools.make_login(target, settings, application))
        except SettingsRefused as refused:
            raise port.StatementFailed(
                f"the engine refused the start-up parameters: {_read_words(str(refused))}", sqlstate="22023"
            ) from refused
        except ConnectionLost as lost:
            _log.warning("no connection to the engine", reason=str(lost))
            raise port.EngineUnavailable("the engine accepts no connection just now") from lost
        try:
            greeting = b"".join(_write_parameters(member))
            member.give_away()
            link = await Link.open(member.pgconn)
        except NoAccess as hidden:
            pool.see_off(member, is_running=False, in_doubt=False)
            _log.warning("no client can speak to the engine itself", reason=str(hidden))
            raise port.NotSupported(
                "the engine is reached over TLS, and the service cannot tell which OpenSSL its driver uses"
            ) from hidden
        except BaseException:
            pool.see_off(member, is_running=False, in_doubt=False)
            raise
        shared = (self._running, self._guard, self._fetch)
        return WireRun(pool, target, bounds, member, link, *shared, self._settings), greeting


def _write_parameters(member: Member) -> list[bytes]:
    """Return the parameters that the server has reported at the start, as messages of the protocol."""
    told = [(name.encode(), member.pgconn.parameter_status(name.encode())) for name in _REPORTED]
    return [
        b"S" + struct.pack(">i", 6 + len(name) + len(value)) + name + b"\0" + value + b"\0"
        for name, value in told
        if value is not None
    ]


def _read_words(text: str) -> str:
    """Return the server's own words, without the address, and without the severity, which can be in any language."""
    _, _, said = text.rpartition(" failed: ")
    return said.partition(": ")[2].strip() or said
