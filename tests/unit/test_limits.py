"""Limits in layers: the most specific one counts; kinds of work; the words of a limit that ended something."""

import pytest

from tuplegate.access.limits import Layer, bound_database, find_limit, find_time_limit, read_limit
from tuplegate.access.quotas import read_tiers
from tuplegate.protocol.time_limits import TimeLimit, WorkKind, find_kind

SETTINGS = {"statement_timeout_ms": 30_000, "statement_timeout_ms_max": 300_000}


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([], (30_000, 300_000)),
        ([{"statement_timeout_ms": 5_000}], (5_000, 300_000)),
        ([{"statement_timeout_ms": 900_000}], (900_000, 900_000)),
        ([{"statement_timeout_ms_max": 10_000}], (10_000, 10_000)),
        ([{"statement_timeout_ms_max": 900_000}], (30_000, 900_000)),
        ([{"statement_timeout_ms": 1, "statement_timeout_ms_max": 2}], (1, 2)),
        ([{}, {"statement_timeout_ms": 7_000}], (7_000, 300_000)),
        ([{"statement_timeout_ms": 5_000}, {"statement_timeout_ms": 7_000}], (5_000, 300_000)),
        ([{"statement_timeout_ms_max": 6_000}, {"statement_timeout_ms": 7_000}], (6_000, 6_000)),
        ([{"statement_timeout_ms": 8_000}, {"statement_timeout_ms_max": 6_000}], (8_000, 8_000)),
    ],
)
def test_the_most_specific_layer_counts(layers: list[Layer], expected: tuple[int, int]) -> None:
    """Of a key, an organization, a tier and the settings, in this order."""
    limit = find_time_limit(WorkKind.STATEMENT, [*layers, SETTINGS])
    assert (limit.default_ms, limit.most_ms) == expected
    assert limit.default_ms <= limit.most_ms


def test_a_limit_that_no_layer_has_is_none() -> None:
    assert find_limit("statement_timeout_ms", [{}, {}]) is None


def test_a_request_shortens_and_lengthens_up_to_the_most() -> None:
    limit = TimeLimit(WorkKind.EXPORT, 1000, 5000)
    assert [limit.choose(asked) for asked in (None, 1, 3000, 9000)] == [1000, 1, 3000, 5000]


@pytest.mark.parametrize(
    ("keyword", "streamed", "kind"),
    [
        ("select", False, WorkKind.STATEMENT),
        ("select", True, WorkKind.STREAM),
        ("", True, WorkKind.STREAM),
        ("create", False, WorkKind.DEFINITION),
        ("refresh", True, WorkKind.DEFINITION),
        ("vacuum", False, WorkKind.DEFINITION),
        ("copy", False, WorkKind.EXPORT),
        ("do", False, WorkKind.STATEMENT),
    ],
)
def test_the_first_word_tells_the_kind(keyword: str, streamed: bool, kind: WorkKind) -> None:
    assert find_kind(keyword, is_streamed=streamed) is kind


def test_the_words_name_the_limit_and_how_to_change_it() -> None:
    """Also where the request itself asked for the time, and where no more can be asked for."""
    limit = TimeLimit(WorkKind.DEFINITION, 1000, 5000)
    assert "definition_timeout_ms" in limit.describe(1000)
    assert "timeout_ms of the request" in limit.describe(200)
    assert "up to 5000 ms" in limit.suggest(1000)
    assert "definition_timeout_ms_max" in limit.suggest(5000)
    assert "up to" not in limit.suggest(5000)
    assert "PATCH /v1/organizations/{id}" in limit.suggest(200)


def test_a_tier_has_limits_of_its_own() -> None:
    """Behind its requests and size, by the names of their settings, with units."""
    tiers = read_tiers("free=200/1GB statement_timeout_ms=5s, pro = 6000  export_timeout_ms=4h stream_timeout_ms=2000")
    assert tiers["free"].limits == {"statement_timeout_ms": 5000}
    assert tiers["pro"].limits == {"export_timeout_ms": 4 * 3_600_000, "stream_timeout_ms": 2000}
    assert (tiers["free"].bytes_max, tiers["pro"].requests) == (2**30, 6000)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("statement_timeout", "5s"),
        ("statement_timeout_ms", ""),
        ("statement_timeout_ms", "0"),
        ("statement_timeout_ms", "5GB"),
        ("statement_timeout_ms", "-5"),
        ("statement_timeout_ms", "1.5s"),
        ("statement_timeout_ms", "9" * 16),
        ("statement_timeout_ms", "9999999999999h"),
    ],
)
def test_what_is_no_limit_is_refused(name: str, text: str) -> None:
    """By its name."""
    with pytest.raises(ValueError, match=name):
        read_limit(name, text)


@pytest.mark.parametrize(
    ("bytes_max", "organization_max", "others", "expected"),
    [
        (None, None, 5, None),
        (10, None, 5, 10),
        (None, 0, 5, None),
        (10, 100, 5, 10),
        (10, 12, 5, 7),
        (None, 12, 5, 7),
        (10, 12, 50, 1),
    ],
)
def test_a_database_has_what_the_others_leave(
    bytes_max: int | None, organization_max: int | None, others: int, expected: int | None
) -> None:
    assert bound_database(bytes_max, organization_max, others) == expected
