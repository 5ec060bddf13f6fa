"""Statements about every type are answered as the engine answers them over a connection of its own."""

import pytest

from tests.http.test_like_the_engine import assert_alike, twins
from tests.twin import TYPES, Twins

__all__ = ["twins"]  # a fixture


@pytest.mark.parametrize("type", TYPES)
def test_values_of_a_type(twins: Twins, type: str) -> None:
    assert_alike(twins, type)
