"""Raises the limit of open files for a worker, and divides them. Every connection is an open file.

Many systems allow 1,024 by default, and more up to a hard limit. A worker without a free descriptor could not reach the
engine. So where the hard limit is too low, fewer HTTP connections are allowed, and the last descriptors are kept for
other uses.
"""

import contextlib
import os
import resource
from dataclasses import dataclass

import structlog

_log = structlog.get_logger()

_OWN = 200
"""Files of a worker beside its connections: files, pipes, its own connections, and HTTP connections being refused."""
_SPARE = 100
"""How many of these are never used for HTTP connections."""
_CLIENTS_SHARE_MIN = 4
"""One in this many files is for HTTP connections, however low the limit is."""


@dataclass(frozen=True, slots=True)
class WantedFiles:
    """Files that the settings ask for. `lines` counts the kinds of HTTP connections, each up to `connections_max`: one
    for each plane, and one for connections that the alias opens."""

    connections_max: int
    lines: int
    engine_connections_max: int

    @property
    def files(self) -> int:
        return self.connections_max * self.lines + self.engine_connections_max + _OWN

    def fit_connections(self, files: int) -> int:
        """Return the number of HTTP connections of a kind that fit into this many files."""
        left = max(files - self.engine_connections_max - _OWN, files // _CLIENTS_SHARE_MIN)
        return max(1, min(self.connections_max, left // self.lines))


def raise_limit(wanted: WantedFiles) -> int:
    """Raise the limit as far as needed and allowed. Return the number of HTTP connections of a kind that there can
    be."""
    given, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if given != resource.RLIM_INFINITY and given < wanted.files:
        given = wanted.files if most == resource.RLIM_INFINITY else min(wanted.files, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (given, most))
    if given == resource.RLIM_INFINITY or given >= wanted.files:
        return wanted.connections_max
    connections_max = wanted.fit_connections(given)
    _log.warning(
        "fewer files may be open than the settings ask for, so fewer HTTP connections are taken",
        files=given,
        wanted=wanted.files,
        http_connections_max=connections_max,
    )
    return connections_max


def find_accept_limit() -> int:
    """Return the descriptor from which on HTTP connections must wait. The system hands out the lowest first."""
    given, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if given == resource.RLIM_INFINITY else given - min(_SPARE, given // _CLIENTS_SHARE_MIN)


def close_others(keep: set[int]) -> None:
    """Close all other descriptors: a forked child must not keep the data directory's lock, nor the end of the pipe
    whose closing tells workers to end."""
    for name in os.listdir("/dev/fd"):
        descriptor = int(name)
        if descriptor not in keep:
            with contextlib.suppress(OSError):
                os.close(descriptor)
