"""A savepoint that identifies a transaction.

The service sets it when it begins a transaction, and checks for it at the end. If it is missing, a statement has ended
that transaction, and its rows may be stored. It is not enough that the connection is in some transaction. Since this
savepoint is the outermost, a statement cannot commit by releasing another one, as it could with one called
`cockroach_restart`.
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
"""One name for a process: the engine keeps statistics of every text, and a name for each transaction would fill
them."""
_MISSING: Final = ("3B001", "25P01")
"""The SQLSTATEs of a missing savepoint, and of a connection that is in no transaction."""

ENDED: Final = "a statement ended the transaction; what ran before it may have been stored"

SET: Final = Command(f"SAVEPOINT {_NAME}".encode(), begins=False)
RELEASE: Final = Command(f"RELEASE SAVEPOINT {_NAME}".encode(), begins=False)
READING: Final = [Step(Does.OPEN, BEGIN_READING)]
WRITING: Final = [Step(Does.OPEN, BEGIN_WRITING), Step(Does.OPEN, SET)]
_GO_BACK: Final = Command(f"ROLLBACK TO SAVEPOINT {_NAME}".encode(), begins=False)


def is_missing(failure: port.EngineFailure) -> bool:
    """Return whether the failure, of a release or a rollback to the savepoint, says that the savepoint is missing."""
    return isinstance(failure, port.StatementFailed) and failure.sqlstate in _MISSING


async def check_same(connection: Connection) -> None:
    """Raise OutcomeUnknown if the failed transaction of the connection is not the one that was begun."""
    error = find_error(await connection.run(_GO_BACK))
    if error is not None and is_missing(to_failure(error)):
        raise port.OutcomeUnknown(ENDED)
