"""Every type with every value, as the service and as a plain connection to the engine answer it."""

import random

from tests.control import new_organization
from tests.twin import NUMBERS, TEXTS, TYPES, try_others, try_type, twins_of

from attack.arena import running_service
from attack.campaign import Verdict

_LIKES = ("1", "3000000000", "1.5", "9223372036854775808")
"""A number of each type that a literal can have."""
_SHOWN_MAX = 30


def compare(seed: int) -> Verdict:
    rng = random.Random(seed)
    with running_service() as service, twins_of(service, new_organization(service).key) as twins:
        try_others(twins)
        for type in rng.sample(TYPES, len(TYPES)):
            try_type(twins, type, rng, max(len(NUMBERS), len(TEXTS)), _LIKES)
    return Verdict("like_the_engine", twins.wrong[:_SHOWN_MAX], f"{twins.asked} statements", [])
