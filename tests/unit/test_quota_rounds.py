"""Permits are given back, whatever happens to those of others."""

import asyncio
from functools import partial

import pytest

from tests.waiting import eventually_async
from tuplegate.access.quotas import read_tiers
from tuplegate.admission.fair_use import quota as quota_module
from tuplegate.admission.fair_use.quota import Quotas
from tuplegate.catalog.permits import Grant, Permits, Report
from tuplegate.engine.port import EngineUnavailable


class Catalog(Permits):
    """Gives whatever is asked for, and one more. What `odd` gives back is refused in an odd way, `failures` times."""

    def __init__(self, failure: Exception, failures: int) -> None:
        self.failure = failure
        self.failures = failures
        self.given_back: list[str] = []

    async def settle(self, organization: str, limit: int, report: Report) -> Grant:
        if report.count:
            return Grant(1, report.spent, report.count + 1, limit, 60.0)
        if organization == "odd" and self.failures:
            self.failures -= 1
            raise self.failure
        self.given_back.append(organization)
        return Grant(1, report.spent, 0, limit, 60.0)


@pytest.mark.parametrize("failure", [EngineUnavailable("gone"), ValueError("odd"), RecursionError()])
def test_one_that_fails_does_not_keep_the_others(failure: Exception) -> None:
    """And is tried again until it succeeds, once."""

    async def run() -> None:
        permits = Catalog(failure, 3)
        quotas = Quotas(permits, read_tiers("free=100/1GB"))
        watching = asyncio.get_running_loop().create_task(quotas.watch())
        for name in ("odd", "even", "other"):
            quota = quotas.find_quota(name, "free")
            assert quota is not None
            assert await quota.take_more(asyncio.get_running_loop().time())
        await eventually_async(lambda: permits.given_back == ["even", "other", "odd"])
        assert not watching.done()
        watching.cancel()

    asyncio.run(run())


def has_given_back(permits: Catalog, times: int) -> bool:
    return permits.given_back == ["org"] * times


def test_nothing_ticks_while_no_permits_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = 0

    async def pass_on(_: float) -> None:
        nonlocal ticks
        ticks += 1
        await asyncio.sleep(0)

    monkeypatch.setattr(quota_module, "tick", pass_on)

    async def let_time_pass() -> int:
        before = ticks
        for _ in range(2000):
            await asyncio.sleep(0)
        return ticks - before

    async def run() -> None:
        permits = Catalog(EngineUnavailable("gone"), 0)
        quotas = Quotas(permits, read_tiers("free=100/1GB"))
        watching = asyncio.create_task(quotas.watch())
        assert await let_time_pass() == 0
        for number in range(1, 3):
            quota = quotas.find_quota("org", "free")
            assert quota is not None
            assert await quota.take_more(asyncio.get_running_loop().time())
            await eventually_async(partial(has_given_back, permits, number))
            await let_time_pass()
            assert await let_time_pass() == 0
        watching.cancel()

    asyncio.run(run())
