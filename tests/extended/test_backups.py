"""Backups on a schedule: made, kept, removed, and what a full disk or a crash does to them."""

import json
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.control import Control
from tests.dumps import LARGE, dumping
from tests.processes import alive
from tests.servers import mode, needs_linux
from tests.service import Service, new_data_dir, remove, start_service
from tests.waiting import eventually
from tests.workers import workers

PATIENCE_S = 60.0


@contextmanager
def backing_up(every_s: int = 1, keep: int = 2, workers: int = 1) -> Iterator[tuple[Service, Path]]:
    data_dir = new_data_dir()
    directory = data_dir.parent / "backups"
    flags = ["--backup-dir", str(directory), "--backup-every-s", str(every_s), "--backup-keep", str(keep)]
    service = start_service(data_dir, *flags, "--workers", str(workers))
    try:
        yield service, directory
        assert service.stop() == 0
    finally:
        if service.process.poll() is None:
            service.kill()
        remove(data_dir)


def files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*/*/*.dump"))


def made(service: Service) -> int:
    return service.log.count('"a backup was made"')


def failed(service: Service) -> int:
    return service.log.count('"a backup failed"')


def test_databases_are_backed_up_and_so_many_are_kept(tmp_path: Path) -> None:
    """By one of several workers, with modes that keep others out; and what was backed up can be restored."""
    with backing_up(workers=2) as (service, directory):
        control = Control(service, service.key)
        control.sql()("create table t as select generate_series(1, 10) as a")
        second = control.post("/v1/databases", {"name": "second"})
        seen = made(service)
        eventually(lambda: made(service) >= seen + 8, PATIENCE_S)
        found = {path.parent.name: sorted(path.parent.glob("*.dump")) for path in files(directory)}
        assert len(found) == 2
        assert all(1 <= len(names) <= 3 for names in found.values()), "two, and one more while the oldest is removed"
        home = directory / control.get("/v1/organization")["id"] / second["id"]
        assert json.loads((home / "about.json").read_text()) == {"organization": "default", "database": "second"}
        assert {mode(path) for path in directory.rglob("*.dump")} == {0o600}
        assert {mode(path) for path in [directory, *directory.rglob("*")] if path.is_dir()} == {0o700}
        main = control.get("/v1/databases/main")["id"]
        copy = tmp_path / "copy.dump"
        shutil.copy(found[main][0], copy)
        done = Command(service, tmp_path)("restore", str(copy), "restored")
        assert done.code == 0, done.err
        assert control.sql(database="restored").value("select sum(a) from t") == 55
        page = control.client.get("/metrics").text
        assert 'tuplegate_backups_total{result="made"}' in page
        assert "tuplegate_backup_age_seconds" in page
    assert not list(directory.rglob("*.part"))


def test_a_backup_is_not_made_before_it_is_due_also_after_a_restart() -> None:
    """The files say when the last one was."""
    data_dir = new_data_dir()
    directory = data_dir.parent / "backups"
    flags = ["--backup-dir", str(directory), "--backup-every-s", "3600"]
    service = start_service(data_dir, *flags)
    eventually(lambda: made(service) == 1, PATIENCE_S)
    assert service.stop() == 0
    [first] = files(directory)
    # One whose last backup is two hours old is due at once; this one is not.
    service = start_service(data_dir, *flags)
    control = Control(service, service.key or _key(service))
    control.post("/v1/databases", {"name": "second"})
    eventually(lambda: made(service) == 2, PATIENCE_S)
    assert service.stop() == 0
    assert len(files(directory)) == 2
    assert first in files(directory)
    remove(data_dir)


def _key(service: Service) -> str:
    from tuplegate.access.scopes import Scope
    from tuplegate.local import make_local_key
    from tuplegate.settings import load

    settings = load({"data_dir": str(service.data_dir), "engine": service.engine}, {}, None)
    return make_local_key(settings, "again", [Scope.ADMIN])


@needs_linux
def test_a_full_disk_removes_nothing_and_is_tried_again() -> None:
    """The log has the reason; when there is room again the next one is made."""
    with backing_up(keep=1) as (service, directory):
        eventually(lambda: made(service) >= 1, PATIENCE_S)
        Control(service, service.key).sql()(LARGE)
        [worker] = workers(service)
        before = resource.prlimit(worker, resource.RLIMIT_FSIZE, (100_000, -1))
        seen = made(service)
        eventually(lambda: failed(service) >= 2, PATIENCE_S)
        there = files(directory)
        assert len(there) == 1
        assert there[0].stat().st_size > 0
        assert made(service) <= seen + 1, "one may have been under way"
        assert not list(directory.rglob("*.dump.part"))
        resource.prlimit(worker, resource.RLIMIT_FSIZE, before)
        seen = made(service)
        eventually(lambda: made(service) > seen and there[0] not in files(directory), PATIENCE_S)


@needs_linux
def test_a_crash_in_the_middle_leaves_nothing_that_counts() -> None:
    """Half a file has another name, and goes with the next backup."""
    with backing_up(every_s=1) as (service, directory):
        control = Control(service, service.key)
        eventually(lambda: made(service) >= 1, PATIENCE_S)
        control.sql()(LARGE)
        home = files(directory)[0].parent
        [worker] = workers(service)
        # Stopped in the middle of writing, so that the crash comes there.
        eventually(lambda: bool(list(home.glob("*.dump.part"))) and bool(dumping(service)), PATIENCE_S)
        programs = dumping(service)
        subprocess.run(["kill", "-9", str(worker)], check=True)
        eventually(lambda: not any(alive(program) for program in programs), PATIENCE_S)
        left = list(home.glob("*.dump.part"))
        seen = made(service)
        eventually(lambda: made(service) > seen, PATIENCE_S)
        assert not any(path.exists() for path in left)
        assert all(path.read_bytes().startswith(b"PGDMP") for path in files(directory))


def test_a_directory_that_cannot_be_used_ends_the_start(tmp_path: Path) -> None:
    """Before anything else happens, and with its name."""
    (tmp_path / "file").touch()
    with pytest.raises(AssertionError, match="--backup-dir"):
        start_service(new_data_dir(), "--backup-dir", str(tmp_path / "file" / "x"), initialized=False)


def test_a_stop_ends_a_backup_that_is_being_made() -> None:
    """Without waiting for it, and without leaving half of it."""
    with backing_up() as (service, directory):
        Control(service, service.key).sql()(LARGE)
        eventually(lambda: bool(dumping(service)), PATIENCE_S)
        programs = dumping(service)
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(60) == 0
        assert not any(alive(program) for program in programs)
        assert not list(directory.rglob("*.dump.part"))
