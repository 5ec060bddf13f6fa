"""The lives of keys, sessions and databases, in walks that are others each time."""

from tests.http.test_states import run_walks
from tests.service import Service


def test_keys_sessions_and_databases_live_as_their_tables_say(service: Service) -> None:
    """A failure prints how it is repeated."""
    run_walks(service, 16, derandomize=False)
