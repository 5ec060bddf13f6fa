"""Scheduled backups: dump every database of the installation into a directory, and remove old dumps.

The files are the only state: a database is due when its newest file is older than the schedule allows. So a crash loses
nothing, and the next process continues where the last one stopped. One process of the installation makes backups at a
time; it holds a name in the engine.

A file gets its name once it is complete and on the disk, and only then is an older one removed. When the disk is full
or a database cannot be dumped, existing files stay, and the backup is tried again later. Backups of a deleted database
are left for the operator to remove.
"""

import asyncio
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

import structlog

from tuplegate.catalog.catalog import Catalog
from tuplegate.catalog.databases import Tenant
from tuplegate.engine.port import AlreadyRunning, Dumps, EngineBusy, EngineFailure, Locks
from tuplegate.metrics.sums import Counted

_log = structlog.get_logger()
_T = TypeVar("_T")

_LOOK_S = 10.0
_RETRY_S = 300.0
_AHEAD_S = 60.0
"""A file dated further in the future means that the clock was wrong; it is ignored."""
_PORTION_BYTES = 2**20
_TIME = "%Y%m%dT%H%M%SZ"
_NAME = re.compile(r"\d{8}T\d{6}Z\.dump")
_PART = ".part"
_ABOUT = "about.json"


@dataclass(frozen=True, slots=True)
class BackupRules:
    """The schedule of backups: `keep` counts those of one database, `timeout_s` is for one dump."""

    directory: Path
    every_s: int
    keep: int
    timeout_s: int


class Backups:
    """Makes the backups that are due. `made` and `failed` count since this process started."""

    def __init__(self, catalog: Catalog, dumps: Dumps, locks: Locks, rules: BackupRules) -> None:
        self._catalog = catalog
        self._dumps = dumps
        self._locks = locks
        self._rules = rules
        self._pause_s = min(_LOOK_S, rules.every_s / 2)
        self._newest: dict[str, float] = {}
        """Time of the newest backup of each existing database; if it has none, the time since which it lacks one."""
        self._not_before: dict[str, float] = {}
        self.made = self.failed = 0

    def measure(self) -> Counted:
        """Return its counts, named as in the table of metrics."""
        events = {"backups_total made": self.made, "backups_total failed": self.failed}
        return events, {} if self.age_s is None else {"backup_age_seconds": self.age_s}

    @property
    def age_s(self) -> float | None:
        """Age of the oldest newest backup; None if another process makes backups, or there is nothing to back up."""
        return max(time.time() - min(self._newest.values()), 0.0) if self._newest else None

    async def watch(self) -> None:
        """Make backups when they are due, for as long as the process lives."""
        while True:
            try:
                async with self._locks.hold("backups") as free:
                    while free:
                        await self._back_up_due()
                        await asyncio.sleep(self._pause_s)
            except (EngineFailure, OSError) as failure:
                _log.warning("backups could not be looked after", reason=str(failure))
            self._newest = {}
            await asyncio.sleep(self._pause_s)

    async def _back_up_due(self) -> None:
        """Back up each database that is due, one after the other."""
        tenants = await self._catalog.databases.list_active()
        found = await _run_in_thread(self._find_newest, tenants)
        now = time.time()
        self._newest = {one.id: found.get(one.id) or self._newest.get(one.id, now) for one in tenants}
        for tenant in tenants:
            newest = found.get(tenant.id)
            due = newest is None or newest + self._rules.every_s <= time.time()
            if due and self._not_before.get(tenant.id, 0) <= time.time():
                await self._back_up(tenant)

    async def _back_up(self, tenant: Tenant) -> None:
        started = time.time()
        try:
            size = await self._write(tenant)
        except (AlreadyRunning, EngineBusy) as failure:
            _log.warning("a backup has to wait", database=tenant.id, reason=str(failure))
            return
        except (EngineFailure, OSError) as failure:
            self.failed += 1
            self._not_before[tenant.id] = time.time() + min(_RETRY_S, self._rules.every_s)
            _log.error("a backup failed", database=tenant.id, reason=str(failure))
            return
        self.made += 1
        self._newest[tenant.id] = started
        _log.info("a backup was made", database=tenant.id, bytes=size, seconds=round(time.time() - started, 1))

    async def _write(self, tenant: Tenant) -> int:
        """Dump a database into a new file, and return its size."""
        directory = self._directory(tenant)
        name = datetime.now(UTC).strftime(_TIME) + ".dump"
        part = directory / (name + _PART)
        size = 0
        async with self._dumps.dump(tenant.engine_name, self._rules.timeout_s) as blocks:
            file = await _run_in_thread(_open, directory, part, tenant)
            try:
                portion: list[bytes] = []
                waiting = 0
                async for block in blocks:
                    portion.append(block)
                    waiting += len(block)
                    size += len(block)
                    if waiting >= _PORTION_BYTES:
                        await _run_in_thread(file.writelines, portion)
                        portion, waiting = [], 0
                await _run_in_thread(_finish, file, portion, part, directory / name)
            finally:
                try:
                    file.close()
                finally:
                    part.unlink(missing_ok=True)
        await _run_in_thread(_remove_old, directory, self._rules.keep)
        return size

    def _directory(self, tenant: Tenant) -> Path:
        return self._rules.directory / tenant.organization / tenant.id

    def _find_newest(self, tenants: list[Tenant]) -> dict[str, float]:
        found = {}
        for tenant in tenants:
            times = [_read_time(name) for name in _list_names(self._directory(tenant))]
            times = [at for at in times if at <= time.time() + _AHEAD_S]
            if times:
                found[tenant.id] = max(times)
        return found


def _list_names(directory: Path) -> list[str]:
    """Return the names of the backups in the directory, oldest first."""
    try:
        return sorted(name for name in os.listdir(directory) if _NAME.fullmatch(name))
    except FileNotFoundError:
        return []


def _read_time(name: str) -> float:
    try:
        return datetime.strptime(name.removesuffix(".dump"), _TIME).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0  # not a valid time


def _open(directory: Path, part: Path, tenant: Tenant) -> IO[bytes]:
    """Create the file of a dump, and remove partial files. Only the holder of the dump writes here, so a crash left
    them."""
    directory.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.parent.mkdir(mode=0o700, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    for left in directory.glob(f"*{_PART}"):
        left.unlink(missing_ok=True)
    about = {"organization": tenant.organization_name, "database": tenant.name}
    fresh = directory / (_ABOUT + _PART)
    with _create(fresh) as file:
        file.write(json.dumps(about).encode() + b"\n")
    fresh.replace(directory / _ABOUT)
    return _create(part)


def _create(path: Path) -> IO[bytes]:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def _finish(file: IO[bytes], rest: list[bytes], part: Path, whole: Path) -> None:
    file.writelines(rest)
    file.flush()
    os.fsync(file.fileno())
    part.rename(whole)
    directory = os.open(whole.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _remove_old(directory: Path, keep: int) -> None:
    for name in _list_names(directory)[:-keep]:
        (directory / name).unlink(missing_ok=True)


async def _run_in_thread(work: Callable[..., _T], *arguments: object) -> _T:
    """Run the work in a thread, since a disk can be slow. A cancelled caller waits for it to end: the file stays open
    for as long as the thread writes to it."""
    done = asyncio.get_running_loop().run_in_executor(None, partial(work, *arguments))
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait([done])
        raise
