"""Others are answered while long arrays of all sorts are written into answers, or read from parameters."""

import pytest

from tests.http.test_long_values import ANSWERS, PARAMETERS, read_beside, write_beside
from tests.service import Service


@pytest.mark.parametrize("kind", ANSWERS)
def test_others_are_answered_while_a_long_array_is_written(service: Service, kind: str) -> None:
    """An array in an answer keeps nobody waiting."""
    write_beside(service, ANSWERS[kind])


@pytest.mark.parametrize("kind", PARAMETERS)
def test_others_are_answered_while_a_long_parameter_is_read(service: Service, kind: str) -> None:
    """An array as a parameter keeps nobody waiting, and the engine gets all of it."""
    read_beside(service, *PARAMETERS[kind])
