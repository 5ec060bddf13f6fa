"""How often the bundled engine looks after its databases."""

import pytest

from querygate.engine.postgres.vacuum_pace import VISITS_A_SECOND, nap_s


@pytest.mark.parametrize(
    ("databases", "seconds"), [(1, 60), (240, 60), (241, 120), (480, 120), (1_000, 480), (10_000, 3_840)]
)
def test_the_time_grows_in_steps_with_the_databases(databases: int, seconds: int) -> None:
    assert nap_s(databases) == seconds
    assert databases / seconds <= VISITS_A_SECOND
