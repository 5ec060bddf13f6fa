"""Dumps tenants' databases with PostgreSQL's own pg_dump, as a stream in the format that pg_restore reads.

Contract: the program runs with the rights of the tenant's writing role and no others (`roles.write_dumping`). So code
in the tenant's catalog can only reach the tenant's own objects. The program reads in one REPEATABLE READ, READ ONLY
transaction: that takes no room in the check of serializable transactions, and the guard need not know it. The service's
own objects are left out. The wait for locks is bounded, and so is the whole dump. The program does not outlive the
block it was opened in, nor this process.

One dump of a database runs at a time, few in an installation, and an organization has at most half of these. Names held
in the engine ensure that.
"""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import structlog

from tuplegate.engine import port
from tuplegate.engine.bundled.binaries import DumpTool
from tuplegate.engine.libpq.connections.connecting import wait_ready
from tuplegate.engine.postgres.rights import roles
from tuplegate.engine.postgres.service.admin import METADATA_DATABASE, AdminConnector, AdminSession
from tuplegate.engine.postgres.service.scratch_names import find_schemas
from tuplegate.engine.postgres.transfer import carrying

_log = structlog.get_logger()

_LOCK_WAIT_S = 10
_BLOCK_BYTES = 128 * 1024
_SAID_BYTES_MAX = 8 * 1024
_SAID_CHARACTERS_MAX = 1000
_LOCKED = "canceling statement due to statement timeout"
"""The error of a wait for a lock: the program uses this timeout only for those."""


class Dumps:
    """Dumps databases, within the bounds of the installation. `hold` is the ledger's, and `hold_place` the same for all
    engines of the installation."""

    def __init__(
        self,
        connector: AdminConnector,
        hold: Callable[[str], AbstractAsyncContextManager[bool]],
        secret: bytes,
        tools: tuple[DumpTool, ...],
        at_once_max: int,
        hold_place: Callable[[str], AbstractAsyncContextManager[bool]],
    ) -> None:
        self._connector = connector
        self._hold = hold
        self._hold_place = hold_place
        self._secret = secret
        self._tools = tools
        self._at_once_max = at_once_max
        self._running: set[_Program] = set()

    @asynccontextmanager
    async def dump(
        self,
        database: str,
        organization: str | None,
        settings: Mapping[str, str],
        major: int,
        timeout_s: float,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Dump a database. `settings` are those of a tenant's session, `major` is the server's version."""
        tool = self._tool(major)
        async with AsyncExitStack() as held:
            await self._take_place(held, database, organization)
            program = _Program(tool, timeout_s)
            self._running.add(program)
            try:
                left_out = await self._prepare(database)
                program.start(*await self._command(tool, database, settings, left_out))
                first = await program.read_first()
                yield program.blocks(first)
            finally:
                await _wait_to_its_end(self._clean_up(program, database))

    async def _clean_up(self, program: "_Program", database: str) -> None:
        self._running.discard(program)
        await program.end()
        await self._forget(database)

    def stop(self) -> None:
        """End all dumps, because the service stops."""
        for program in self._running:
            program.stop("the service stops")

    def _tool(self, major: int) -> DumpTool:
        for tool in self._tools:
            if tool.major >= major:
                return tool
        newest = max((tool.major for tool in self._tools), default=None)
        found = "none was found" if newest is None else f"the newest found is {newest}"
        raise port.NotSupported(f"a dump needs PostgreSQL's program pg_dump, version {major} or newer; {found}")

    async def _take_place(self, held: AsyncExitStack, database: str, organization: str | None) -> None:
        if not await held.enter_async_context(self._hold(port.Lock.DUMP.name_in(database))):
            raise port.AlreadyRunning("the database is being dumped already")
        share = max(1, self._at_once_max // 2)
        if organization is not None and not await self._take_one(held, f"dump-share/{organization}", share):
            raise port.EngineBusy(f"{share} dumps of this organization are being made already, and no more may be")
        if not await self._take_one(held, "dump-place", self._at_once_max):
            raise port.EngineBusy(f"{self._at_once_max} dumps are being made already, and no more may be")

    async def _take_one(self, held: AsyncExitStack, name: str, count: int) -> bool:
        for number in range(count):
            if await held.enter_async_context(self._hold_place(f"{name}/{number}")):
                return True
        return False

    async def _prepare(self, database: str) -> list[str]:
        """Make the role, which a database has only while it is dumped; return the schemas that are not the tenant's."""
        async with AdminSession(self._connector, METADATA_DATABASE) as session:
            await carrying.make_dump_role(session, database, self._connector.owners, self._secret)
        async with AdminSession(self._connector, database) as session:
            if forced := await session.fetch(carrying.FORCED):
                raise port.DumpFailed(
                    f"the table {forced[0][0]} has FORCE ROW LEVEL SECURITY, so that rows could be missing in a dump",
                    hint="ALTER TABLE … NO FORCE ROW LEVEL SECURITY, and force it again after the dump.",
                )
            return ["tuplegate", *await find_schemas(session, self._secret)]

    async def _forget(self, database: str) -> None:
        try:
            async with AdminSession(self._connector, METADATA_DATABASE) as session:
                await session.fetch(f"DROP ROLE IF EXISTS {roles.name_dump_role(database)}")
        except port.EngineFailure as failure:
            # The role goes with the next dump, or with the database.
            _log.warning("the role of a dump was not removed", database=database, reason=str(failure))

    async def _command(
        self, tool: DumpTool, database: str, settings: Mapping[str, str], left_out: list[str]
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command line and its variables. A password is only in the variables."""
        side = carrying.Side(self._connector, self._secret, self._tools, database)
        variables, rest = await side.conninfo(roles.name_dump_role(database), {**settings, **carrying.DUMP_SETTINGS})
        command = [str(tool.program), "--format=custom", "--no-owner", "--no-privileges", "--no-password"]
        command += [f"--exclude-schema={schema}" for schema in left_out]
        command += [f"--lock-wait-timeout={_LOCK_WAIT_S * 1000}", *([f"--dbname={rest}"] if rest else [])]
        return command, variables


class _Program:
    """One run of pg_dump. Its output is read on demand, so a slow reader slows it down."""

    def __init__(self, tool: DumpTool, timeout_s: float) -> None:
        self._tool = tool
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._said = b""
        self._stopped: port.DumpFailed | None = None

    def start(self, command: list[str], variables: dict[str, str]) -> None:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "bufsize": 0}
        process = self._process = self._tool.start(command, variables, **pipes)
        assert process.stdout is not None
        assert process.stderr is not None
        os.set_blocking(process.stdout.fileno(), False)
        os.set_blocking(process.stderr.fileno(), False)
        self._loop.add_reader(process.stderr.fileno(), self._hear)
        self._timer = self._loop.call_later(self._timeout_s, self._expire)

    async def read_first(self) -> bytes:
        """Return so much of its output that a small dump is complete by then, or has failed."""
        found = b""
        while len(found) < _BLOCK_BYTES:
            block = await self.read()
            if not block:
                break
            found += block
        return found

    async def blocks(self, first: bytes) -> AsyncIterator[bytes]:
        block = first
        while block:
            yield block
            block = await self.read()

    async def read(self) -> bytes:
        """Return the next bytes; none at the end. Raises if the program has failed."""
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while True:
            try:
                block = os.read(descriptor, _BLOCK_BYTES)
            except BlockingIOError:
                await wait_ready(self._loop, descriptor, reading=True)
                continue
            if not block and await carrying.wait_for_exit(self._process) != 0:
                raise self._failure()
            return block

    async def end(self) -> None:
        """End the program if it has not ended by itself, and release its resources. May be repeated."""
        if self._timer is not None:
            self._timer.cancel()
        process = self._process
        if process is None:
            return
        assert process.stdout is not None
        assert process.stderr is not None
        await carrying.end_program(process)
        self._loop.remove_reader(process.stderr.fileno())
        process.stdout.close()
        process.stderr.close()
        self._process = None

    def stop(self, reason: str) -> None:
        self._stop(port.DumpStopped(reason))

    def _expire(self) -> None:
        self._stop(port.DumpFailed(f"the dump took longer than {self._timeout_s:g} s and was ended"))

    def _stop(self, failure: port.DumpFailed) -> None:
        self._stopped = self._stopped or failure
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def _hear(self) -> None:
        """Read the program's messages, so that it does not block on them; keep their end."""
        assert self._process is not None
        assert self._process.stderr is not None
        descriptor = self._process.stderr.fileno()
        try:
            heard = os.read(descriptor, _BLOCK_BYTES)
        except BlockingIOError:
            return
        if not heard:
            self._loop.remove_reader(descriptor)
        self._said = (self._said + heard)[-_SAID_BYTES_MAX:]

    def _failure(self) -> port.EngineFailure:
        if self._stopped is not None:
            return self._stopped
        self._hear_rest()
        said = self._said.decode("utf-8", "replace")
        if carrying.NO_CONNECTION in said:
            return port.EngineUnavailable("the dump got no connection to the engine", _bound_length(said))
        if _LOCKED in said:
            return port.EngineBusy(f"a table was locked by a statement for {_LOCK_WAIT_S} s; try again later")
        errors = [line.partition("error: ")[2] for line in said.splitlines() if "error: " in line]
        message = errors[0] if errors else "the engine's program ended without a word"
        return port.DumpFailed(_bound_length(message), _bound_length(said))

    def _hear_rest(self) -> None:
        before = None
        while before != self._said:
            before = self._said
            self._hear()


async def _wait_to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end even if the caller is cancelled: a forgotten program would be worse than the wait."""
    task = asyncio.get_running_loop().create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as exc:
            cancelled = exc
    task.result()
    if cancelled is not None:
        raise cancelled


def _bound_length(text: str) -> str:
    return text.strip()[:_SAID_CHARACTERS_MAX]
