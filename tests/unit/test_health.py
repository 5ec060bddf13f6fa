"""What the health of an engine tells whom, and what a failure of the engine tells a client."""

import pytest

from tuplegate.data_plane.engine_errors import to_service_error
from tuplegate.data_plane.wire.wire_errors import to_wire_error
from tuplegate.engine.port import EngineFailure, EngineHealth, EngineLost, EngineUnavailable

LIBRARY = (
    'connection to server at "db1.internal" (10.0.0.7), port 5432 failed: FATAL:  role "tuplegate_x" does not exist'
)


def test_nobody_but_an_operator_reads_the_words_of_a_check() -> None:
    """Only which one fails; engines by their names are one check together."""
    health = EngineHealth(
        "postgresql",
        "18.1",
        {"engine": f"there is no primary: {LIBRARY}"},
        {"disk": "ok", "replica 1": LIBRARY, "engine alpha": LIBRARY, "engine beta": "ok"},
    )
    assert health.list_checks(in_full=True) == health.checks | health.warnings
    assert health.list_checks(in_full=False) == {
        "engine": "failing",
        "disk": "ok",
        "replica 1": "failing",
        "engines": "failing",
    }


@pytest.mark.parametrize("kind", [EngineUnavailable, EngineLost])
def test_a_client_does_not_read_the_words_of_the_library(kind: type[EngineUnavailable]) -> None:
    """The log does."""
    failure: EngineFailure = kind("no connection to the engine", LIBRARY)
    assert LIBRARY in str(failure)
    assert to_service_error(failure).body.message == "no connection to the engine"
    assert to_wire_error(failure).message == "no connection to the engine"
