"""The service reads requests as h11 and llhttp do, in cases that are others each time."""

import random

from attack.door.fuzz import run_cases
from attack.door.readings import service_reader

CASES = 40_000


def test_the_service_reads_as_h11_and_llhttp_do_or_refuses_by_a_listed_rule() -> None:
    """A difference names its seed and its case."""
    seed = random.SystemRandom().randrange(2**32)
    outcome = run_cases(seed, 0, CASES, service_reader())
    assert not outcome.wrong, "\n".join(outcome.wrong)
    assert outcome.tally["requests accepted"] > CASES / 3
    assert outcome.tally["refused"] > CASES / 3
