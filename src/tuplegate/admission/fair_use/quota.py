"""Limits the requests of a window, exactly over all workers and machines, at next to no cost for each request.

A worker takes permits from the catalog in portions that it uses within moments, and returns unused ones. A permit is
valid until its window ends by the engine's clock, counted from the moment before it was asked for. So never more
requests than the limit are let through.

The catalog knows how many permits the workers hold. While none are left and others may hold some, nobody is refused:
the request waits a moment until they are used or returned. So never fewer than the limit are let through while there is
demand.
"""

import asyncio
import secrets
from functools import partial
from typing import Final

import structlog

from tuplegate.access.quotas import WINDOW_S, Tier, choose_portion, find_tier, write_policy_header, write_state_header
from tuplegate.background import attempt, tick
from tuplegate.catalog.permits import Grant, Permits, Report
from tuplegate.engine.port import EngineFailure
from tuplegate.protocol.errors import ServiceError

_log: Final = structlog.get_logger()

_SOON_S, _LATE_S = 0.25, 0.5
"""A portion that is used up within the first time makes the next one larger. One that lasts longer than the second is
given back, and the next is smaller. Requests wait for a commit of the engine while the next portion is fetched."""

_IDLE_S: Final = 0.1
"""Permits that were not used for this long are given back."""

_REFUSED_S: Final = 0.25
"""How long the catalog is not asked again when no permits were left: a worker may yet give some back."""

_HELD_S: Final = 0.02
"""How long to wait for others to use or give back their permits."""


# size: one portion of permits and how it was used; the numbers only change together.
class Quota:
    """The permits that this worker holds for one organization.

    It was given `_taken` in the window `_started`, and has `_left` of them. Until `_open_until` the catalog may believe
    that the worker holds permits, and must be told. `is_late`: it could not be told. `asked` is set whenever permits
    are asked for.
    """

    def __init__(self, permits: Permits, organization: str, limit: int, asked: asyncio.Event) -> None:
        self._permits = permits
        self._asked = asked
        self.organization = organization
        self.limit = limit
        self.touched = False
        self._policy = b"ratelimit-policy: %b\r\n" % write_policy_header(limit)
        self._lock = asyncio.Lock()
        self._holder = secrets.token_hex(6)
        self._number = 0
        self._started = 0
        self._taken = 0
        self._left = 0
        self._open_until = 0.0
        self.is_late = False
        self._remaining = limit
        self._until = 0.0
        self._refused_until = 0.0
        self._taken_at = 0.0
        self._size = 1

    def take(self, now: float) -> bool:
        """Use a permit that the worker holds; return whether there was one."""
        if self._left > 0 and now < self._until:
            self._left -= 1
            self.touched = True
            return True
        return False

    async def take_more(self, now: float) -> bool:
        """Ask the catalog for permits and use one. Returns False when the window has none left.

        A client that leaves meanwhile has its request counted: nobody would know whether it had got its permit.
        """
        if now < self._refused_until:
            return False
        asking = asyncio.get_running_loop().create_task(self._take_more(now))
        asking.add_done_callback(_look_at)
        return await asyncio.shield(asking)

    async def _take_more(self, now: float) -> bool:
        async with self._lock:
            now = max(now, asyncio.get_running_loop().time())
            if self.take(now):
                return True
            if now < self._refused_until:
                return False
            self._resize(now)
            count = choose_portion(self._remaining, self._size)
            while True:
                try:
                    grant = await self._settle(count)
                except EngineFailure as exc:
                    raise ServiceError(
                        "engine_unavailable", "the engine cannot be asked for the quota just now"
                    ) from exc
                if grant.count > 0:
                    self._left -= 1
                    self.touched = True
                    return True
                if grant.held == 0:
                    self._refused_until = min(self._until, asyncio.get_running_loop().time() + _REFUSED_S)
                    return False
                count = 1
                await asyncio.sleep(_HELD_S)

    async def _settle(self, count: int) -> Grant:
        """Tell the catalog how many permits were used, and ask it for more. Remaining permits are not used any more. If
        this fails, the catalog may have heard it or not, so it is told again."""
        now = asyncio.get_running_loop().time()
        self._taken, self._left = self._taken - self._left, 0
        self._number += 1
        self._open_until = now + WINDOW_S
        self._asked.set()
        report = Report(self._holder, self._number, self._started, self._taken, count)
        grant = await self._permits.settle(self.organization, self.limit, report)
        self._started, self._taken, self._left = grant.started, grant.spent + grant.count, grant.count
        self._remaining = grant.remaining
        self._until = now + grant.seconds_left
        if count > 0:
            self._taken_at = now
        self._open_until = self._until if grant.count > 1 else 0.0
        return grant

    def _resize(self, now: float) -> None:
        if now >= self._until:
            self._remaining = self.limit
        lasted = now - self._taken_at
        if lasted < _SOON_S:
            self._size = min(self._size * 2, self.limit)
        elif lasted > _LATE_S:
            self._size = max(1, self._size // 2)

    def headers(self, now: float) -> bytes:
        """Return the headers about the quota, for every answer."""
        seconds = max(0, int(self._until - now + 0.999))
        return b"%bratelimit: %b\r\n" % (self._policy, write_state_header(self._remaining + self._left, seconds))

    def refusal(self, now: float) -> ServiceError:
        seconds = max(1, int(self._until - now + 0.999))
        message = f"the organization has sent its {self.limit} requests of this minute"
        return ServiceError("rate_limited", message, headers=(("retry-after", str(seconds)),))

    def is_open(self, now: float) -> bool:
        """Return whether the catalog must still be told what was used. An untold rest ends with its window."""
        return now < self._open_until

    def is_due(self, now: float) -> bool:
        """Return whether it must be told now: the permits are idle, or have lasted for long."""
        return self.is_open(now) and (not self.touched or now - self._taken_at > _LATE_S)

    async def give_back(self) -> None:
        async with self._lock:
            if self.is_open(asyncio.get_running_loop().time()):
                await self._settle(0)


class Quotas:
    """The quotas of all organizations that this worker has seen."""

    def __init__(self, permits: Permits, tiers: dict[str, Tier]) -> None:
        self._permits = permits
        self._tiers = tiers
        self._quotas: dict[str, Quota] = {}
        self._former: list[Quota] = []
        self._asked = asyncio.Event()

    def find_quota(self, organization: str, tier: str) -> Quota | None:
        """Return the quota of an organization; None if its requests are not limited."""
        known = find_tier(self._tiers, tier)
        if known.requests is None:
            return None
        quota = self._quotas.get(organization)
        if quota is None or quota.limit != known.requests:
            self._former += [] if quota is None else [quota]
            quota = self._quotas[organization] = Quota(self._permits, organization, known.requests, self._asked)
        return quota

    async def watch(self) -> None:
        """Give back idle permits, and try again until the catalog has heard it. Run for ever; rest while the catalog
        has nothing to be told."""
        while True:
            await self._asked.wait()
            await tick(_IDLE_S)
            now = asyncio.get_running_loop().time()
            every = [*self._former, *self._quotas.values()]
            await self._give_back([quota for quota in every if quota.is_due(now)])
            self._former = [quota for quota in self._former if quota.is_open(now)]
            for quota in every:
                quota.touched = False
            if not any(quota.is_open(now) for quota in (*self._former, *self._quotas.values())):
                self._asked.clear()

    async def close(self) -> None:
        await self._give_back([*self._former, *self._quotas.values()])

    async def _give_back(self, quotas: list[Quota]) -> None:
        """Give back permits; a failure of one does not stop the others."""
        for quota in quotas:
            await attempt("quotas", partial(_give_back, quota))


async def _give_back(quota: Quota) -> None:
    try:
        await quota.give_back()
    except EngineFailure as failure:
        if not quota.is_late:
            _log.warning("permits were not given back, which is tried again", reason=str(failure))
        quota.is_late = True
    else:
        quota.is_late = False


def _look_at(asking: "asyncio.Task[bool]") -> None:
    """Look at the result: asyncio warns of failures that nobody looked at, and the caller may be gone."""
    if not asking.cancelled():
        asking.exception()
