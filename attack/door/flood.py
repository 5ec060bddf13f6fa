"""A flood of the front door, as all of them have it: its name, what it is told, and what it has seen."""

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

from attack.door.raw import RawConnection, open_raw, unchecked

_OPEN_MAX_S = 30.0
_OPENING_MAX = 50
"""Connections that are being opened at once."""


@dataclass
class Door:
    """What a flood is told, and what it has seen. `scale` is 1 in full and less where time is short."""

    name: str
    url: str
    alias_url: str
    key: str
    seed: int
    seconds: float
    scale: float
    wrong: list[str] = field(default_factory=list)
    tally: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.until = time.monotonic() + _OPEN_MAX_S
        self.trust: ssl.SSLContext | None = unchecked() if self.url.startswith("https") else None
        self.opening = asyncio.Semaphore(_OPENING_MAX)

    @property
    def patience_s(self) -> float:
        """How long nothing at all may come before it counts as silence."""
        return 20.0 if self.scale == 1 else 8.0

    @property
    def lasts(self) -> bool:
        return time.monotonic() < self.until

    @property
    def left_s(self) -> float:
        return max(0.0, self.until - time.monotonic())

    def scaled(self, number: int, least: int = 1) -> int:
        return max(least, int(number * self.scale))

    async def open(self, url: str = "") -> RawConnection | None:
        """A connection, or None where there is none to be had: that is no fault by itself."""
        async with self.opening:
            try:
                connection = await open_raw(url or self.url, self.trust, 10)
            except (OSError, TimeoutError) as exc:
                self.tally[f"not opened: {type(exc).__name__}"] += 1
                return None
        self.tally["connections"] += 1
        if self.tally["connections"] == 1:  # on a busy machine the first handshake can take longer than the flood
            self.until = time.monotonic() + self.seconds
        return connection

    def note(self, line: str) -> None:
        if len(self.wrong) < 10:
            self.wrong.append(line)


@dataclass(frozen=True)
class Flood:
    """`needs_tls` floods are of the handshake; the others run without TLS unless told. With `places`, the service has
    room for so many connections only. `ours_alone` says why the flood is not run beside other servers."""

    name: str
    sentence: str
    needs_tls: bool
    places: int | None
    ours_alone: str
    run: Callable[[Door], Awaitable[None]]


FLOODS: dict[str, Flood] = {}

Run = Callable[[Door], Awaitable[None]]


def flood(*, tls: bool = False, places: int | None = None, ours_alone: str = "") -> Callable[[Run], Run]:
    """Put the function into the table, under its own name."""

    def put(function: Run) -> Run:
        sentence = (function.__doc__ or "").strip().splitlines()[0]
        FLOODS[function.__name__] = Flood(function.__name__, sentence, tls, places, ours_alone, function)
        return function

    return put
