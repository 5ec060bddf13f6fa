"""Starts a program in its sandbox as a child of the supervisor, in namespaces of its own where the system permits.

In a process namespace the program is process 1: nothing inside can see or signal a process outside, and killing the
program ends every process that it has started. With an IPC namespace, no other process reaches its System V memory and
semaphores. In a mount namespace the sandbox's hidden directories do not exist. Where the system refuses namespaces, the
program starts without them.

Contract: the calling process has one thread. `start` returns once the program was executed, or raises OSError with the
reason. The child is killed when the thread that started it ends.
"""

import ctypes
import errno
import os
import resource
import select
import signal
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from tuplegate.engine.bundled.sandbox import mounts
from tuplegate.engine.bundled.sandbox.account import Account
from tuplegate.engine.bundled.sandbox.kernel_files import write_text
from tuplegate.engine.bundled.sandbox.namespaces import Namespaces, fork, map_user
from tuplegate.engine.bundled.sandbox.walls import Sandbox, confine

_LIBC = ctypes.PyDLL(None, use_errno=True)
_PR_SET_PDEATHSIG: Final = 1
_READY: Final = b"+"
"""The child reports this just before the program replaces it."""
_NUMBER: Final = struct.Struct("=i")
_OOM_SCORE_ABOVE_OURS, _OOM_SCORE_MAX = 100, 1000
"""Some systems give the service itself a high score, and its children may not go below it."""


@dataclass(frozen=True, slots=True)
class StartOptions:
    """The way to start a program. `output` is the descriptor for its output; it also gets the `inherited` descriptors.

    `group` is the directory of the control group that it joins. When memory is short, the kernel ends a program with an
    `oom_score` before the service; one without has the service's score.
    """

    account: Account
    directory: Path
    output: int
    inherited: tuple[int, ...] = ()
    process_bytes_max: int | None = None
    mapped_bytes_max: int | None = None
    own_namespaces: bool = True
    group: Path | None = None
    oom_score: int = 0


def start(command: list[str], sandbox: Sandbox, options: StartOptions) -> int:
    """Start the program and return its process id. Raises OSError."""
    reading, writing = os.pipe()
    supervisor = os.pidfd_open(os.getpid())
    with open(reading, "rb") as report:
        # A handler that runs between the fork and the reset of all handlers would run in the child, too.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            if options.own_namespaces:
                pid, given = fork(options.account, mounts_too=bool(sandbox.hidden))
            else:
                pid, given = os.fork(), Namespaces.NONE
            if pid == 0:
                _become(command, sandbox, options, _Lines(writing, supervisor), given)
        finally:
            os.close(writing)
            os.close(supervisor)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        said = report.read()
    if said == _READY:
        return pid
    os.waitpid(pid, 0)
    number, text = _read_failure(said)
    raise OSError(number, f"{command[0]} could not be started: {text}")


def _read_failure(said: bytes) -> tuple[int, str]:
    failure = said.removeprefix(_READY)
    if len(failure) < _NUMBER.size:
        return errno.ECHILD, "it ended before the program was there"
    return _NUMBER.unpack_from(failure)[0], failure[_NUMBER.size :].decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class _Lines:
    """Descriptors of the child: `report` carries failures, and `supervisor` becomes readable when the supervisor
    ends."""

    report: int
    supervisor: int


def _become(command: list[str], sandbox: Sandbox, options: StartOptions, lines: _Lines, given: Namespaces) -> NoReturn:
    """Become the program, in the child. It keeps nothing of the supervisor but what the options name."""
    try:
        _reset_signals()
        os.setsid()
        _arrange_descriptors(options, keep=(lines.report, lines.supervisor))
        if Namespaces.USER in given:
            map_user(options.account)
        if options.oom_score:
            _set_oom_score(options.oom_score)
        if options.group is not None:
            write_text(options.group / "cgroup.procs", "0")
        if Namespaces.MOUNTS in given:
            with suppress(OSError):  # Some systems give namespaces and no right to mount; `find_missing_bounds` tells.
                mounts.hide(sandbox.hidden, sandbox.list_kept())
        os.chdir(options.directory)
        if options.account.switch:
            os.setgroups([])
            os.setresgid(*[options.account.gid] * 3)
            os.setresuid(*[options.account.uid] * 3)
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if select.select([lines.supervisor], [], [], 0)[0]:
            os._exit(1)  # the supervisor ended before the kernel was told
        _set_limits(options)
        os.umask(0o077)
        confine(sandbox, in_namespace=bool(given))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.write(lines.report, _READY)
        os.execve(  # noqa: S606 - the engine's program, our arguments
            command[0], command, {"PATH": "/usr/bin:/bin", "LANG": "C", "HOME": str(options.directory)}
        )
    except BaseException as exc:  # noqa: BLE001 - the child must not unwind into the supervisor's code
        number = (exc.errno or 0) if isinstance(exc, OSError) else 0
        os.write(lines.report, _NUMBER.pack(number) + str(exc).encode())
    finally:
        os._exit(127)


def _reset_signals() -> None:
    """Reset all signals: a program expects each to be handled by default, and not ignored."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)


def _arrange_descriptors(options: StartOptions, keep: tuple[int, ...]) -> None:
    """Close all descriptors but the standard ones and those to keep."""
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.dup2(options.output, 1)
    os.dup2(options.output, 2)
    for descriptor in options.inherited:
        os.set_inheritable(descriptor, True)
    for descriptor in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, *keep, *options.inherited}:
        with suppress(OSError):  # one was open only to list them
            os.close(descriptor)


def _set_oom_score(score: int) -> None:
    path = Path("/proc/self/oom_score_adj")
    write_text(path, str(min(_OOM_SCORE_MAX, max(score, int(path.read_text()) + _OOM_SCORE_ABOVE_OURS))))


def _set_limits(options: StartOptions) -> None:
    for kind, bound in (
        (resource.RLIMIT_DATA, options.process_bytes_max),
        (resource.RLIMIT_AS, options.mapped_bytes_max),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        if bound is not None:
            resource.setrlimit(kind, (bound, bound))
    try:
        # Backends that do not preempt the service when they wake give it 20 to 35 % more throughput.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError:
        pass  # A container may forbid it; it is only faster.
