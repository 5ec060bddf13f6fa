"""Permits are given back, whatever happens to those of others."""

import asyncio

import pytest

from tests.unit.stage import until
from tuplegate.access.quotas import read_tiers
from tuplegate.admission.quota import Quotas
from tuplegate.catalog.permits import Grant, Permits
from tuplegate.engine.port import EngineUnavailable


class Catalog(Permits):
    """Gives whatever is asked for. What `odd` gives back is refused in an odd way."""

    def __init__(self, failure: Exception) -> None:
        self.failure = failure
        self.given_back: list[str] = []

    async def take(self, organization: str, limit: int, count: int) -> Grant:
        return Grant(1, max(count, 2), limit, 60.0)

    async def give_back(self, organization: str, started: int, count: int) -> None:
        if organization == "odd":
            raise self.failure
        self.given_back.append(organization)


@pytest.mark.parametrize("failure", [EngineUnavailable("gone"), ValueError("odd"), RecursionError()])
def test_one_that_fails_does_not_keep_the_others(failure: Exception) -> None:
    async def run() -> None:
        permits = Catalog(failure)
        quotas = Quotas(permits, read_tiers("free=100/1GB"))
        watching = asyncio.get_running_loop().create_task(quotas.watch())
        for name in ("odd", "even", "other"):
            quota = quotas.of(name, "free")
            assert quota is not None
            assert await quota.take_more(asyncio.get_running_loop().time())
        await until(lambda: permits.given_back == ["even", "other"])
        assert not watching.done()
        watching.cancel()

    asyncio.run(run())
