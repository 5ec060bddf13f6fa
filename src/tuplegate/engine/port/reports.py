"""Reports of an engine about itself: its health, weaknesses, durability, load and counts."""

from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from tuplegate.engine.port.work import Target


class Weakness(msgspec.Struct, frozen=True):
    """A gap in the walls between tenants, because nobody with enough rights has prepared the engine.

    `meaning` describes the effect on tenants, `remedy` what an operator can do. `reaches_others` means that it goes
    beyond the organization's own databases.
    """

    name: str
    reaches_others: bool
    meaning: str
    remedy: str


FAILING: Final = "failing"


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """The engine's kind and version, and its checks. With `warnings` it works, but not in full.

    Both map a check to "ok", or to a description of the problem that may name a host.
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
        """Return all checks. Unless `in_full`, hide the problems' text, and combine the checks of all engines, and of
        all databases, into one."""
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
    """The durability of a commit: `durable` if it survives a crash of the machine, `replicated` if a standby has it
    when it is acknowledged.

    `settings` are the engine's settings that decide it.
    """

    durable: bool
    replicated: bool
    settings: dict[str, str]


class Headroom(msgspec.Struct, frozen=True):
    """The time that a transaction may safely live at SERIALIZABLE at the present rate; None means without limit.

    `slots` is the number of transactions that the engine can check one against; `guarded` says that a transaction that
    lives longer is ended.
    """

    slots: int
    safe_seconds: float | None
    guarded: bool


class Measured(msgspec.Struct, frozen=True):
    """Counts of the engine's side, named as in the table of metrics.

    `seconds` are cells by kind of work. `events` only grow; `gauges` are current values.
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
        """Return the weaknesses that were found when the service started."""

    async def health(self) -> EngineHealth: ...

    async def durability(self, target: Target) -> Durability: ...

    def serializable_headroom(self) -> Headroom: ...

    def measure(self) -> Measured: ...
