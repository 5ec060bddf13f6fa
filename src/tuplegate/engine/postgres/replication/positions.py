"""Positions: how far a server is in the log of its changes, written so that clients can hand them back.

A position is a timeline and a place in the log (an LSN), both in hexadecimal and of fixed length: the position that is
greater as a text is the later one. A client gains nothing from an invented position: one ahead of the engine is waited
for in vain, for a moment, and then the primary answers.

Why the place of the next record (`pg_current_wal_insert_lsn`): everything that a transaction sees was committed by
records before it, including those that are not yet on disk. The question for it is sent behind the statement's commit,
in the same write.
"""

import re
from typing import Final, NamedTuple

from psycopg import pq
from psycopg.pq.abc import PGresult

from tuplegate.engine.libpq.connections.commands import Command
from tuplegate.engine.port import BadPosition

UNKNOWN: Final = b"unknown"
"""The position to tell if the engine was lost before it could answer. No replica reaches it, so the primary answers."""

_FORM: Final = re.compile(rb"([0-9a-f]{8})-([0-9a-f]{16})")
_ROWS: Final = int(pq.ExecStatus.TUPLES_OK)

# Not at SERIALIZABLE, so that the question takes no place among those transactions (see `guard`).
_BEGIN: Final = Command(b"BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY", begins=False)
_COMMIT: Final = Command(b"COMMIT", begins=False)


class Position(NamedTuple):
    timeline: int
    lsn: int

    def written(self) -> bytes:
        return b"%08x-%016x" % self


NOWHERE: Final = Position(2**32 - 1, 2**64 - 1)
"""A position after every other: the meaning of `UNKNOWN`."""


def read_position(text: bytes | None) -> Position | None:
    """Return the position that a client sent, or None if it sent none. Raises BadPosition."""
    if text is None:
        return None
    if text == UNKNOWN:
        return NOWHERE
    match = _FORM.fullmatch(text)
    if match is None:
        raise BadPosition(
            "Tuplegate-Position is not one that this service has told: send back the value of an answer as it is,"
            " or leave the header out"
        )
    return Position(int(match[1], 16), int(match[2], 16))


def read_lsn(text: str) -> int:
    """Read an LSN as the engine writes it: `16/B374D848`."""
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def ask_after_commit(question: Command) -> list[Command]:
    """Return a segment that asks for the position; send it behind the statement's own."""
    return [_BEGIN, question, _COMMIT]


def read_answer(results: list[PGresult]) -> bytes | None:
    """Return the position in the answer to `ask_after_commit`: a primary's completely, a standby's without its
    timeline, which must be asked for elsewhere (`standby_lsn`). None if the engine does not tell."""
    if len(results) != 3 or results[1].status != _ROWS or results[1].ntuples != 1:
        return None
    timeline, place = results[1].get_value(0, 0), results[1].get_value(0, 1)
    if place is None:
        return None
    lsn = read_lsn(place.decode())
    return b"%016x" % lsn if timeline is None else b"%b-%016x" % (timeline.lower(), lsn)


def standby_lsn(reached: bytes) -> int | None:
    """Return the LSN that the standby reported; None if it is no longer a standby."""
    return None if b"-" in reached else int(reached, 16)
