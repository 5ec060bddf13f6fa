"""Transactions in PostgreSQL's own protocol, through a tunnel to `GET /v2`.

What is knowable: a transaction whose COMMIT was not sent is not applied, one whose COMMIT was answered is what the
answer says, and one whose COMMIT lost its answer cannot be asked about. The same holds for a statement outside of a
transaction, which is its own commit.
"""

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Any

import psycopg

from tests.histories import Outcome, Transaction
from tests.list_append.statements import Op, alone, found, found_alone, statements_of

if TYPE_CHECKING:
    from tests.list_append.client import Client

_CONNECT_S = 10.0
_LOST = ("08", "57P", "58", "XX")
"""Classes of errors that end the connection, or may: they do not say what became of what ran."""
_REFUSALS = ("40001", "40P01", "57014", "23505", "53300")

_Connection = psycopg.AsyncConnection[Any]


class WireClient:
    """One connection to one of the tunnels, opened anew after it was lost."""

    def __init__(self, ports: tuple[int, ...]) -> None:
        self._ports = ports
        self._open: tuple[int, _Connection] | None = None

    async def connect(self, node: int) -> _Connection:
        if self._open is not None and self._open[0] == node and not self._open[1].closed:
            return self._open[1]
        await self.close()
        connection = await psycopg.AsyncConnection.connect(
            host="127.0.0.1",
            port=self._ports[node],
            user="any",
            dbname="main",
            sslmode="disable",
            gssencmode="disable",
            autocommit=True,
            cursor_factory=psycopg.AsyncRawCursor,
        )
        self._open = node, connection
        return connection

    async def close(self) -> None:
        if self._open is not None:
            await self._open[1].close()
            self._open = None


async def by_wire(client: "Client", id: int, ops: list[Op]) -> Transaction:
    """Run a transaction, or one statement alone."""
    is_alone = client.rng.random() < 0.3
    if is_alone:
        ops = ops[:1]
    began = time.monotonic()
    lost = Transaction(id, Outcome.FAIL, tuple(ops), began)
    try:
        async with asyncio.timeout(_CONNECT_S):
            connection = await client.wire.connect(client.http.node)
    except (psycopg.Error, OSError, TimeoutError) as exc:
        await _leave(client, exc)
        return lost
    run = _Run(connection)
    try:
        async with asyncio.timeout(client.workload.answer_s):
            seen = await (run.one(client, ops[0]) if is_alone else run.all(client, ops))
        return Transaction(id, Outcome.OK, seen, began, time.monotonic())
    except (psycopg.Error, OSError, TimeoutError) as exc:
        state = exc.sqlstate if isinstance(exc, psycopg.Error) else None
        is_definite = state is not None and not state.startswith(_LOST)
        if is_definite:
            if state not in _REFUSALS:
                client.workload.complain(f"over the wire: {state} {exc}")
            client.workload.refusals[f"wire {state}"] += 1
        if not is_definite or not await run.roll_back():
            await _leave(client, exc)
        if run.may_be_applied and not is_definite:
            return Transaction(id, Outcome.INFO, tuple(ops), began)
        return lost


async def _leave(client: "Client", exc: BaseException) -> None:
    client.workload.refusals[f"wire {type(exc).__name__}"] += 1
    await client.wire.close()
    await client.turned_away()


class _Run:
    """`may_be_applied`: what is under way commits, if it is carried out."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self.may_be_applied = False

    async def one(self, client: "Client", op: Op) -> tuple[Op, ...]:
        self.may_be_applied = True
        return found_alone(op, await self._execute(**alone(client.table, op, client.rng)))

    async def all(self, client: "Client", ops: list[Op]) -> tuple[Op, ...]:
        groups = [statements_of(client.table, op, client.rng) for op in ops]
        await self._execute("begin")
        rows = [await self._execute(**statement) for group in groups for statement in group]
        self.may_be_applied = True
        ended = await self._connection.execute("commit")
        if ended.statusmessage != "COMMIT":
            raise psycopg.errors.SerializationFailure(f"the answer to COMMIT is {ended.statusmessage}")
        ends = itertools.accumulate(len(group) for group in groups)
        return found(ops, (rows[end - 1] for end in ends))

    async def roll_back(self) -> bool:
        """Return whether the connection can be used again."""
        try:
            async with asyncio.timeout(_CONNECT_S):
                await self._connection.execute("rollback")
        except (psycopg.Error, OSError, TimeoutError):
            return False
        return True

    async def _execute(self, sql: str, params: list[Any] | None = None) -> list[Any]:
        cursor = await self._connection.execute(sql, params)
        return await cursor.fetchall() if cursor.description else []
