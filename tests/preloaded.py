"""Runs the command `tuplegate` as `python -m tuplegate` does, without the time that Python takes to load it.

Each command is a process of its own, forked from one that has loaded what most commands need. It has run nothing of
ours. What is about the start itself, about signals or a terminal starts the command in full; so does whatever wants
another environment for Python.
"""

import atexit
import contextlib
import functools
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import IO, Any

PACKAGES = ("asyncio", "ssl", "logging.config", "click", "msgspec", "httpx", "psycopg", "structlog", "uvloop")
HIDDEN = ("httpx._main", "rich")
"""Modules that packages load if they are there, and that the command keeps from being loaded."""
OURS = ("tuplegate.cli.main", "tuplegate.client", "tuplegate.serve")

ROOT = Path(__file__).parent.parent
_SIZE_BYTES = 4


def run(
    arguments: Sequence[str], env: Mapping[str, str], given: str = "", timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in an environment that differs from ours in nothing that Python itself heeds."""
    with socket.socket(socket.AF_UNIX) as asked, ThreadPoolExecutor(3) as threads:
        asked.settimeout(timeout)
        (its_in, in_), (out, its_out), (err, its_err) = (os.pipe() for _ in range(3))
        theirs = [its_in, its_out, its_err]
        _order(asked, arguments, env, theirs)
        for descriptor in theirs:
            os.close(descriptor)
        threads.submit(_write, in_, given)
        said = [threads.submit(_read, descriptor) for descriptor in (out, err)]
        pid = int.from_bytes(_receive(asked, _SIZE_BYTES), "big")
        try:
            code = int.from_bytes(_receive(asked, _SIZE_BYTES), "big", signed=True)
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise
        return subprocess.CompletedProcess([*arguments], code, *(each.result() for each in said))


def start(arguments: Sequence[str], env: Mapping[str, str], out: IO[Any], err: IO[Any]) -> "Process":
    """Start a command that goes on, with its output in these files."""
    asked = socket.socket(socket.AF_UNIX)
    with open(os.devnull) as nothing:
        _order(asked, arguments, env, [nothing.fileno(), out.fileno(), err.fileno()])
    return Process(asked)


class Process:
    """A command that goes on, to be asked as `subprocess.Popen` is. Its parent tells its exit code over a socket."""

    def __init__(self, asked: socket.socket) -> None:
        self._asked = asked
        self.pid = int.from_bytes(_receive(asked, _SIZE_BYTES), "big")
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                self.wait(0)
            except subprocess.TimeoutExpired:
                pass
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._asked.settimeout(timeout)
            try:
                told = _receive(self._asked, _SIZE_BYTES)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("tuplegate", timeout or 0) from None
            self._asked.close()
            self.returncode = int.from_bytes(told, "big", signed=True)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _order(asked: socket.socket, arguments: Sequence[str], env: Mapping[str, str], streams: list[int]) -> None:
    order = json.dumps({"arguments": list(arguments), "env": dict(env), "cwd": str(Path.cwd())}).encode()
    asked.connect(_address())
    socket.send_fds(asked, [len(order).to_bytes(_SIZE_BYTES, "big")], streams)
    asked.sendall(order)


def _write(descriptor: int, text: str) -> None:
    with contextlib.suppress(BrokenPipeError), open(descriptor, "w", encoding="utf-8", newline="") as file:
        file.write(text)


def _read(descriptor: int) -> str:
    with open(descriptor, encoding="utf-8") as file:
        return file.read()


@functools.cache
def _address() -> str:
    """Start the process that has loaded everything; it ends with ours."""
    home = Path(tempfile.mkdtemp(prefix="tgc-"))
    address = str(home / "socket")
    # Python looks at its streams when it starts: they are pipes, as those of each command.
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "tests.preloaded", address]
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=ROOT)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"ready\n", process.stderr.read().decode()

    def end() -> None:
        process.communicate()
        Path(address).unlink()
        home.rmdir()

    atexit.register(end)
    return address


def _receive(sock: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = sock.recv(size - len(received))
        assert part, "it was closed too early"
        received += part
    return received


# -- the process that has loaded everything, and its children ------------------------------------------------------


def _load() -> None:
    for name in HIDDEN:
        sys.modules[name] = None  # type: ignore[assignment]  # so that an import of it fails
    for name in PACKAGES:
        importlib.import_module(name)
    for name in HIDDEN:
        del sys.modules[name]
    for name in OURS:
        importlib.import_module(name)


def _serve(address: str) -> list[str] | None:
    """Return the arguments in a child that is to run them, and None in the process itself when it is over."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children that wait for commands
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        listener.bind(address)
        listener.listen(64)
        selector.register(listener, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        os.write(1, b"ready\n")
        while True:
            if 0 in {key.fd for key, _ in selector.select()}:
                return None
            asked = listener.accept()[0]
            with asked:
                if os.fork() == 0:
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    return _wait_for_command(asked)


def _wait_for_command(asked: socket.socket) -> list[str]:
    size, descriptors, _, _ = socket.recv_fds(asked, _SIZE_BYTES, 3)
    order = json.loads(_receive(asked, int.from_bytes(size, "big")))
    pid = os.fork()
    if pid == 0:
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(order["env"])
        os.chdir(order["cwd"])
        arguments: list[str] = order["arguments"]
        return arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command; this process tells how it ended
    nothing = os.open(os.devnull, os.O_RDWR)
    for target, descriptor in enumerate(descriptors):
        os.close(descriptor)
        os.dup2(nothing, target)  # whoever waits for the end of these streams does not wait for the command
    asked.sendall(pid.to_bytes(_SIZE_BYTES, "big"))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    asked.sendall(code.to_bytes(_SIZE_BYTES, "big", signed=True))
    os._exit(0)


def _main() -> None:
    _load()
    arguments = _serve(sys.argv[1])
    if arguments is not None:
        sys.modules["__main__"] = ModuleType("__main__")
        sys.argv = ["tuplegate", *arguments]
        runpy.run_module("tuplegate", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
