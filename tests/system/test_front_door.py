"""The front door under attack, in short: nobody gets anybody else's bytes, and nobody is kept waiting for good.

`make attack` does the same at length, and asks for times too.
"""

from collections.abc import Iterator

import pytest
from attack.door.crosstalk import TLS, check, several_workers
from attack.door.floods import FLOODS
from attack.door.odd import send_oddities
from attack.door.place_floods import PLACES
from attack.door.stall import Parties, flooded_service, measure, stop_in_order

from tests.service import needs_bundled

pytestmark = needs_bundled
SEED = 14
SECONDS = 0.5
SCALE = 0.1


@pytest.mark.parametrize(("flags", "requests"), [pytest.param((), 2000, id="plain"), pytest.param(TLS, 1000, id="tls")])
def test_nobody_gets_a_byte_of_an_answer_to_anybody_else(flags: tuple[str, ...], requests: int) -> None:
    with several_workers(*flags) as service:
        run = check([service], SEED, requests, kills=1, connections=24)
    print(dict(run.tally))
    assert not run.wrong, "\n".join(run.wrong)
    assert run.tally["answers"] > requests / 3


@pytest.fixture(scope="module")
def plain() -> Iterator[Parties]:
    with flooded_service() as parties:
        yield parties


@pytest.fixture(scope="module")
def secure() -> Iterator[Parties]:
    with flooded_service(*TLS) as parties:
        yield parties


@pytest.fixture(scope="module")
def narrow() -> Iterator[Parties]:
    with flooded_service(places=PLACES) as parties:
        yield parties


@pytest.mark.parametrize("name", [pytest.param(each.name, id=each.sentence) for each in FLOODS.values()])
def test_a_bystander_is_answered_while(name: str, request: pytest.FixtureRequest) -> None:
    flood = FLOODS[name]
    parties = request.getfixturevalue("secure" if flood.needs_tls else "narrow" if flood.places else "plain")
    figures = measure(parties, flood, SEED, SECONDS, SCALE)
    print(figures)
    wrong = figures.breaches(timed=False)
    assert not wrong, "\n".join(wrong)


def test_odd_requests_of_all_sorts_leave_a_service_that_answers(plain: Parties) -> None:
    run = send_oddities(plain, SEED, 500, 3000)
    print(run.growth_bytes, dict(run.tally))
    assert not measure(plain, None, SEED, SECONDS, SCALE).wrong


@pytest.mark.parametrize("which", ["plain", "secure", "narrow"])
def test_a_service_that_was_flooded_stops_in_order(which: str, request: pytest.FixtureRequest) -> None:
    assert not stop_in_order(request.getfixturevalue(which).service)
