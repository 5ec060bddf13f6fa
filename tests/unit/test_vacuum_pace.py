"""How often the bundled engine looks after its databases."""

import pytest

from tuplegate.engine.postgres.own.vacuum_pace import choose_nap_s


@pytest.mark.parametrize(
    ("databases", "present", "seconds"),
    [
        (1, 60, 60),
        (240, 60, 60),
        (241, 60, 120),
        (1_000, 60, 480),
        (100_000, 60, 960),
        (240, 120, 120),
        (121, 120, 120),
        (120, 120, 60),
        (1, 960, 60),
        (1_000, 90, 90),
    ],
)
def test_the_time_grows_in_steps_with_the_databases(databases: int, present: int, seconds: int) -> None:
    """To a bound, and shrinks only well below a step: else one database made and dropped would change it twice. What
    is no step stays."""
    assert choose_nap_s(databases, present) == seconds
