"""The facts about a server that says that it is the primary."""

from dataclasses import dataclass
from typing import NamedTuple

from tuplegate.engine.libpq.connections.logins import Place


class FoundServer(NamedTuple):
    """One that says that it is the primary. `address` is what a conninfo is appended with to lead there."""

    place: Place
    address: str
    started: str
    system: int
    timeline: int
    waits: bool
    standbys: int
    waiting: frozenset[str]
    """Commits that wait for a standby just now."""
    written: int
    """The place in its log up to which it is on disk."""
    confirmed: int
    """The place up to which it is on the disks of as many standbys as commits wait for; 0 where these are away."""


@dataclass(frozen=True, slots=True)
class Replication:
    """The standbys that a commit waits for. `standbys` are connected, and such that a commit waits for them."""

    waits: bool = False
    standbys: int = 0
    stands_still: bool = False
    """Commits have waited for too long."""
