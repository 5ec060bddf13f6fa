"""A savepoint by which a transaction is known again.

The service sets it when it begins a transaction, and looks for it in the end. A transaction in which it is missing is
not the one that was begun: a statement has ended that one, and its rows may be stored. That the connection is inside of
some transaction does not tell. As the savepoint is the outermost one, no other can commit when it is released, which
one called `cockroach_restart` would do.
"""

import secrets
from typing import Final

from tuplegate.engine import port
from tuplegate.engine.cockroach.query.rules import BEGIN_READING, BEGIN_WRITING
from tuplegate.engine.libpq.connections.commands import Command
from tuplegate.engine.libpq.connections.connection import Connection
from tuplegate.engine.libpq.connections.server_errors import find_error, to_failure
from tuplegate.engine.run.steps import Does, Step

_NAME: Final = f"tuplegate_{secrets.token_hex(8)}"
"""One for a process: the engine keeps statistics of every text, so that one for a transaction would fill them."""
_MISSING: Final = ("3B001", "25P01")
"""SQLSTATEs of a savepoint that is not there, and of a connection that is in no transaction."""

ENDED: Final = "a statement ended the transaction; what ran before it may have been stored"

SET: Final = Command(f"SAVEPOINT {_NAME}".encode(), begins=False)
RELEASE: Final = Command(f"RELEASE SAVEPOINT {_NAME}".encode(), begins=False)
READING: Final = [Step(Does.OPEN, BEGIN_READING)]
WRITING: Final = [Step(Does.OPEN, BEGIN_WRITING), Step(Does.OPEN, SET)]
_GO_BACK: Final = Command(f"ROLLBACK TO SAVEPOINT {_NAME}".encode(), begins=False)


def is_missing(failure: port.EngineFailure) -> bool:
    """Return whether the failure, of RELEASE or of going back, says that the savepoint is not there."""
    return isinstance(failure, port.StatementFailed) and failure.sqlstate in _MISSING


async def check_same(connection: Connection) -> None:
    """Raise OutcomeUnknown where the transaction, one that failed, is not the one that was begun."""
    error = find_error(await connection.run(_GO_BACK))
    if error is not None and is_missing(to_failure(error)):
        raise port.OutcomeUnknown(ENDED)
