"""A person at a terminal, who reads before typing on."""

import fcntl
import os
import pty
import select
import struct
import termios
import time

from tests.cli.command import Command, heed_interrupts

_WAIT_S = 60.0


def _own_terminal() -> None:
    """So that Ctrl-C at the terminal becomes a signal of the child."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    heed_interrupts()


class Terminal:
    """A command at a terminal of its own. Use it with `with`; `leave` waits for its end."""

    def __init__(self, command: Command, *arguments: str, lines: int = 24, columns: int = 100) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        command.env |= {"TERM": "xterm", "NO_COLOR": "1"}
        for name in ("LINES", "COLUMNS"):
            command.env.pop(name, None)
        self.started = command.start(
            *(arguments or ("shell",)),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_own_terminal,
        )
        os.close(theirs)
        self.shown = ""
        self._is_left = False
        """Nobody reads there any more. What is typed then fills a buffer, until the typing waits for ever."""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self.started.poll() is None:
            self.started.kill()
            self.started.wait(_WAIT_S)
        os.close(self._ours)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def line(self, text: str) -> None:
        self.type(text + "\r")

    def until(self, text: str) -> str:
        """Reads until this was shown, answers what came before it, and forgets both."""
        deadline = time.monotonic() + _WAIT_S
        while text not in self.shown:
            is_shown = self._read(deadline - time.monotonic())
            assert is_shown, f"{text!r} was not shown before {'the end' if self._is_left else 'long'}: {self.shown!r}"
        before, self.shown = self.shown.split(text, 1)
        return before

    def press_until(self, keys: str, text: str) -> None:
        """Presses keys again and again, until this is shown."""
        deadline = time.monotonic() + _WAIT_S
        while text not in self.shown:
            assert time.monotonic() < deadline, f"{text!r} was not shown: {self.shown!r}"
            self.type(keys)
            while text not in self.shown and self._read(0.2):
                pass
        self.shown = self.shown.split(text, 1)[1]

    def prompt(self) -> str:
        """What is shown up to the next prompt, which may be one that is drawn again."""
        return self.until("tuplegate>")

    def leave(self) -> int:
        """Ctrl-D, again where a line was still being drawn and took it for itself; answers the exit code."""
        deadline = time.monotonic() + _WAIT_S
        while not self._is_left and self.started.poll() is None:
            assert time.monotonic() < deadline, f"it did not end: {self.shown!r}"
            self.type("\x04")
            while self._read(0.2):
                pass
        return self.started.wait(_WAIT_S)

    def _read(self, seconds: float) -> bool:
        looked_at = select.poll()  # `select` takes no descriptor beyond 1,023
        looked_at.register(self._ours, select.POLLIN)
        if not looked_at.poll(max(seconds, 0) * 1000):
            return False
        try:
            part = os.read(self._ours, 65536).decode(errors="replace")
        except OSError:
            self._is_left = True
            return False
        self.shown += part
        if "\x1b[6n" in part:  # the shell asks where the cursor is, and a terminal answers
            self.type("\x1b[1;1R")
        return bool(part)
