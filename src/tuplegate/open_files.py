"""How many files a worker may have open, and how they are shared out. Every connection is an open file.

Many systems give 1,024 without being asked, and more up to a hard limit. A worker without a free descriptor could not
reach the engine, so fewer HTTP connections are allowed where the hard limit is too low, and the last descriptors are
not used for them.
"""

import contextlib
import os
import resource
from dataclasses import dataclass

import structlog

_log = structlog.get_logger()

_OWN = 200
"""What a worker needs beside its connections: files, pipes, connections of its own, and those that are refused."""
_SPARE = 100
"""Of these, what is never given to an HTTP connection."""
_CLIENTS_SHARE_MIN = 4
"""One in so many files is for HTTP connections, however low the limit is."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the settings ask for. `lines` are the kinds of HTTP connections that a worker can have, each up to
    `connections_max`: one for each plane, and one for what the alias opens in turn."""

    connections_max: int
    lines: int
    engine_connections_max: int

    @property
    def files(self) -> int:
        return self.connections_max * self.lines + self.engine_connections_max + _OWN

    def connections_within(self, files: int) -> int:
        """Return how many HTTP connections of a kind there can be with so many files."""
        left = max(files - self.engine_connections_max - _OWN, files // _CLIENTS_SHARE_MIN)
        return max(1, min(self.connections_max, left // self.lines))


def raise_limit(wanted: Wanted) -> int:
    """Raise the limit as far as it is needed and can be; return how many HTTP connections of a kind there can be."""
    given, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if given != resource.RLIM_INFINITY and given < wanted.files:
        given = wanted.files if most == resource.RLIM_INFINITY else min(wanted.files, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (given, most))
    if given == resource.RLIM_INFINITY or given >= wanted.files:
        return wanted.connections_max
    connections_max = wanted.connections_within(given)
    _log.warning(
        "fewer files may be open than the settings ask for, so fewer HTTP connections are taken",
        files=given,
        wanted=wanted.files,
        http_connections_max=connections_max,
    )
    return connections_max


def accepted_below() -> int:
    """Return the descriptor from which on HTTP connections wait. Descriptors are given out from the lowest on."""
    given, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if given == resource.RLIM_INFINITY else given - min(_SPARE, given // _CLIENTS_SHARE_MIN)


def close_others(keep: set[int]) -> None:
    """A forked child must not hold the data directory's lock, nor the end of the pipe that tells it to go."""
    for name in os.listdir("/dev/fd"):
        descriptor = int(name)
        if descriptor not in keep:
            with contextlib.suppress(OSError):
                os.close(descriptor)
