"""Rows that tell the outcome of a transaction, and answers that are kept: they commit together with the tenant's data.

The tenant's own connection writes them, since only then do they commit with the tenant's data. Its role may add such
rows and do nothing else with them. A row's key and content are MACs that only the service can make. So a tenant can
neither forge a valid row nor take the place of one. A role without the right to read the rows learns no key.

A transaction has a number of 62 bits: a random one, or one derived from the id that its client chose. When two decide
the same number, the second one fails at the row's primary key.

A database that was reset has the rows of its predecessor unchanged, with the predecessor's signatures, and its name in
`former`.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Final

from tuplegate.engine.libpq.connections.commands import Command
from tuplegate.engine.port import Keep, Outcome, Promise, TransactionResult

SCHEMA: Final = (
    "CREATE SCHEMA IF NOT EXISTS tuplegate",
    "CREATE TABLE IF NOT EXISTS tuplegate.begun"
    " (id text PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp())",
    "CREATE TABLE IF NOT EXISTS tuplegate.outcome"
    " (key text PRIMARY KEY, state text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())",
    "CREATE TABLE IF NOT EXISTS tuplegate.answer"
    " (key text PRIMARY KEY, mac text NOT NULL, request text NOT NULL, body bytea NOT NULL,"
    " at timestamptz NOT NULL DEFAULT clock_timestamp())",
    "CREATE TABLE IF NOT EXISTS tuplegate.former (name text PRIMARY KEY)",
)
_EXPIRING: Final = ("begun", "outcome", "answer")
TABLES: Final = (*_EXPIRING, "former")
EXPIRE: Final = tuple(
    f"DELETE FROM tuplegate.{table} WHERE crdb_internal_mvcc_timestamp <"
    " extract(epoch FROM clock_timestamp() - interval '25 hours')::decimal * 1000000000"
    for table in _EXPIRING
)
"""Removes expired records. The engine's own time of a row counts: a tenant may add rows, and could write any time into
a column."""

_ADD_OUTCOME: Final = "INSERT INTO tuplegate.outcome (key, state) VALUES ($1, $2)"
_ADD_ANSWER: Final = "INSERT INTO tuplegate.answer (key, mac, request, body) VALUES ($1, $2, $3, decode($4, 'hex'))"

Question = tuple[str, tuple[str, ...]]
"""A statement of the service's own, and its parameters."""


def new_number() -> int:
    return secrets.randbits(62)


def number_of(id: str) -> int:
    """Return the number of a transaction whose client has chosen its id."""
    return int.from_bytes(hashlib.sha256(id.encode()).digest()[:8], "big") >> 2


@dataclass(frozen=True, slots=True)
class Records:
    """Makes and checks the rows of one database, with its secret."""

    secret: bytes

    def key(self, number: int) -> str:
        return self._sign(f"number/{number}")

    def state(self, number: int, outcome: Outcome) -> str:
        return self._sign(f"{outcome.value}/{number}")

    def read_state(self, number: int, state: str | None) -> Outcome | None:
        """Return the outcome that a row tells; None if the row is missing or was not made by the service."""
        for outcome in (Outcome.COMMITTED, Outcome.ABORTED):
            if state is not None and hmac.compare_digest(state, self.state(number, outcome)):
                return outcome
        return None

    def decide(self, number: int, outcome: Outcome) -> Question:
        return _ADD_OUTCOME, (self.key(number), self.state(number, outcome))

    def keep(self, keep: Keep, done: TransactionResult) -> Question:
        body = keep.body(done)
        key = self.answer_key(keep.route, keep.key)
        return _ADD_ANSWER, (key, self.answer_mac(key, keep.request, body), keep.request, body.hex())

    def answer_key(self, route: str, key: str) -> str:
        return self._sign(f"answer/{route}/{key}")

    def answer_mac(self, key: str, request: str, body: bytes) -> str:
        return self._sign(f"kept/{key}/{request}/{hashlib.sha256(body).hexdigest()}")

    def write(self, number: int, promise: Promise | None, done: TransactionResult) -> list[Command]:
        """Return the rows of a transaction that commits, as commands for its own connection."""
        questions = [self.decide(number, Outcome.COMMITTED)]
        if promise is not None and promise.keep is not None:
            questions.append(self.keep(promise.keep, done))
        return [Command(sql.encode(), [param.encode() for param in params]) for sql, params in questions]

    def _sign(self, text: str) -> str:
        return hmac.new(self.secret, text.encode(), hashlib.sha256).hexdigest()
