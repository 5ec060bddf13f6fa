"""The connections of several servers, bounded together."""

import asyncio
from collections.abc import Sequence
from math import inf
from typing import Protocol

from tuplegate.engine.libpq.pools.places import Places
from tuplegate.engine.libpq.pools.pool import ConnectionPool, close_longest_idle


class Member(Protocol):
    """The pools of one server."""

    def all(self) -> Sequence[ConnectionPool]: ...


class Crowd:
    """The pools of all servers whose connections are bounded together."""

    def __init__(self, connections_max: int, connections_per_owner_max: int) -> None:
        self.places = Places(connections_max, connections_per_owner_max, self._make_room)
        self._members: list[Member] = []
        self._none_before = -inf

    def join(self, pools: Member) -> None:
        self._members.append(pools)

    def leave(self, pools: Member) -> None:
        self._members.remove(pools)

    def _make_room(self, idle_since: float, owner: str | None) -> None:
        """Close the connection that has been idle the longest, if it was idle since before `idle_since`. With an owner,
        only look at that owner's connections."""
        everybody = (pool for member in self._members for pool in member.all())
        if owner is not None:
            close_longest_idle((pool for pool in everybody if pool.owner == owner), idle_since)
        elif idle_since >= self._none_before:
            since = close_longest_idle(everybody, idle_since)
            if since >= idle_since:
                # Connections that fall idle from now on are idle for a shorter time: no need to look at all of them
                # again.
                self._none_before = min(since, asyncio.get_running_loop().time())
