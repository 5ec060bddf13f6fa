"""How many records each organization keeps, where all together have too many."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuplegate.access.retention import choose_share


@pytest.mark.parametrize(
    ("counts", "each_max", "total_max", "share"),
    [
        ([], 10, 100, 10),
        ([5, 7], 10, 100, 10),
        ([5, 50], 10, 100, 10),
        ([5, 50, 60], 100, 65, 30),
        ([1000, 3, 4], 1000, 17, 10),
        ([10, 10], 100, 10, 5),
    ],
)
def test_who_has_most_gives_up_first(counts: list[int], each_max: int, total_max: int, share: int) -> None:
    assert choose_share(counts, each_max, total_max) == share


@given(st.lists(st.integers(0, 1000), max_size=20), st.integers(1, 1000), st.integers(1, 5000))
def test_the_share_keeps_both_bounds_and_takes_no_more_than_needed(
    counts: list[int], each_max: int, total_max: int
) -> None:
    share = choose_share(counts, each_max, total_max)
    kept = sum(min(count, share) for count in counts)
    assert share <= each_max
    assert kept <= total_max
    if share < each_max:
        assert sum(min(count, share + 1) for count in counts) > total_max
