"""Tiers as they are written in the settings, portions of permits, and the headers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuplegate.access.quotas import Tier, choose_portion, find_tier, read_tiers, write_policy_header, write_state_header


def test_tiers_are_read_from_one_line() -> None:
    """A name alone has no limit; white space does not matter."""
    assert read_tiers(" free=200,pro = 6000 , unlimited") == {
        "free": Tier("free", 200),
        "pro": Tier("pro", 6000),
        "unlimited": Tier("unlimited", None),
    }


def test_a_tier_can_bound_the_size_of_databases() -> None:
    """With a limit of requests or without one."""
    assert read_tiers("free=200/1GB, big=/2 TB, small = 5 / 500MB, tiny=1/64KB") == {
        "free": Tier("free", 200, 2**30),
        "big": Tier("big", None, 2 * 2**40),
        "small": Tier("small", 5, 500 * 2**20),
        "tiny": Tier("tiny", 1, 64 * 2**10),
    }


@pytest.mark.parametrize("text", ["a=/", "a=1/", "a=1/0MB", "a=1/1", "a=1/many", "a=1/1.5GB", "a=1/1gb", "a=x/1GB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="tier a"):
        read_tiers(text)


def test_a_tier_that_is_gone_has_the_least() -> None:
    assert find_tier(read_tiers("big=10, least=1/1GB, unlimited"), "gone").name == "least"


@pytest.mark.parametrize(
    "text",
    ["", ",", "free=", "free=0", "free=-1", "free=many", "free=1.5", "a=1, a=2", "a b=1", "=5", "free=200,", "²=1"],
)
def test_what_is_no_tier_is_refused(text: str) -> None:
    """With the part that is wrong."""
    with pytest.raises(ValueError, match="tier"):
        read_tiers(text)


@given(st.integers(0, 10**7), st.integers(1, 10**7))
def test_a_portion_is_never_more_than_is_soon_used(remaining: int, recent: int) -> None:
    """At least one, no more than of late, and at most a sixteenth of what is left."""
    size = choose_portion(remaining, recent)
    assert 1 <= size <= max(1, recent)
    assert size == 1 or size * 16 <= remaining


def test_the_headers_are_those_of_the_draft() -> None:
    """A policy by name with quota and window, a state with what is left and for how long."""
    assert write_policy_header(200) == b'"requests";q=200;w=60'
    assert write_state_header(3, 17) == b'"requests";r=3;t=17'
