"""Requests let through in a window, exact over all workers and machines, at next to no cost for each.

A worker takes permits from the catalog in portions that it uses up within moments, and gives back what it did not use:
so never more than the limit are let through in a window, and not fewer while there is demand. A permit is good until
its window ends by the engine's clock, taken from the moment before it was asked for, so never longer.
"""

import asyncio
from functools import partial
from typing import Final

import structlog

from tuplegate.access.quotas import Tier, policy_header, portion, state_header, tier_of
from tuplegate.catalog.permits import Permits
from tuplegate.engine.port import EngineFailure
from tuplegate.keeping import attempt
from tuplegate.protocol.errors import ServiceError

_log: Final = structlog.get_logger()

_SOON_S, _LATE_S = 0.25, 1.0
"""A portion that is used up sooner than the first grows, one that lasts longer than the second shrinks. Whoever comes
while the next one is asked for waits for a commit of the engine."""

_IDLE_S: Final = 0.1
"""Permits that were not touched for so long are given back."""

_REFUSED_S: Final = 0.25
"""How long the catalog is not asked again when a window had none left; others may still give some back."""


class Quota:
    """The permits that this worker holds for one organization."""

    __slots__ = (
        "_left", "_lock", "_permits", "_policy", "_refused_until", "_remaining", "_size", "_started", "_taken_at",
        "_until", "limit", "organization", "touched",
    )  # fmt: skip

    def __init__(self, permits: Permits, organization: str, limit: int) -> None:
        self._permits = permits
        self.organization = organization
        self.limit = limit
        self.touched = False
        self._policy = b"ratelimit-policy: %b\r\n" % policy_header(limit)
        self._lock = asyncio.Lock()
        self._started = 0
        self._left = 0
        self._remaining = limit
        self._until = 0.0
        self._refused_until = 0.0
        self._taken_at = 0.0
        self._size = 1

    def take(self, now: float) -> bool:
        """Uses one of the permits in hand, if there is one."""
        if self._left > 0 and now < self._until:
            self._left -= 1
            self.touched = True
            return True
        return False

    async def take_more(self, now: float) -> bool:
        """Asks the catalog where none is in hand. False where the window has none left."""
        async with self._lock:
            now = max(now, asyncio.get_running_loop().time())
            if self.take(now):
                return True
            if now < self._refused_until:
                return False
            self._resize(now)
            try:
                grant = await self._permits.take(self.organization, self.limit, portion(self._remaining, self._size))
            except EngineFailure as exc:
                raise ServiceError("engine_unavailable", "the engine cannot be asked for the quota just now") from exc
            self._started, self._left, self._remaining = grant.started, grant.count, grant.remaining
            self._until = now + grant.seconds_left
            self._taken_at = now
            if grant.count == 0:
                self._refused_until = min(self._until, now + _REFUSED_S)
                return False
            self._left -= 1
            self.touched = True
            return True

    def _resize(self, now: float) -> None:
        if now >= self._until:
            self._remaining = self.limit
        lasted = now - self._taken_at
        if lasted < _SOON_S:
            self._size = min(self._size * 2, self.limit)
        elif lasted > _LATE_S:
            self._size = max(1, self._size // 2)

    def headers(self, now: float) -> bytes:
        """What every answer says of the quota."""
        seconds = max(0, int(self._until - now + 0.999))
        return b"%bratelimit: %b\r\n" % (self._policy, state_header(self._remaining + self._left, seconds))

    def refusal(self, now: float) -> ServiceError:
        seconds = max(1, int(self._until - now + 0.999))
        message = f"the organization has sent its {self.limit} requests of this minute"
        return ServiceError("rate_limited", message, headers=(("retry-after", str(seconds)),))

    async def give_back(self) -> None:
        count, self._left = self._left, 0
        if count:
            await self._permits.give_back(self.organization, self._started, count)


class Quotas:
    """The quotas of all organizations that this worker has seen."""

    def __init__(self, permits: Permits, tiers: dict[str, Tier]) -> None:
        self._permits = permits
        self._tiers = tiers
        self._quotas: dict[str, Quota] = {}
        self._former: list[Quota] = []

    def of(self, organization: str, tier: str) -> Quota | None:
        """None where any number is let through."""
        known = tier_of(self._tiers, tier)
        if known.requests is None:
            return None
        quota = self._quotas.get(organization)
        if quota is None or quota.limit != known.requests:
            self._former += [] if quota is None else [quota]
            quota = self._quotas[organization] = Quota(self._permits, organization, known.requests)
        return quota

    async def watch(self) -> None:
        """Gives back what lies idle. Goes on for ever."""
        while True:
            await asyncio.sleep(_IDLE_S)
            former, self._former = self._former, []
            await self._give_back([*former, *(quota for quota in self._quotas.values() if not quota.touched)])
            for quota in self._quotas.values():
                quota.touched = False

    async def close(self) -> None:
        await self._give_back(list(self._quotas.values()))

    async def _give_back(self, quotas: list[Quota]) -> None:
        """One that fails keeps nobody else's from being given back."""
        for quota in quotas:
            await attempt("quotas", partial(_give_back, quota))


async def _give_back(quota: Quota) -> None:
    try:
        await quota.give_back()
    except EngineFailure as failure:
        _log.warning("permits were not given back", reason=str(failure))
