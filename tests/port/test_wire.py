"""Connections over which a client speaks to the engine itself: what it sends arrives, and what the engine answers."""

import asyncio
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from tests.port.capabilities import needs
from tests.port.tenant import ENOUGH_MS, Tenant
from tests.waiting import eventually_async
from tuplegate.engine.port import Bounds, OpenedWire, StatementFailed, Target, WireState

pytestmark = needs("wire")

LONG_S = 600
SYNC = b"S\0\0\0\4"

Messages = list[tuple[str, bytes]]


def message(kind: str, body: bytes = b"") -> bytes:
    return kind.encode() + struct.pack(">i", len(body) + 4) + body


def query(sql: str) -> bytes:
    return message("Q", sql.encode() + b"\0")


def fields(error: bytes) -> dict[str, str]:
    return {part[:1].decode(): part[1:].decode() for part in error.split(b"\0") if part}


class Client:
    """Speaks the protocol over a session of the port, as a plane passes it on."""

    def __init__(self, opened: OpenedWire) -> None:
        self.greeting = opened.greeting
        self.session = opened.session
        self._buffer = b""

    async def send(self, data: bytes, begins: int = 1) -> None:
        """Send what begins so many transactions at most."""
        await self.session.admit(begins)
        self.session.note(WireState.RUNNING)
        await self.session.write(data)

    async def next(self) -> tuple[str, bytes]:
        while len(self._buffer) < 5 or len(self._buffer) < 1 + struct.unpack_from(">i", self._buffer, 1)[0]:
            data = await self.session.read()
            assert data, "the engine has closed the connection"
            self._buffer += data
        end = 1 + struct.unpack_from(">i", self._buffer, 1)[0]
        got, self._buffer = self._buffer[:end], self._buffer[end:]
        return chr(got[0]), got[5:]

    async def until(self, kind: str) -> Messages:
        """Return all messages up to one of a kind; a ReadyForQuery is told to the port."""
        got = [await self.next()]
        while got[-1][0] != kind:
            got.append(await self.next())
        if kind == "Z":
            self.session.note(WireState.IDLE if got[-1][1] == b"I" else WireState.OPEN)
        return got

    async def ask(self, sql: str) -> Messages:
        await self.send(query(sql))
        return await self.until("Z")


@asynccontextmanager
async def connected(
    tenant: Tenant,
    target: Target | None = None,
    settings: Mapping[str, str] | None = None,
    timeout_ms: int = ENOUGH_MS,
) -> AsyncIterator[Client]:
    bounds = Bounds(timeout_ms, None, 0)
    async with tenant.engine.wire(target or tenant.writer, dict(settings or {}), "suite", bounds) as wire:
        yield Client(wire)


async def test_the_engine_tells_its_parameters(tenant: Tenant) -> None:
    async with connected(tenant, settings={"TimeZone": "Asia/Tokyo"}) as client:
        rest, told = client.greeting, {}
        while rest:
            assert rest[:1] == b"S"
            end = 1 + struct.unpack_from(">i", rest, 1)[0]
            name, value, nothing = rest[5:end].split(b"\0")
            assert nothing == b""
            told[name.decode()] = value.decode()
            rest = rest[end:]
        assert (told["TimeZone"], told["client_encoding"], told["application_name"]) == ("Asia/Tokyo", "UTF8", "suite")


async def test_a_simple_query(tenant: Tenant) -> None:
    """Each byte of the answer is the engine's, however what was sent was cut."""
    async with connected(tenant) as client:
        for byte in query("select 1 as a, 'ä' as b, null::text as c; select 2 where false"):
            await client.session.write(bytes([byte]))
        columns, row, done, none, empty, ready = await client.until("Z")
        assert [columns[0], none[0]] == ["T", "T"]
        assert [part for part in (b"a\0", b"b\0", b"c\0") if part in columns[1]] == [b"a\0", b"b\0", b"c\0"]
        assert row == ("D", struct.pack(">hi", 3, 1) + b"1" + struct.pack(">i", 2) + "ä".encode() + b"\xff\xff\xff\xff")
        assert (done, empty, ready) == (("C", b"SELECT 1\0"), ("C", b"SELECT 0\0"), ("Z", b"I"))


async def test_an_extended_query(tenant: Tenant) -> None:
    """With a parameter and a result in the binary form; and the statement stays prepared."""
    async with connected(tenant) as client:
        sql = b"kept\0select $1::int4 + 1 as n\0" + struct.pack(">h", 0)
        parse = message("P", sql)
        for value in (41, -1):
            bind = message(
                "B",
                b"\0kept\0" + struct.pack(">hhhii", 1, 1, 1, 4, value) + struct.pack(">hh", 1, 1),
            )
            await client.send(parse + bind + message("D", b"P\0") + message("E", b"\0\0\0\0\0") + SYNC)
            got = await client.until("Z")
            assert [kind for kind, _ in got] == [*(["1"] if parse else []), "2", "T", "D", "C", "Z"]
            assert got[-3][1] == struct.pack(">hii", 1, 4, value + 1)
            parse = b""


async def test_an_error_has_its_code_and_position(tenant: Tenant) -> None:
    """Outside of a transaction nothing is left of it; inside, the transaction has failed."""
    async with connected(tenant) as client:
        (kind, error), ready = await client.ask("select nothing")
        assert kind == "E"
        assert (fields(error)["C"], fields(error)["P"], fields(error)["V"]) == ("42703", "8", "ERROR")
        assert ready == ("Z", b"I")
        assert (await client.ask("begin"))[-1] == ("Z", b"T")
        assert (await client.ask("selec 1"))[-1] == ("Z", b"E")
        assert fields((await client.ask("select 1"))[0][1])["C"] == "25P02"
        assert await client.ask("commit") == [("C", b"ROLLBACK\0"), ("Z", b"I")]


async def test_rows_are_copied_both_ways(tenant: Tenant) -> None:
    table = await tenant.table()
    async with connected(tenant) as client:
        await client.send(query(f"copy {table} from stdin"))
        await client.until("G")
        await client.session.write(message("d", b"1\ton") + message("d", b"e\n2\t\\N\n") + message("c"))
        assert await client.until("Z") == [("C", b"COPY 2\0"), ("Z", b"I")]
        opened, *rows, end, done, ready = await client.ask(f"copy (select * from {table} order by a) to stdout")
        assert (opened[0], end, done, ready) == ("H", ("c", b""), ("C", b"COPY 2\0"), ("Z", b"I"))
        assert b"".join(data for _, data in rows) == b"1\tone\n2\t\\N\n"
        await client.send(query(f"copy {table} from stdin"))
        await client.until("G")
        await client.session.write(message("d", b"3\tthree\n") + message("f", b"changed my mind\0"))
        (kind, error), _ = await client.until("Z")
        assert (kind, fields(error)["C"]) == ("E", "57014")
    assert await tenant.rows(f"select a from {table} order by a") == [[1], [2]]


async def test_what_runs_is_cancelled(tenant: Tenant) -> None:
    """The connection goes on, and the row is free."""
    table = await tenant.table()
    await tenant.query(f"insert into {table} values (1, 'before')")
    async with connected(tenant) as client:
        await client.send(query(f"update {table} set b = 'after' where a = 1 returning pg_sleep({LONG_S})"))
        await eventually_async(lambda: tenant.is_held(table, 1))
        await client.session.cancel()
        got = await client.until("Z")
        assert [fields(body)["C"] for kind, body in got if kind == "E"] == ["57014"]
        assert client.session.explain("57014") is None, "it was the client's own wish"
        assert [kind for kind, _ in await client.ask("select 1")] == ["T", "D", "C", "Z"]
    assert await tenant.rows(f"select b from {table}") == [["before"]]


async def test_a_statement_over_its_time_is_ended_and_explained(tenant: Tenant) -> None:
    async with connected(tenant, timeout_ms=300) as client:
        await client.send(query(f"select pg_sleep({LONG_S})"))
        got = await client.until("E")
        assert fields(got[-1][1])["C"] == "57014"
        why = client.session.explain("57014")
        assert why is not None
        assert "300 ms" in why.message
        await client.until("Z")


async def test_leaving_ends_what_is_open(tenant: Tenant) -> None:
    """A transaction, and a statement that runs: neither holds anything, and nothing of them is applied."""
    table = await tenant.table()
    await tenant.query(f"insert into {table} values (1, 'before')")
    change = f"update {table} set b = 'after' where a = 1"
    async with connected(tenant) as client:
        await client.ask(f"begin; {change}")
        assert await tenant.is_held(table, 1)
    await eventually_async(lambda: _is_free(tenant, table))
    async with connected(tenant) as client:
        await client.send(query(f"{change} returning pg_sleep({LONG_S})"))
        await eventually_async(lambda: tenant.is_held(table, 1))
    await eventually_async(lambda: _is_free(tenant, table))
    assert await tenant.rows(f"select b from {table}") == [["before"]]


async def _is_free(tenant: Tenant, table: str) -> bool:
    return not await tenant.is_held(table, 1)


async def test_a_client_that_says_goodbye(tenant: Tenant) -> None:
    """The engine closes the connection, and what is written then is dropped."""
    async with connected(tenant) as client:
        await client.session.write(message("X"))
        assert await client.session.read() == b""
        await client.session.write(query("select 1"))
        assert await client.session.read() == b""


async def test_settings_that_the_engine_refuses(tenant: Tenant) -> None:
    """With its words. Nobody else notices: who comes next gets in."""
    for settings in ({"DateStyle": "garbage"}, {"client_encoding": "garbage"}, {"TimeZone": "Mars"}):
        with pytest.raises(StatementFailed, match=next(iter(settings))) as refused:
            async with connected(tenant, settings=settings):
                pass
        assert refused.value.sqlstate == "22023"
        assert await tenant.value("select 1") == 1
    async with connected(tenant) as client:
        assert [kind for kind, _ in await client.ask("select 1")] == ["T", "D", "C", "Z"]


async def test_who_may_only_read_cannot_write(tenant: Tenant) -> None:
    table = await tenant.table()
    async with connected(tenant, tenant.reader) as client:
        assert fields((await client.ask(f"insert into {table} values (1)"))[0][1])["C"] == "25006"
        await client.ask("set default_transaction_read_only = off")
        assert fields((await client.ask(f"insert into {table} values (1)"))[0][1])["C"] in ("25006", "42501")


async def test_many_at_once_are_each_their_own(tenant: Tenant) -> None:
    """What one of them sets or prepares, no other has."""

    async def work(number: int) -> bytes:
        async with connected(tenant) as client:
            await client.ask(f"set application_name = 'number {number}'; prepare mine as select {number}")
            [_, (_, row), *_] = await client.ask("execute mine")
            return row

    rows = await asyncio.gather(*(work(number) for number in range(5)))
    assert rows == [struct.pack(">hi", 1, 1) + str(number).encode() for number in range(5)]
