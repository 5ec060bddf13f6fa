"""Every statement is answered as the engine answers it over a connection of its own, however often it comes."""

import random
from collections.abc import Iterator

import pytest

from tests.control import Organization
from tests.needs import needs
from tests.service import Service
from tests.twin import Twins, try_others, try_type, twins_of

pytestmark = needs("postgresql")
"""Both engines of it are PostgreSQL."""

_LITERALS = 5
_TYPES = (
    "smallint", "bigint", "numeric(6, 2)", "double precision", "varchar(4)", "char(4)", "name", "bytea", "boolean",
    "date", "timestamptz", "interval hour", "uuid", "jsonb", "integer[]", "mood", "positive", "short", "pair",
)  # fmt: skip
"""At least one for each way in which values are written and read; tests/extended/test_like_the_engine_at_length.py has
all types."""


@pytest.fixture(scope="module")
def twins(service: Service, organization: Organization) -> Iterator[Twins]:
    with twins_of(service, organization.key) as made:
        yield made


@pytest.mark.parametrize("type", _TYPES)
def test_values_of_a_type(twins: Twins, type: str) -> None:
    assert_alike(twins, type)


def assert_alike(twins: Twins, type: str) -> None:
    twins.wrong.clear()
    seed = random.SystemRandom().randrange(2**32)
    try_type(twins, type, random.Random(seed), _LITERALS, likes=("1",))
    assert not twins.wrong, f"seed {seed}, {len(twins.wrong)} statements: " + "\n".join(twins.wrong[:5])


def test_other_texts(twins: Twins) -> None:
    twins.wrong.clear()
    try_others(twins)
    assert not twins.wrong, "\n".join(twins.wrong[:5])


_OPEN = (
    "/*", "/* /* */", "/*/", "--/*\n/*", "'", '"', "$a$", "$$", "E'\\'", "e'\\", "U&'", "b'", "x'", "n'",
    "/* ' */ $b$ $a$",
)  # fmt: skip


def test_a_text_that_ends_inside_of_something_is_a_parse_error(twins: Twins) -> None:
    """Comments, quotes and dollar quotes that nothing closes, at the start of a text and behind a statement."""
    twins.wrong.clear()
    for opened in _OPEN:
        for before in ("", " ", "-- c\n", "/**/", "select 1 ", "select ", "set ", "prepare "):
            twins.both(before + opened)
    assert not twins.wrong, "\n".join(twins.wrong[:5])
