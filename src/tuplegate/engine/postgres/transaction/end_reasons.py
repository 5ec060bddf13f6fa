"""Finds the reason that a client is told for the end of an open transaction."""

from typing import Final

from tuplegate.engine import port
from tuplegate.engine.postgres.query.run import Why

REASONS: Final = {
    Why.STOPPING: port.EndReason.LOST,
    Why.LOCKS: port.EndReason.LIMIT,
    Why.ROOM: port.EndReason.LIMIT,
    Why.OUTLIVED: port.EndReason.CONFLICT,
}
"""Why it is rolled back where the service has ended what it ran. A statement whose time is over only fails."""


def find_reason(failure: port.EngineFailure) -> port.EndReason:
    """Return why it is over where its commit has failed."""
    if isinstance(failure, port.Conflict):
        return port.EndReason.CONFLICT
    return port.EndReason.LOST if isinstance(failure, port.EngineUnavailable) else port.EndReason.ROLLBACK
