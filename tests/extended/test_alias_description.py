"""The alias answers as the data plane's description says, whatever it is sent."""

from tests.extended.test_openapi import Caller, caller

__all__ = ["caller"]  # a fixture


def test_the_alias_answers_as_the_data_plane_describes(caller: Caller) -> None:
    """It forwards the description too."""
    caller.fuzz("alias_url")
