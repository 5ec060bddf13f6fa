"""Stands in for `engine/bundled/sandbox` until that exists: the same names, without any wall. To be removed.

Replace the one import of this module, in `server.py`, by that of the sandbox.
"""

import os
import resource
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tuplegate.engine.bundled.binaries import before_exec, options_in
from tuplegate.engine.bundled.data_directory import Account


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The paths that a program keeps. The stand-in keeps all paths."""

    data: tuple[Path, ...]
    sockets: tuple[Path, ...]
    programs: tuple[Path, ...]
    readable: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class StartOptions:
    """How a program is started. The stand-in makes no namespaces."""

    account: Account
    directory: Path
    output: int
    inherited: tuple[int, ...] = ()
    process_bytes_max: int | None = None
    mapped_bytes_max: int | None = None
    file_bytes_max: int | None = None
    own_namespaces: bool = True


def start(command: list[str], sandbox: Sandbox, options: StartOptions) -> int:
    """Start the program as a child of ours and return its process id. Raises OSError."""
    limit = before_exec(signal.SIGKILL, options.process_bytes_max, options.mapped_bytes_max)

    def prepare_child() -> None:
        os.umask(0o077)
        if options.file_bytes_max is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (options.file_bytes_max, options.file_bytes_max))
        limit()

    process = subprocess.Popen(  # noqa: S603 — the engine's program, our arguments
        command,
        stdout=options.output,
        stderr=options.output,
        pass_fds=options.inherited,
        preexec_fn=prepare_child,  # noqa: PLW1509 — the supervisor has one thread
        **options_in(options.directory, options.account),
    )
    process.returncode = 0  # The caller waits for the child; subprocess must not.
    return process.pid
