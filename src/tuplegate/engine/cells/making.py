"""Makes, copies and removes the directories of cells.

Contract: a cell is complete or it does not exist. A directory is made under a name that is no id, written to the disk,
and then renamed; it is removed the other way round. So a kill at any moment leaves only directories that
`remove_leftovers` removes. Every function here blocks, some for seconds: the supervisor calls none of them while it
watches. Processes may make different cells at the same time.

Copies hold regular files and directories only. A tenant can put anything into a cell, and root copies it.
"""

import fcntl
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tuplegate.engine.bundled.binaries import Binaries, run_program
from tuplegate.engine.bundled.data_directory import MAKING, BundledEngineError
from tuplegate.engine.bundled.sandbox.account import Account
from tuplegate.engine.cells.layout import (
    DATA,
    RUN,
    CellError,
    CellsDirectory,
    find_account,
    find_free_account,
    give_to,
    lock_server,
    make_directory,
    open_directory,
)
from tuplegate.engine.cells.server import SUPERUSER
from tuplegate.engine.cells.trees import CopyMethod, TreeCopy, remove_tree, sync_file_system

PREPARED_FORM = 2
"""The version of what `prepare_data` makes; a new number makes the template anew."""

_SPARE = "spare-"
_REMOVING = "removing-"
_PASSWORD = "password"  # noqa: S105 — the name of a file
_PASSWORD_BYTES = 32


@dataclass(frozen=True)
class Prepared:
    """A data directory that new cells are copied from, and the password of its superuser."""

    data: Path
    password: str


@contextmanager
def prepare_data(directory: CellsDirectory, programs: Binaries, account: Account) -> Iterator[Prepared]:
    """Yield data made by initdb, which takes seconds, and remove them afterwards: the password of their superuser is
    for one server alone.

    initdb runs as the account, which must have a name on this machine: initdb insists on it, and cells have none.
    """
    making = Path(tempfile.mkdtemp(prefix=MAKING, dir=directory.prepared))
    try:
        with _errors_name(making):
            _initialize(making, programs, account)
        yield Prepared(making / DATA, (making / _PASSWORD).read_text("ascii"))
    finally:
        remove_tree(making)


def _initialize(making: Path, programs: Binaries, account: Account) -> None:
    """Run initdb in a directory that its account may enter only meanwhile."""
    with open_directory(making) as fd:
        _check_reach(making, account)
        os.fchmod(fd, 0o711)
        make_directory(DATA, fd, account)
        password = os.open(_PASSWORD, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=fd)
        try:
            os.write(password, secrets.token_urlsafe(_PASSWORD_BYTES).encode())
            give_to(password, account)
            run_program(_command_initdb(making, programs), making, account)
            os.fchown(password, os.geteuid(), os.getegid())
        finally:
            os.close(password)
        os.fchmod(fd, 0o700)


def _command_initdb(making: Path, programs: Binaries) -> list[str]:
    builtin = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    return [
        *(str(programs.path / "initdb"), "-D", str(making / DATA), "-U", SUPERUSER, "--encoding=UTF8"),
        *(builtin if programs.major >= 17 else ["--locale=C.UTF-8"]),
        *("--auth-local=scram-sha-256", "--auth-host=reject", f"--pwfile={making / _PASSWORD}"),
        # Each copy holds a segment of the log.
        *("--no-instructions", "--no-sync", "--wal-segsize=4"),
    ]


def make_cell(directory: CellsDirectory, data: Path, cell_id: str) -> CopyMethod:
    """Make a cell from the data directory of a stopped server. Raises CellError if the cell exists."""
    target = directory.locate(cell_id)
    with _errors_name(target), open_directory(data) as source:
        return _copy_data(directory, source, target)


def make_spare(directory: CellsDirectory, data: Path, form: str) -> None:
    """Make a cell ahead of its use. `form` identifies the content of the data directory that it is copied from."""
    target = directory.prepared / f"{_SPARE}{form}-{secrets.token_hex(8)}"
    with _errors_name(target), open_directory(data) as source:
        _copy_data(directory, source, target)


def list_spares(directory: CellsDirectory, form: str) -> list[Path]:
    return [path for path in directory.prepared.iterdir() if path.name.startswith(f"{_SPARE}{form}-")]


def take_spare(directory: CellsDirectory, form: str, cell_id: str) -> bool:
    """Turn a spare into the cell. Return whether there was a spare. Raises CellError if the cell exists."""
    target = directory.locate(cell_id)
    with _errors_name(target):
        if target.exists():
            raise CellError("it exists already")
        for spare in list_spares(directory, form):
            with suppress(FileNotFoundError):  # somebody else has taken it
                spare.rename(target)
                _sync_directory(target.parent)
                return True
    return False


def make_catalog(directory: CellsDirectory, programs: Binaries, account: Account) -> None:
    """Make the catalog's cell if it is missing. Raises CellError if it is missing but databases exist."""
    if directory.catalog.exists():
        return
    if any(cell_id.startswith("tg_") for cell_id in directory.list_cells()):
        raise CellError(
            f"{directory.catalog} is missing, which knows the names and keys of the databases in {directory.cells}:"
            " restore both from one copy, or choose another --data-dir"
        )
    with prepare_data(directory, programs, account) as prepared, _errors_name(directory.catalog):
        write_secret(directory.catalog_password, prepared.password)
        with open_directory(prepared.data) as source:
            _copy_data(directory, source, directory.catalog)


def write_secret(path: Path, text: str) -> None:
    """Write a file that only the service's user can read, atomically."""
    begun = path.with_suffix(".begun")
    begun.unlink(missing_ok=True)
    with open(os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    begun.rename(path)


def copy_cell(directory: CellsDirectory, source_id: str, cell_id: str) -> CopyMethod:
    """Make a cell with the data of another one, whose server must not run and cannot be started meanwhile."""
    target = directory.locate(cell_id)
    with (
        _errors_name(target),
        _stopped(directory.locate(source_id)) as cell,
        open_directory(DATA, cell) as source,
    ):
        return _copy_data(directory, source, target)


def remove_cell(directory: CellsDirectory, cell_id: str) -> None:
    """Remove a cell whose server does not run."""
    path = directory.locate(cell_id)
    with _errors_name(path):
        removing = directory.cells / f"{_REMOVING}{secrets.token_hex(8)}"
        with _stopped(path):
            path.rename(removing)
        _sync_directory(directory.cells)
        remove_tree(removing)


def remove_leftovers(directory: CellsDirectory) -> list[str]:
    """Remove all unfinished directories; call it while nobody makes or removes a cell. Return the failures."""
    failures = []
    for place in (directory.path, directory.cells, directory.prepared):
        for name in os.listdir(place):
            if name.startswith((MAKING, _REMOVING)):
                failures += _try_to_remove(place / name)
    return failures


def remove_old_spares(directory: CellsDirectory, form: str) -> list[str]:
    """Remove all spares of another form. Return the failures."""
    return [
        failure
        for path in directory.prepared.iterdir()
        if path.name.startswith(_SPARE) and not path.name.startswith(f"{_SPARE}{form}-")
        for failure in _try_to_remove(path)
    ]


def _try_to_remove(path: Path) -> list[str]:
    try:
        remove_tree(path)
    except OSError as exc:
        return [f"{path} cannot be removed: {exc}"]
    return []


def _copy_data(directory: CellsDirectory, source: int, target: Path) -> CopyMethod:
    with _making(target) as making, open_directory(making) as cell:
        account = _claim_account(directory, cell)
        _check_reach(making, account)
        make_directory(RUN, cell, account)
        make_directory(DATA, cell, account)
        with open_directory(DATA, cell) as data:
            method = TreeCopy(account).copy(source, data, skipped=("postmaster.pid",))
        sync_file_system(cell)
        return method


def _claim_account(directory: CellsDirectory, cell: int) -> Account:
    """Give the directory of a new cell to an account that no other cell has, not even one being made right now."""
    with open_directory(directory.cells) as cells:
        fcntl.flock(cells, fcntl.LOCK_EX)
        account = find_free_account(directory)
        give_to(cell, account)
    return account


@contextmanager
def _making(target: Path) -> Iterator[Path]:
    """Make a directory beside the target. Rename it at the end of the block; remove it if the block fails."""
    if target.exists():
        raise CellError("it exists already")
    making = Path(tempfile.mkdtemp(prefix=MAKING, dir=target.parent))
    try:
        yield making
        making.rename(target)
    except BaseException:
        remove_tree(making)
        raise
    _sync_directory(target.parent)


@contextmanager
def _stopped(path: Path) -> Iterator[int]:
    """Open a cell, and hold the lock of its server so that none runs or starts."""
    with open_directory(path) as cell:
        lock = lock_server(cell, find_account(cell))
        if lock is None:
            raise CellError("its server runs, or processes of it do: stop them first")
        try:
            yield cell
        finally:
            os.close(lock)


@contextmanager
def _errors_name(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, CellError, BundledEngineError) as exc:
        raise CellError(f"{path}: {exc}") from exc


def _check_reach(path: Path, account: Account) -> None:
    if blocking := account.blocked_by(path):
        raise CellError(f"user {account.uid}, whom the cell runs as, may not enter {blocking}: let all users enter it")


def _sync_directory(path: Path) -> None:
    with open_directory(path) as fd:
        os.fsync(fd)
