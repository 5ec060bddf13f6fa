"""The facts about a server that claims to be the primary."""

from dataclasses import dataclass
from typing import NamedTuple

from tuplegate.engine.libpq.connections.logins import Place


class FoundServer(NamedTuple):
    """A server that claims to be the primary. `address`, appended to a conninfo, leads there."""

    place: Place
    address: str
    started: str
    system: int
    timeline: int
    waits: bool
    standbys: int
    waiting: frozenset[str]
    """The commits that wait for a standby just now."""
    written: int
    """The LSN up to which its log is on disk."""
    confirmed: int
    """The LSN that is on the disks of as many standbys as commits wait for; 0 if these are away."""


@dataclass(frozen=True, slots=True)
class Replication:
    """The standbys that a commit waits for: `standbys` is the number of those that are connected."""

    waits: bool = False
    standbys: int = 0
    stands_still: bool = False
    """Commits have waited for too long."""
