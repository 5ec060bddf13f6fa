"""Runs the service's own statements, in sessions of its own role."""

import asyncio
from collections.abc import Sequence
from typing import Final

from psycopg.pq.abc import PGresult

from tuplegate.engine.cockroach.cluster.nodes import Nodes
from tuplegate.engine.cockroach.dialect.cluster_errors import AMBIGUOUS, CANCELLED, is_node_failure, refine
from tuplegate.engine.cockroach.dialect.untold_types import UntoldTypes
from tuplegate.engine.libpq.connections.commands import BEGIN, COMMIT, ROLLBACK, ConnectionLost, make_command
from tuplegate.engine.libpq.connections.connection import Connection
from tuplegate.engine.libpq.connections.logins import add_settings, find_database_name
from tuplegate.engine.libpq.connections.server_errors import check
from tuplegate.engine.libpq.pools.turns import choose_pause_s
from tuplegate.engine.libpq.values.text_rows import read_text_rows
from tuplegate.engine.port import Conflict, EngineFailure, EngineLost, EngineUnavailable, NotInTime, StatementFailed

METADATA_DATABASE: Final = "tuplegate"
"""The default name of the metadata database; it is another if the engine's URL names another."""

SESSION_SETTINGS: Final = {
    "timezone": "UTC",
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "default_transaction_isolation": "serializable",
    # A column that is called int or serial is as on PostgreSQL: 4 bytes, with small numbers one after the other.
    "default_int_size": "4",
    "serial_normalization": "sql_sequence",
}
"""The settings that decide the meaning of a text, or the text of a value."""

_LOCKED: Final = "55P03"
_APPLICATION: Final = "tuplegate-service"
_ATTEMPTS_MAX: Final = 20
_LOSSES_MAX: Final = 3
_LEAST_S: Final = 1.0
SOON_S: Final = 10.0
"""The time for an answer that a request waits for."""
_ANSWER_S: Final = 30.0
"""The engine does not end a statement that waits for a quorum, so the service sets a time limit of its own."""


class Connector:
    """Opens connections of the role in `conninfo`, to the nodes that it names."""

    def __init__(self, conninfo: str, timeout_s: float = 10.0) -> None:
        self.conninfo = conninfo
        self.metadata = find_database_name(conninfo) or METADATA_DATABASE
        self.nodes = Nodes(conninfo)
        self._timeout_s = timeout_s

    async def connect(self, database: str, conninfo: str | None = None) -> Connection:
        """Connect to a database. Raises ConnectionLost."""
        name = self.metadata if database == METADATA_DATABASE else database
        return await self.nodes.open(Connection, self._add_settings(conninfo or self.conninfo, name), self._timeout_s)

    async def watch_nodes(self) -> None:
        """Watch the nodes until cancelled."""
        await self.nodes.watch(self._add_settings(self.conninfo, self.metadata))

    def _add_settings(self, conninfo: str, database: str) -> str:
        return add_settings(conninfo, database, {**SESSION_SETTINGS, "search_path": "public"}, _APPLICATION)


Questions = Sequence[tuple[str, Sequence[str | None]]]
"""Statements of the service's own, each with its parameters."""


class ServiceSession:
    """One connection to one database, shared by all tasks. It is opened when first needed, and again when it was
    lost."""

    def __init__(self, connector: Connector, database: str = METADATA_DATABASE, answer_s: float = _ANSWER_S) -> None:
        self._connector = connector
        self._database = database
        self._answer_s = answer_s
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()
        self._untold = UntoldTypes()

    async def fetch(self, sql: str, *params: str | None) -> list[tuple[str | None, ...]]:
        return read_text_rows((await self._run_until_through([(sql, params)], atomic=False))[-1])

    async def run_atomically(self, statements: Questions) -> list[tuple[str | None, ...]]:
        """Run all statements in one transaction; return the rows of the last."""
        if not statements:
            return []
        return read_text_rows((await self._run_until_through(statements, atomic=True))[-2])

    async def change_definitions(self, statements: Questions) -> None:
        """Run the statements one after the other, each in its own transaction: a change of definitions is visible only
        once it is committed."""
        for sql, params in statements:
            await self.fetch(sql, *params)

    async def _run_until_through(self, statements: Questions, *, atomic: bool) -> list[PGresult]:
        attempt = 1
        time = asyncio.get_running_loop().time
        until = time() + self._answer_s
        while True:
            try:
                return await self._run(statements, max(until - time(), _LEAST_S), atomic=atomic)
            except Conflict:
                if attempt == _ATTEMPTS_MAX:
                    raise
                await asyncio.sleep(choose_pause_s(attempt))
                attempt += 1
            except StatementFailed as failure:
                if failure.statement is None or not self._untold.learn(statements[failure.statement][0], failure):
                    raise
            except EngineLost:
                # Statements that only read are sent to another node.
                if attempt >= _LOSSES_MAX or time() >= until or not all(_is_reading(sql) for sql, _ in statements):
                    raise
                attempt += 1

    async def _run(self, statements: Questions, limit_s: float, *, atomic: bool) -> list[PGresult]:
        connection = await self._connected()
        commands = [make_command(sql, params, self._untold.of_each(sql, params)) for sql, params in statements]
        late = asyncio.get_running_loop().call_later(
            limit_s, connection.close, f"it gave no answer within {limit_s:.1f} s"
        )
        try:
            answer = connection.send([BEGIN, *commands, COMMIT] if atomic else commands)
            if atomic:
                # After an error the transaction is still open, and the next segment may belong to another task.
                connection.send([ROLLBACK])
            connection.flush()
            results = await answer
        except ConnectionLost as exc:
            raise EngineLost("the connection to the engine was lost", exc) from exc
        finally:
            late.cancel()
        try:
            check(results)
        except StatementFailed as failure:
            raise _explain(refine(failure), len(results) - (2 if atomic else 1), len(statements)) from failure
        return results

    async def _connected(self) -> Connection:
        async with self._opening:
            if self._connection is not None and self._connector.nodes.is_left(self._connection):
                # Other tasks may still wait for an answer on it.
                asyncio.get_running_loop().call_later(self._answer_s, self._connection.close)
                self._connection = None
            if self._connection is None or self._connection.closed:
                try:
                    self._connection = await self._connector.connect(self._database)
                except ConnectionLost as exc:
                    raise EngineUnavailable("no connection to the engine", exc) from exc
            return self._connection

    async def __aenter__(self) -> "ServiceSession":
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _is_reading(sql: str) -> bool:
    return sql.lstrip()[:6].upper() in ("SELECT", "SHOW")


def _explain(failure: StatementFailed, index: int, count: int) -> EngineFailure:
    """Return the failure with the index of its statement, or another one that says what it means."""
    if failure.sqlstate == AMBIGUOUS or is_node_failure(failure):
        return EngineLost("the engine does not know what became of it", failure.message)
    if failure.sqlstate in (_LOCKED, CANCELLED):
        return NotInTime(failure.message, sqlstate=failure.sqlstate)
    failure.statement = index if 0 <= index < count else None
    return failure
