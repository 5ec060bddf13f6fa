"""Quotas: how many requests of an organization are let through in a window of the engine's clock, and how it is told.

The tests do not wait for windows where they need not: every answer says by its headers which window it was counted in.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from random import Random

import httpx
import pytest

from tests.control import WINDOW_S, Control, Organization, at_once, engine, error_of, in_one_window, new_organization
from tests.service import ENGINE, Service, running_service
from tests.waiting import eventually
from tuplegate.access.quotas import read_tiers
from tuplegate.admission.fair_use.quota import Quotas
from tuplegate.catalog.permits import Permits, Report
from tuplegate.engine.opening import find_owner, read_address
from tuplegate.engine.port import EngineLost, EngineUnavailable, MetadataSession
from tuplegate.protocol.errors import ServiceError
from tuplegate.settings import Settings

TINY = 5
TICK_S = 0.02


@pytest.fixture(scope="module")
def metered() -> Iterator[Service]:
    """With tiers small enough to be used up quickly."""
    with running_service("--tiers", f"free=200, tiny={TINY}, some=40, plenty=100000, unlimited") as running:
        yield running


@dataclass(frozen=True)
class Counted:
    """An answer, with what its headers say of the quota."""

    status: int
    limit: int
    remaining: int
    seconds: int


def counted(answer: httpx.Response) -> Counted:
    policy = re.fullmatch(r'"requests";q=(\d+);w=60', answer.headers["ratelimit-policy"])
    state = re.fullmatch(r'"requests";r=(\d+);t=(\d+)', answer.headers["ratelimit"])
    assert policy is not None
    assert state is not None
    if answer.status_code == 429:
        error = error_of(answer, 429, "rate_limited")
        assert error["retryable"] is True
        assert 1 <= int(answer.headers["retry-after"]) <= WINDOW_S
        assert int(state[1]) == 0
    return Counted(answer.status_code, int(policy[1]), int(state[1]), int(state[2]))


def ask(client: httpx.Client) -> Counted:
    return counted(client.post("/query", content="select 1", headers={"Content-Type": "text/plain"}))


def engine_time(service: Service) -> float:
    with engine(service) as connection:
        [row] = connection.execute("select extract(epoch from clock_timestamp())::float8").fetchall()
        return float(row[0])


def end_window(service: Service, organization: Organization) -> None:
    """What was used now belongs to the window before, as it will when the minute is over."""
    with engine(service) as connection:
        connection.execute("update quota set started = started - 1 where organization = %s", [organization.id])


def use_up(client: httpx.Client) -> httpx.Response:
    """Sends until it is refused; the refusal."""
    for _ in range(1000):
        answer = client.post("/query", content="select 1", headers={"Content-Type": "text/plain"})
        if counted(answer).status == 429:
            return answer
    raise AssertionError("it was never refused")


# -- what is let through -----------------------------------------------------------------------------------------


def test_the_free_tier_lets_exactly_200_through(metered: Service) -> None:
    """Of a flood from many clients at once, on both planes; refused ones say when to come back."""

    def flood(place: int, organization: Organization) -> Counter[int]:
        seen: Counter[int] = Counter()
        with metered.client(organization.key) as client:
            for _ in range(30):
                if place % 2:
                    seen[ask(client).status] += 1
                else:
                    answer = organization.control.ask("GET", "/v1/organization")
                    seen[counted(answer).status] += 1
        return seen

    def floods() -> Counter[int]:
        organization = new_organization(metered, "free")
        return sum(at_once([partial(flood, place, organization) for place in range(10)]), Counter())

    assert in_one_window(partial(engine_time, metered), floods) == {200: 200, 429: 100}


def test_the_next_window_lets_through_again(metered: Service) -> None:
    """At the time that Retry-After names, and as many as before."""
    organization = new_organization(metered, "tiny")
    with metered.client(organization.key) as client:
        began = engine_time(metered)
        refused = use_up(client)
        wait_s = int(refused.headers["retry-after"])
        last_end = (engine_time(metered) + wait_s + 1) // WINDOW_S * WINDOW_S
        assert began + wait_s - 2 <= last_end, "it names the end of a window, to the second"
        end_window(metered, organization)
        eventually(lambda: ask(client).status == 200, 2 * WINDOW_S)  # and so one of the new window is used
        seen = [ask(client) for _ in range(2 * TINY)]
        while seen[-1].remaining > seen[0].remaining:  # yet another window
            seen.pop()
    assert [answer.status for answer in seen[: TINY - 1]] == [200] * (TINY - 1)
    assert {answer.status for answer in seen[TINY - 1 :]} <= {429}


def test_the_headers_count_down(metered: Service) -> None:
    """One less with every request, the same window all along."""
    organization = new_organization(metered, "some")
    with metered.client(organization.key) as client:
        answers = [ask(client) for _ in range(10)]
    assert {answer.limit for answer in answers} == {40}
    steps = Counter(before.remaining - after.remaining for before, after in pairwise(answers))
    assert steps[1] >= 8, "but for where a window ends"
    assert all(0 <= answer.seconds <= WINDOW_S for answer in answers)


def test_one_organizations_flood_is_not_anothers(metered: Service) -> None:
    """Each has a quota of its own."""
    used, fresh = new_organization(metered, "tiny"), new_organization(metered, "tiny")
    with metered.client(used.key) as client, metered.client(fresh.key) as neighbour:
        use_up(client)
        first = ask(neighbour)
    assert (first.status, first.remaining) == (200, TINY - 1)


def test_an_organization_without_a_limit_has_no_headers(metered: Service) -> None:
    """There is nothing to say."""
    with metered.client() as client:
        answer = client.post("/query", content="select 1", headers={"Content-Type": "text/plain"})
    assert answer.status_code == 200
    assert "ratelimit" not in answer.headers
    assert "ratelimit-policy" not in answer.headers


# -- what counts -------------------------------------------------------------------------------------------------


def test_every_authenticated_request_counts_once_whatever_its_answer(metered: Service) -> None:
    """A success, bad SQL, a bad body, a thing that is not there, a route above its scope, a login; on both planes."""
    organization = new_organization(metered, "plenty")
    control = organization.control
    reader = control.post("/v1/keys", {"name": "r", "scopes": ["read"]})["key"]

    def remaining() -> Counted:
        return counted(control.ask("GET", "/v1/organization"))

    for token, method, url, body, status in (
        (organization.key, "POST", "/v1/query", {"sql": "select 1"}, 200),
        (organization.key, "POST", "/v1/query", {"sql": "select nonsense"}, 200),
        (organization.key, "POST", "/v1/query", {"sql": "selec"}, 400),
        (organization.key, "POST", "/v1/query", {"sqll": "x"}, 400),
        (organization.key, "GET", "/v1/transaction/txn_unknown_thing", None, 404),
        (organization.key, "GET", metered.control_url + "/v1/keys/unknown", None, 404),
        (organization.key, "GET", metered.control_url + "/v1/keys?limit=0", None, 400),
        (reader, "GET", metered.control_url + "/v1/keys", None, 403),
        (organization.key, "GET", metered.control_url + "/v1/organizations", None, 403),
        (organization.key, "POST", metered.control_url + "/v1/session", {}, 201),
        (organization.key, "POST", metered.control_url + "/v1/session", {"scopes": []}, 400),
    ):
        with metered.client(token) as client:
            before = remaining()
            answer = client.request(method, url, json=body)
            after = remaining()
        assert answer.status_code == status, answer.text
        if after.seconds <= before.seconds:  # no window has ended in between
            between = counted(answer)
            assert (between.remaining, after.remaining) == (before.remaining - 1, before.remaining - 2), url


def test_a_request_that_nobody_can_be_blamed_for_does_not_count(metered: Service) -> None:
    """Without a token, with a wrong one, to a route that is not there, or for the health check."""
    organization = new_organization(metered, "plenty")
    before = counted(organization.control.ask("GET", "/v1/organization"))
    with metered.client("svc_k_wrong") as nobody:
        answers = [
            nobody.post("/v1/query", json={"sql": "select 1"}),
            nobody.get("/health"),
            nobody.get("/"),
            organization.control.ask("GET", "/v1/nowhere"),
        ]
    assert [answer.status_code for answer in answers] == [401, 200, 200, 404]
    assert all("ratelimit" not in answer.headers for answer in answers)
    after = counted(organization.control.ask("GET", "/v1/organization"))
    assert after.seconds > before.seconds or after.remaining == before.remaining - 1


def test_a_lack_of_rights_is_told_before_a_lack_of_permits(metered: Service) -> None:
    """In the order in which every request is judged."""
    organization = new_organization(metered, "tiny")
    with metered.client(organization.key) as client:
        use_up(client)
        assert counted(organization.control.ask("GET", "/v1/organizations")).status == 403
        malformed = client.post("/v1/query", json={"wrong": 1})
        assert counted(malformed).status in (429, 400)
        assert malformed.status_code == 429 or ask(client).status == 200, "400 only where a new window has begun"


# -- changes -----------------------------------------------------------------------------------------------------


def test_another_tier_holds_soon(metered: Service) -> None:
    """Upwards for one that was used up, and downwards again."""
    organization = new_organization(metered, "tiny")
    operator = Control(metered, metered.key)
    with metered.client(organization.key) as client:
        use_up(client)
        operator.patch(f"/v1/organizations/{organization.id}", {"tier": "plenty"})
        eventually(lambda: ask(client).limit == 100_000)
        assert [ask(client).status for _ in range(20)] == [200] * 20
        operator.patch(f"/v1/organizations/{organization.id}", {"tier": "unlimited"})
        eventually(lambda: "ratelimit" not in client.get("/v1/transaction/txn_unknown_thing").headers)
        operator.patch(f"/v1/organizations/{organization.id}", {"tier": "tiny"})
        eventually(lambda: client.get("/v1/transaction/txn_unknown_thing").status_code == 429)


# -- holders -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_metadata(service: Service) -> AsyncIterator[MetadataSession]:
    conninfo = service.conninfo("tuplegate")
    owner = await find_owner(read_address(conninfo) if ENGINE else conninfo, Settings())
    async with owner.metadata() as session:
        yield session


class Faulty:
    """A session that is lost before the engine has got a statement, or after: when some are given back, and while it
    `fails` now and then, from a seed."""

    def __init__(self, session: MetadataSession, chance: Random) -> None:
        self._session = session
        self._chance = chance
        self._giving_back = [0, 1, 0, 1]
        self.fails = False
        self.run_atomically = session.run_atomically
        self.change_definitions = session.change_definitions

    async def fetch(self, sql: str, *params: str | None) -> list[tuple[str | None, ...]]:
        gives_back = len(params) == 7 and params[-1] == "0"
        fault = self._chance.randrange(10) if self.fails else 9
        if gives_back and self._giving_back:
            fault = self._giving_back.pop()
        if fault == 0:
            raise EngineUnavailable("the statement was not sent")
        rows = await self._session.fetch(sql, *params)
        if fault == 1:
            raise EngineLost("the answer was lost")
        return rows


async def ask_until_refused(service: Service, organization: str, seed: int) -> int:
    """Three workers' quotas of one organization, asked in an order of chance while their sessions fail."""
    chance = Random(seed)
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(open_metadata(service)) for _ in range(3)]
        return await ask_through([Faulty(session, chance) for session in opened], organization, chance)


async def ask_through(sessions: list[Faulty], organization: str, chance: Random) -> int:
    workers = [Quotas(Permits(session), read_tiers("free=200")) for session in sessions]
    watching = [asyncio.get_running_loop().create_task(worker.watch()) for worker in workers]
    clock = asyncio.get_running_loop().time

    async def ask(times: int, among: list[Quotas]) -> int:
        let_through = 0
        for _ in range(times):
            quota = chance.choice(among).find_quota(organization, "free")
            assert quota is not None
            for _ in range(chance.choice([1, 1, 5, 20])):
                try:
                    let_through += quota.take(clock()) or await quota.take_more(clock())
                except ServiceError:
                    pass  # the engine could not be asked, so it has not counted
        return let_through

    try:
        for session in sessions:
            await session.fetch("SELECT 1")
            session.fails = True
        let_through = sum(await asyncio.gather(*(ask(4, workers) for _ in range(8))))
        for session in sessions:
            session.fails = False
        # Who lost an answer does not know what it was given until it has reported again. Then all that is left is
        # there for one who has not been refused yet.
        while any(quota.is_open(clock()) for worker in workers if (quota := worker.find_quota(organization, "free"))):
            await asyncio.sleep(TICK_S)
        return let_through + await ask(100, [Quotas(Permits(sessions[0]), read_tiers("free=200"))])
    finally:
        for task in watching:
            task.cancel()


@pytest.mark.parametrize("seed", range(4))
def test_permits_are_exact_whatever_fails(metered: Service, seed: int) -> None:
    """No answer that is lost loses a permit, and none that is repeated makes one."""

    def run() -> int:
        return asyncio.run(ask_until_refused(metered, new_organization(metered, "free").id, seed))

    assert in_one_window(partial(engine_time, metered), run) == 200


def test_a_statement_that_comes_late_or_twice_changes_nothing(metered: Service) -> None:
    """The engine may come to it after its connection was lost, and after a later one."""
    organization = new_organization(metered, "free")

    async def run() -> list[tuple[int, int, int]]:
        async with open_metadata(metered) as session:
            permits = Permits(session)
            first = await permits.settle(organization.id, 200, Report("a", 1, 0, 0, 150))
            window = first.started
            reports = [
                Report("b", 1, 0, 0, 100),
                Report("a", 2, window, 110, 0),
                Report("b", 2, window, 50, 60),
                Report("b", 2, window, 50, 60),
                Report("a", 1, 0, 0, 150),
                Report("a", 3, window, 110, 1),
            ]
            grants = [first, *[await permits.settle(organization.id, 200, one) for one in reports]]
            return [(grant.count, grant.remaining, grant.held) for grant in grants]

    assert in_one_window(partial(engine_time, metered), lambda: asyncio.run(run())) == [
        (150, 50, 0),
        (50, 0, 149),
        (0, 40, 49),
        (40, 0, 0),
        (0, 0, 0),
        (0, 0, 39),
        (0, 0, 39),
    ]
