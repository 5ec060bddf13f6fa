"""Reports of an engine about itself: its health, weaknesses, durability, load and counts."""

from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from tuplegate.engine.port.work import Target


class Weakness(msgspec.Struct, frozen=True):
    """Something that the engine leaves open to tenants, because nobody with enough rights has prepared it.

    `meaning` says what that means for tenants, `remedy` what an operator can do. `reaches_others` means that it goes
    beyond the organization's own databases.
    """

    name: str
    reaches_others: bool
    meaning: str
    remedy: str


FAILING: Final = "failing"


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """The engine's kind and version, and whether it answers. With `warnings` it works, but not in full.

    Both map a check to "ok", or to what is wrong, in words that may name a host.
    """

    kind: str
    version: str
    checks: dict[str, str]
    warnings: dict[str, str] = field(default_factory=dict)
    replicated: bool = False
    """A commit waits until a standby has it, too."""

    @property
    def ok(self) -> bool:
        return all(state == "ok" for state in self.checks.values())

    def list_checks(self, *, in_full: bool) -> dict[str, str]:
        """Return all checks. Unless told to list them in full, only say which ones fail: of several engines or
        databases, that one of them does."""
        listed = self.checks | self.warnings
        if in_full:
            return listed
        short: dict[str, str] = {}
        for name, state in listed.items():
            kind, _, which = name.partition(" ")
            public = f"{kind}s" if which and kind in ("engine", "database") else name
            short[public] = "ok" if state == "ok" and short.get(public, "ok") == "ok" else FAILING
        return short


class Durability(msgspec.Struct, frozen=True):
    """Tells whether a commit survives a crash of the machine, and whether a standby has it by then.

    `settings` are the engine's settings that decide it.
    """

    durable: bool
    replicated: bool
    settings: dict[str, str]


class Headroom(msgspec.Struct, frozen=True):
    """How long a transaction may safely live at SERIALIZABLE at the present rate; None means without limit.

    `slots` is how many transactions the engine can check one against; `guarded` says that what outlives that is ended.
    """

    slots: int
    safe_seconds: float | None
    guarded: bool


class Measured(msgspec.Struct, frozen=True):
    """Counts of the engine's side, named as in the table of metrics.

    `seconds` are cells by kind of work. `events` only grow; `gauges` are values of this moment.
    """

    seconds: dict[str, list[int]]
    events: dict[str, int]
    gauges: dict[str, float]


class Load(msgspec.Struct, frozen=True):
    """The engine's open connections, those that run a statement, and how many there can be."""

    connections: int
    running: int
    connections_max: int


class Reports(Protocol):
    """Asks an engine about itself."""

    @property
    def weaknesses(self) -> tuple[Weakness, ...]:
        """Return what was found open to tenants when the service started."""

    async def health(self) -> EngineHealth: ...

    async def durability(self, target: Target) -> Durability: ...

    def serializable_headroom(self) -> Headroom: ...

    def measure(self) -> Measured: ...
