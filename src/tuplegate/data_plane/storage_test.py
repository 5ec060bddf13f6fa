"""`GET /storage/test`: writes random bytes, commits, reads them back on another connection, compares and deletes them.

A difference between the bytes written and read is the worst fault of a database. It has an error code of its own, and
is logged with both hashes.
"""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import perf_counter_ns
from typing import TypeVar

import msgspec
import structlog

from tuplegate.admission.identity import Identity, IdentityCache
from tuplegate.data_plane.engine_errors import to_service_error
from tuplegate.engine import port
from tuplegate.http.exchange import Exchange
from tuplegate.http.query_string import read_query, whole_number
from tuplegate.protocol.errors import ServiceError

_log = structlog.get_logger()
_encode = msgspec.json.Encoder().encode
_T = TypeVar("_T")

BYTES_MAX = 16 * 2**20
_BYTES = 2**20
_ROW_BYTES = 4 * 2**20
"""Twice as many bytes are sent, as digits; not every engine takes more in one message."""
_TIMEOUT_MS = 60_000


class StorageRoutes:
    def __init__(
        self, sessions: port.Sessions, locks: port.Locks, reports: port.Reports, identities: IdentityCache
    ) -> None:
        self._sessions = sessions
        self._locks = locks
        self._reports = reports
        self._identities = identities

    async def run(self, exchange: Exchange, identity: Identity) -> None:
        values = read_query(exchange, ("bytes",))
        size = whole_number(values, "bytes", _BYTES, 1, BYTES_MAX)
        target = await self._identities.find_target(identity, exchange)
        async with self._locks.hold(f"storage_test/{identity.principal.organization}") as free:
            if not free:
                raise ServiceError("already_running", "a storage test of this organization is running already")
            try:
                durability = await self._reports.durability(target)
                async with StorageTrial.open(self._sessions, target, size) as trial:
                    await trial.write()
                    await trial.commit()
                    await trial.read()
                    await trial.compare()
                    await trial.delete()
            except port.EngineFailure as failure:
                raise to_service_error(failure) from failure
        body = {
            "success": True,
            "bytes": size,
            "sha256": trial.written,
            "durable": durability.durable,
            "replicated": durability.replicated,
            "engine_settings": durability.settings,
            "steps_us": trial.steps_us,
        }
        exchange.respond(200, _encode(body))


class StorageTrial:
    """The steps, each timed. `writer` and `reader` are two connections; `written` and `found` are SHA-256 in hex."""

    def __init__(self, writer: port.EngineSession, reader: port.EngineSession, schema: str, size: int) -> None:
        self._writer = writer
        self._reader = reader
        self._table = f"{schema}.payload"
        self._size = size
        self._texts: list[str] = []
        self.written = ""
        self.found = ""
        self.steps_us: dict[str, int] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, sessions: port.Sessions, target: port.Target, size: int) -> AsyncIterator["StorageTrial"]:
        async with (
            sessions.scratch(target.database) as schema,
            sessions.session(target, _TIMEOUT_MS) as writer,
            sessions.session(target, _TIMEOUT_MS) as reader,
        ):
            yield cls(writer, reader, schema, size)

    async def write(self) -> None:
        payload = await _in_thread(lambda: secrets.token_bytes(self._size))
        self.written, texts = await _in_thread(lambda: (hashlib.sha256(payload).hexdigest(), _write_rows(payload)))
        await self._writer.run("BEGIN")
        await self._writer.run(f"CREATE TABLE {self._table} (place int PRIMARY KEY, body pg_catalog.bytea NOT NULL)")
        with self._timed("write"):
            for place, text in enumerate(texts):
                await self._writer.run(f"INSERT INTO {self._table} VALUES ($1, $2)", str(place), text)

    async def commit(self) -> None:
        with self._timed("commit"):
            await self._writer.run("COMMIT")

    async def read(self) -> None:
        with self._timed("read"):
            reply = await self._reader.run(f"SELECT body FROM {self._table} ORDER BY place")
        self._texts = [row[0] or "" for row in reply.rows]

    async def compare(self) -> None:
        with self._timed("compare"):
            self.found = await _in_thread(lambda: hashlib.sha256(_read_rows(self._texts)).hexdigest())
        if self.written != self.found:
            _log.error("storage test: what was read is not what was written", written=self.written, found=self.found)
            raise ServiceError(
                "storage_mismatch",
                "what was read is not what was written",
                detail=f"SHA-256 written {self.written}, read {self.found}",
            )

    async def delete(self) -> None:
        with self._timed("delete"):
            await self._writer.run(f"DELETE FROM {self._table}")

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        started = perf_counter_ns()
        yield
        self.steps_us[step] = (perf_counter_ns() - started) // 1000


def _write_rows(payload: bytes) -> list[str]:
    return ["\\x" + payload[at : at + _ROW_BYTES].hex() for at in range(0, len(payload), _ROW_BYTES)]


def _read_rows(texts: list[str]) -> bytes:
    return b"".join([bytes.fromhex(text[2:]) for text in texts])


async def _in_thread(work: Callable[[], _T]) -> _T:
    """Run the work in a thread: it takes too long for the event loop."""
    return await asyncio.get_running_loop().run_in_executor(None, work)
