"""The newest timeline of an engine that any worker of this service has seen, in memory that all of them share.

A promotion begins a new timeline, with a higher number. So of two servers of one cluster that both claim to be the
primary, the one on the lower timeline is the former one. A worker that can reach only that one must not write there,
and neither may a restarted worker: a timeline seen by one worker counts for all, until the service is restarted.
"""

import mmap

_SYSTEM, _NEWEST = 0, 1


class Timelines:
    """The newest timeline, and the system identifier of its cluster. Make it before the workers are forked. Every
    worker notes what it sees again and again, so an overwritten newer timeline soon returns."""

    def __init__(self) -> None:
        self._numbers = memoryview(mmap.mmap(-1, 16)).cast("Q")

    @property
    def newest(self) -> int:
        return self._numbers[_NEWEST]

    def note(self, system: int, timeline: int) -> None:
        """Note the primary's timeline. The cluster that was seen first is the right one."""
        if not self._numbers[_SYSTEM]:
            self._numbers[_SYSTEM] = system
        if timeline > self._numbers[_NEWEST]:
            self._numbers[_NEWEST] = timeline

    def why_former(self, system: int, timeline: int) -> str | None:
        """Return the reason why a server is not the primary although it claims to be; None if it may be."""
        if self._numbers[_SYSTEM] not in (0, system):
            return (
                f"belongs to another cluster than before (its system identifier is {system}, not"
                f" {self._numbers[_SYSTEM]}): if that is meant, start the service again"
            )
        if timeline < self.newest:
            return (
                f"is a former primary: it is on timeline {timeline}, and another server was on {self.newest}; if that"
                " one is given up for good, start the service again"
            )
        return None
