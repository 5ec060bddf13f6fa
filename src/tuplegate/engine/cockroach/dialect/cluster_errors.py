"""Translates this engine's errors into the port's words.

Its messages carry raw keys, requests for bug reports and a drawing of the error's place; clients of the service get a
short text and a position.
"""

import re
from typing import Final

from tuplegate.engine import port
from tuplegate.protocol.statements import skip_blank

AMBIGUOUS: Final = "40003"
"""The SQLSTATE of a commit whose outcome the engine does not know."""
HALF_APPLIED: Final = "XXA00"
"""The SQLSTATE of a commit whose rows are stored, although a change of definitions in it failed."""
CANCELLED: Final = "57014"
READ_ONLY: Final = "25006"
DUPLICATE: Final = "23505"

_NODE_FAILURES: Final = frozenset({"58C00", "58C01"})
"""SQLSTATEs of a range that has no quorum, and of a node that did not reach another."""
_UNCATEGORIZED: Final = "XXUUU"
_NODE_WORDS: Final = re.compile(
    r"\brpc error: |\bfailed to send RPC\b|\bfailed to connect to n\d|\bbreaker open\b|try another peer"
    r"|connection heartbeat|\bnode unavailable\b"
)
_CANCELLED_BY_NODE: Final = "query execution canceled"
"""The whole message of a node that drains. If a time limit is over, a node says the same."""

_SOURCE: Final = "source SQL:\n"
_EXPECTED: Final = re.compile(r"expected (\d+) arguments, got (\d+)")
_REPORT: Final = re.compile(
    r"\s*(?:You have attempted to use a feature that is not yet implemented\.|See: https?://).*", re.S
)
_HELP: Final = re.compile(r"^try \\h .*$")
_RETRY: Final = re.compile(r"^(?:restart transaction: )?Transaction\w*Error\b")


def refine(failure: port.StatementFailed, sql: str = "") -> port.StatementFailed:
    """Return the failure in the port's form, given one with the engine's own texts. `sql` is the text that failed. The
    service's own timeouts are returned as they are."""
    if isinstance(failure, port.TimedOut):
        return failure
    kind, message, sqlstate = type(failure), failure.message, failure.sqlstate
    position, detail, hint = failure.position, failure.detail, failure.hint
    if detail is not None and detail.startswith(_SOURCE):
        # Syntax that the engine knows but does not support yet (0A000) is shown in the same way.
        kind = port.ParseFailed if failure.sqlstate == "42601" else kind
        position, detail = find_position(detail, sql), None
    elif failure.sqlstate == "42P14":
        kind, message = port.MultipleStatements, "the text holds more than one statement"
        sqlstate = "42601"  # as PostgreSQL has it
    elif failure.sqlstate == "08P01" and (told := _EXPECTED.search(message)):
        kind, message = (
            port.ParameterMismatch,
            f"{told[2]} parameters were sent, the statement has {told[1]} placeholders",
        )
    elif isinstance(failure, port.Conflict):
        message, detail, hint = _shorten_conflict(message), None, None
    if hint is not None:
        hint = _REPORT.sub("", _HELP.sub("", hint)) or None
    refined = kind(message, sqlstate=sqlstate, position=position, detail=detail, hint=hint, context=None)
    refined.fields, refined.statement = failure.fields, failure.statement
    refined.never_ran = failure.never_ran or kind is not type(failure)
    refined.exec_us, refined.attempts, refined.notices = failure.exec_us, failure.attempts, failure.notices
    return refined


def is_node_failure(failure: port.StatementFailed) -> bool:
    """Return whether nodes failed to reach each other, or a node is about to end. The statement may then run again.

    A statement that the service itself has cancelled looks the same: check for that first.
    """
    if failure.sqlstate == CANCELLED:
        return failure.message == _CANCELLED_BY_NODE
    if failure.sqlstate == _UNCATEGORIZED:
        return _NODE_WORDS.search(failure.message) is not None
    return failure.sqlstate in _NODE_FAILURES


def find_position(detail: str, sql: str = "") -> int | None:
    """Return the position of an error, counted in characters from 1, from the drawing that shows it.

    The last line holds an arrow, indented by the number of bytes before the error in the line above. The drawing leaves
    out everything before the first word of the text.
    """
    lines = detail.removeprefix(_SOURCE).split("\n")
    if len(lines) < 2 or lines[-1].strip() != "^":
        return None
    left_out = skip_blank(sql, semicolons=True)
    if not sql.startswith("\n".join(lines[:-1]), left_out):
        left_out = 0
    before = lines[-2].encode()[: len(lines[-1]) - 1].decode("utf-8", "ignore")
    return left_out + sum(len(line) + 1 for line in lines[:-2]) + len(before) + 1


def _shorten_conflict(message: str) -> str:
    if _RETRY.match(message):
        return "the transaction met another one, and could not be put before or behind it"
    return message.split("\n", 1)[0][:200]
