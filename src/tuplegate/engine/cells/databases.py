"""Makes, copies, measures and drops cells, and reaches the one database in each of them.

A cell is named after its database. Its passwords and the secret that signs its records are derived from the
installation's secret and that name, so they open no other cell. A cell that was just made or copied still has the
template's or the source's: it is settled before anybody uses it, and notes that last. Every step may be repeated.
"""

import asyncio
import hashlib
import hmac
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import structlog

from tuplegate.background import tick
from tuplegate.engine import port
from tuplegate.engine.bundled.binaries import DumpTool
from tuplegate.engine.bundled.data_directory import SOCKET_NAME
from tuplegate.engine.cells.files import measure_cell
from tuplegate.engine.cells.layout import DATA, RUN, CellError, CellsDirectory, find_account, open_directory
from tuplegate.engine.cells.line import CellLine
from tuplegate.engine.cells.making import copy_cell, list_spares, make_cell, make_spare, remove_cell, take_spare
from tuplegate.engine.cells.server import SUPERUSER
from tuplegate.engine.cells.template import Template, conninfo_of
from tuplegate.engine.libpq.connections.commands import LoginRefused
from tuplegate.engine.libpq.connections.identity import FIND_IDENTITY, NOTE_IDENTITY
from tuplegate.engine.libpq.connections.logins import derive_password, write_keys
from tuplegate.engine.libpq.values.quoting import quote, quote_text
from tuplegate.engine.postgres.preparation import foundation
from tuplegate.engine.postgres.rights.roles import undo_default_rights
from tuplegate.engine.postgres.rights.walls import FULL
from tuplegate.engine.postgres.service import metadata, records
from tuplegate.engine.postgres.service.admin import METADATA_DATABASE, AdminConnector, AdminSession, set_password
from tuplegate.engine.postgres.tenancy.databases import PostgresDatabases
from tuplegate.engine.postgres.transfer.following import Limits
from tuplegate.engine.postgres.transfer.record_copies import bring_notes

_log = structlog.get_logger()
_T = TypeVar("_T")

SETTLE_S_MAX = 60.0
"""The limit for settling a cell; the server of a cell that takes longer is killed."""
_LET_END_S = 4.0
"""How long a copy waits for statements on its source. Meanwhile, other work on the source is refused after 10 s."""
_SPARES = 2
_SPARES_AFTER_S, _SPARES_EVERY_S, _SPARES_AGAIN_S = 5.0, 0.5, 60.0
"""Wait after the start, which has more urgent work; between counts of spares; and after a copy that failed."""
_NAMED_AFTER = "SELECT rolname FROM pg_catalog.pg_roles WHERE starts_with(rolname, $1)"


@dataclass(frozen=True, slots=True)
class Installation:
    """An installation's cells: their directory, the template for new ones, and the secret that their passwords come
    from.

    `tools` are the bundled programs that dump; `tools_of` returns them for one cell.
    """

    secret: bytes
    directory: CellsDirectory
    template: Template
    tools: tuple[DumpTool, ...]
    limits: Limits

    def secret_of(self, name: str) -> bytes:
        """Return the secret of a cell, which opens no other one."""
        return hmac.digest(self.secret, f"cell/{name}".encode(), hashlib.sha256)

    def login(self, name: str) -> str:
        """Return the conninfo of the service's own role in a cell."""
        return self._conninfo(name, AdminConnector("").owners.service, name)

    def superuser(self, name: str, source: str = "") -> str:
        """Return the conninfo of a cell's superuser. `source` is the cell that this one was just copied from."""
        return self._conninfo(name, SUPERUSER, source or name)

    def superuser_of_template(self, name: str) -> str:
        """Return the conninfo of the superuser in a cell that was just copied from the template."""
        return conninfo_of(self.directory.locate(name) / RUN, SUPERUSER, self.template.password)

    def _conninfo(self, name: str, role: str, cell: str) -> str:
        secret = self.secret_of(cell)
        login = conninfo_of(self.directory.locate(name) / RUN, role, derive_password(secret, role))
        return f"{login} {write_keys(secret, role)}"

    def databases(self, name: str) -> PostgresDatabases:
        """Return the databases of a cell's server: its tenant's database, and the service's own."""
        connector = AdminConnector(self.login(name))
        return PostgresDatabases(connector, self.secret_of(name), None, FULL, self.tools_of(name), self.limits)

    def tools_of(self, name: str) -> tuple[DumpTool, ...]:
        """Return the programs that dump a cell. They run as the cell's account: no other may enter its directory."""
        try:
            with open_directory(self.directory.locate(name)) as cell:
                account = find_account(cell)
        except (OSError, CellError) as failure:
            raise port.EngineUnavailable("the files of the database are not there", failure) from failure
        return tuple(replace(tool, account=account) for tool in self.tools)

    def identity(self, name: str) -> tuple[str, str, str]:
        """Return the identity that a settled cell has noted: the installation's mark, the cell's name and its
        furnishing."""
        mark = hmac.digest(self.secret, b"cells", hashlib.sha256).hex()
        return (mark, name, self.template.furnishing)


class CellDatabases:
    """Fills the port's `EngineDatabases`: one server for each database.

    `starts_servers`: this process has one thread and must keep it, since a fork beside another thread can hang for
    ever.
    """

    def __init__(self, installation: Installation, line: CellLine, *, starts_servers: bool = False) -> None:
        self._installation = installation
        self._work = _here if starts_servers else work_in_thread
        self._directory = installation.directory
        self._line = line

    def furnishing_of(self, name: str) -> str:
        """Return the same for every cell: each is brought up to date when it wakes, by its noted identity."""
        return "cell"

    @asynccontextmanager
    async def reach(self, name: str) -> AsyncIterator[PostgresDatabases]:
        async with self._line.use(name):
            await self.settle(name)
            yield self._installation.databases(name)

    async def create(self, name: str, *, for_copy: bool = False) -> None:
        if not self._directory.locate(name).exists():
            await self._work(partial(self._make, name))
        async with self._line.use(name):
            await self.settle(name, self._installation.superuser_of_template(name))
            if for_copy:
                async with self._installation.databases(name).side(name).tenant() as session:
                    await session.run_atomically([(statement, ()) for statement in undo_default_rights(name)])

    def _make(self, name: str) -> None:
        template = self._installation.template
        if not take_spare(self._directory, template.form, name):
            make_cell(self._directory, template.data, name)

    async def keep_spares(self) -> None:
        """Copy spare cells ahead, so that new databases are there at once. One worker does so for all."""
        template = self._installation.template
        pause_s = _SPARES_AFTER_S
        while True:
            await tick(pause_s)
            pause_s = _SPARES_EVERY_S
            if len(list_spares(self._directory, template.form)) >= _SPARES:
                continue
            try:
                await self._work(partial(make_spare, self._directory, template.data, template.form))
            except port.EngineUnavailable as failure:
                _log.warning("no cell can be copied ahead", reason=str(failure.__cause__))
                pause_s = _SPARES_AGAIN_S

    async def copy(self, source: str, name: str) -> None:
        """Copy the files of the source, which sleeps meanwhile. Raises EngineBusy if it stays in use for too long."""
        if not self._directory.locate(source).exists():
            raise port.EngineBusy("the source was deleted; nothing was copied")
        if not self._directory.locate(name).exists():
            async with self._line.halt(source, let_end_s=_LET_END_S):
                await self._work(partial(copy_cell, self._directory, source, name))
        async with self._line.use(name):
            await self.settle(name, self._installation.superuser(name, source))

    async def keep_outcomes(self, source: str, name: str) -> None:
        async with self.reach(source) as there, self.reach(name) as here:
            await bring_notes(there.side(source), here.side(name))

    async def drop(self, name: str) -> None:
        if not self._directory.locate(name).exists():
            return
        async with self._line.halt(name, let_end_s=0) as halted:
            if self._directory.locate(name).exists():  # somebody else can have been quicker
                await self._work(partial(remove_cell, self._directory, name))
            halted.is_gone = True

    def count(self) -> dict[str, int]:
        """Return the numbers of sleeping and of awake cells. The count does not look at sleeping cells."""
        count = sum(name.startswith("tg_") for name in os.listdir(self._directory.cells))
        awake = min(count, self._line.awake_count)
        return {"asleep": count - awake, "awake": awake}

    async def drop_left_roles(self) -> None:
        """Do nothing: the roles of a cell go with it."""

    async def forget_source(self, source: str) -> None:
        """Do nothing: the roles that a move has left in a cell harm nobody."""

    async def sizes(self, names: Sequence[str]) -> dict[str, int]:
        """Measure the files: no cell is waked for that."""
        return await self._work(partial(self._measure, list(names)))

    def _measure(self, names: list[str]) -> dict[str, int]:
        found = {}
        for name in names:
            try:
                found[name] = measure_cell(self._directory.locate(name) / DATA, self._installation.template.oid)
            except (OSError, CellError):
                continue  # it is just removed, or was never here
        return found

    async def find_awake(self, names: Sequence[str]) -> set[str]:
        return self._find_awake(names)

    def _find_awake(self, names: Sequence[str]) -> set[str]:
        """Return the cells whose server takes connections, by their sockets, without asking a process. There may be
        very many, and a `Path` takes five times as long."""
        cells = self._directory.cells
        return {name for name in names if os.path.exists(f"{cells}/{name}/{RUN}/{SOCKET_NAME}")}

    async def load(self) -> port.Load:
        return port.Load(0, 0, 0)

    # -- settling -----------------------------------------------------------------------------------------------

    async def settle(self, name: str, former: str = "") -> None:
        """Give an awake cell its own names and passwords, and bring it up to date. `former` is the conninfo of the
        superuser with the password of the original, for a cell that was just copied. Raises EngineUnavailable if that
        takes too long."""
        try:
            async with asyncio.timeout(SETTLE_S_MAX):
                await self._settle(name, former)
        except TimeoutError as failure:
            self._line.kill(name, f"it was not made ready within {SETTLE_S_MAX:g} s")
            raise port.EngineUnavailable("the database does not answer") from failure

    async def _settle(self, name: str, former: str) -> None:
        installation = self._installation
        try:
            async with AdminSession(AdminConnector(installation.login(name)), METADATA_DATABASE) as session:
                if await session.fetch(FIND_IDENTITY) == [installation.identity(name)]:
                    return
        except port.EngineUnavailable as failure:
            if not former or not isinstance(failure.__cause__, LoginRefused):
                raise
        found = AdminConnector(await self._find_superuser(name, former))
        superuser = AdminConnector(installation.superuser(name))
        async with AdminSession(found, METADATA_DATABASE, patient=True) as session:
            await session.fetch(metadata.LOCK)
            [(_, settled_as, furnishing)] = await session.fetch(FIND_IDENTITY)
            await _rename(session, name)
            await set_password(session, SUPERUSER, installation.secret_of(name))
        if furnishing != installation.template.furnishing:
            await foundation.make_metadata_database(superuser)
        async with AdminSession(superuser, METADATA_DATABASE) as session:
            await foundation.hand_over(session, superuser.owners, installation.secret_of(name))
        if furnishing != installation.template.furnishing:
            await foundation.furnish(superuser, name, FULL)
        if settled_as != name:
            await _become_own(superuser, name)
        await installation.databases(name).open(name)
        async with AdminSession(superuser, METADATA_DATABASE) as session:
            await note_identity(session, installation.identity(name))

    async def _find_superuser(self, name: str, former: str) -> str:
        """Return the superuser's conninfo, with the cell's own password or with that of its original."""
        own = self._installation.superuser(name)
        if not former:
            return own
        for conninfo in (former, own):
            try:
                async with AdminSession(AdminConnector(conninfo), METADATA_DATABASE) as session:
                    await session.fetch("SELECT 1")
            except port.EngineUnavailable as failure:
                if not isinstance(failure.__cause__, LoginRefused):
                    raise
            else:
                return conninfo
        raise port.EngineUnavailable("the database does not let the service in")


async def note_identity(session: AdminSession, identity: tuple[str, str, str]) -> None:
    """Note which database the cell is, and which furnishing this version has made there."""
    await session.run_atomically([("DELETE FROM engine.identity", ()), (NOTE_IDENTITY, identity)])


async def _rename(session: AdminSession, name: str) -> None:
    """Rename the tenant's database and its roles, if they still have the original's names."""
    rows = await session.fetch("SELECT datname FROM pg_catalog.pg_database WHERE starts_with(datname, 'tg_')")
    if rows == [(name,)]:
        return
    if len(rows) != 1:
        raise port.EngineUnavailable("the server of the database has other databases, too")
    former = str(rows[0][0])
    roles = [str(row[0]) for row in await session.fetch(_NAMED_AFTER, f"{former}_")]
    renaming = [f"ALTER ROLE {quote(role)} RENAME TO {quote(name + role.removeprefix(former))}" for role in roles]
    renaming.append(f"ALTER DATABASE {quote(former)} RENAME TO {quote(name)}")
    await session.run_atomically([(statement, ()) for statement in renaming])


async def _become_own(superuser: AdminConnector, name: str) -> None:
    """Commit transactions that were prepared in the original, since prepared means decided, and delete its records."""
    async with AdminSession(superuser, name) as session:
        for (gid,) in await session.fetch("SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE database = $1", name):
            await session.fetch(f"COMMIT PREPARED {quote_text(str(gid))}")
        await session.fetch(records.EMPTY)
    async with AdminSession(superuser, METADATA_DATABASE) as session:
        await session.fetch("TRUNCATE engine.recovered")


async def work_in_thread(work: Callable[[], _T]) -> _T:
    """Run work on files in a thread, to its end however often the caller is cancelled: until then nobody else may have
    the directory. Raises EngineUnavailable."""
    done = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not done.done():
        try:
            await asyncio.wait([done])
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled is not None:
        raise cancelled
    try:
        return done.result()
    except CellError as failure:
        raise _explain(failure) from failure


async def _here(work: Callable[[], _T]) -> _T:
    """Run work on files while everything else waits."""
    try:
        return work()
    except CellError as failure:
        raise _explain(failure) from failure


def _explain(failure: CellError) -> port.EngineUnavailable:
    return port.EngineUnavailable("the files of the database could not be made, copied or removed", failure)
