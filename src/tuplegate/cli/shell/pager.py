"""Holds output back until it is larger than the screen, and then hands it to a pager.

Rows go into the pager as they arrive, so memory is constant. Leaving the pager ends the statement: its exit arrives as
a signal, even while the engine still works and nothing is written.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from types import FrameType, TracebackType

from rich.cells import cell_len

_STYLE = re.compile("\x1b\\[[0-9;]*m")
_LESS = "-SRX"
"""Do not fold long lines, pass colours, leave the screen as it is. We decide ourselves what fits."""


class PagerLeft(BaseException):
    """The person has left the pager. Like KeyboardInterrupt, it can be raised anywhere."""


def find_pager() -> list[str]:
    """Return the command in `PAGER`, or less; an empty list if there is none."""
    named = os.environ.get("PAGER")
    try:
        command = shlex.split("less" if named is None else named)
    except ValueError:
        return []
    if not command or command[0] == "cat" or shutil.which(command[0]) is None:
        return []
    return command


class Paged:
    """Text on its way to stdout, for use with `with`. `left` says that the person left the pager before the end."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._held: list[str] = []
        self._lines = 0
        self._process: subprocess.Popen[str] | None = None
        self._before: object = None
        self.left = False

    def __enter__(self) -> "Paged":
        return self

    def write(self, text: str) -> int:
        if self._process is not None:
            self._hand_over(text)
        elif not self._command:
            sys.stdout.write(text)
        else:
            self._held.append(text)
            self._lines += text.count("\n")
            if self._overflows(text):
                self._open()
        return len(text)

    def flush(self) -> None:
        if self._process is None:
            sys.stdout.flush()
            return
        self._hand_over("")

    def _overflows(self, text: str) -> bool:
        columns, lines = shutil.get_terminal_size()
        # The prompt and the row count need lines too.
        return self._lines > lines - 2 or any(cell_len(_STYLE.sub("", line)) > columns for line in text.split("\n"))

    def _open(self) -> None:
        sys.stdout.flush()
        environment = {"LESS": _LESS, "LESSCHARSET": "utf-8", **os.environ}
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the person's own pager
                self._command, stdin=subprocess.PIPE, text=True, encoding="utf-8", env=environment
            )
        except OSError as exc:
            sys.stderr.write(f"the pager {self._command[0]} cannot be started: {exc.strerror}\n")
            self._command = []
            self._release()
            return
        self._before = signal.signal(signal.SIGCHLD, self._on_child_exit)
        self._hand_over("".join(self._held))
        self._held = []

    def _hand_over(self, text: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(text)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PagerLeft from None

    def _on_child_exit(self, number: int, frame: FrameType | None) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise PagerLeft

    def _release(self) -> None:
        sys.stdout.write("".join(self._held))
        sys.stdout.flush()
        self._held = []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._process is None:
            self._release()
            return False
        signal.signal(signal.SIGCHLD, self._before)  # type: ignore[arg-type]  # what it was before
        # From here on the pager handles Ctrl-C.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            assert self._process.stdin is not None
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it was left
        finally:
            self._process.wait()
            signal.signal(signal.SIGINT, before)
        self.left = kind is not None and issubclass(kind, PagerLeft)
        return self.left
