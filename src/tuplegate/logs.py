"""Structured logs on stderr. No line carries a token, a statement or a value of one."""

import contextlib
import io
import logging
import os
import sys
from typing import TextIO, cast

import structlog

from tuplegate.settings import Settings


class LossyOutput(io.TextIOBase):
    """Writes whole lines to a file descriptor. A line that cannot be written is dropped: a full disk must not stop the
    service."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._parts: list[str] = []

    def write(self, text: str) -> int:
        self._parts.append(text)
        return len(text)

    def flush(self) -> None:
        parts, self._parts = self._parts, []
        with contextlib.suppress(OSError):
            os.write(self._fd, "".join(parts).encode("utf-8", "backslashreplace"))


def configure(settings: Settings) -> None:
    on_terminal = sys.stderr.isatty()
    as_json = settings.log_format == "json" or (settings.log_format == "auto" and not on_terminal)
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=on_terminal)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(settings.log_level.upper())),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, LossyOutput(sys.stderr.fileno()))),
        cache_logger_on_first_use=True,
    )
