"""`Idempotency-Key`: requests with the same key and body run once; a repeat gets the first answer.

The transaction itself records its answer, so there is never one without the other. While the first request runs, a lock
that ends with the worker holds its key. Failures are not recorded, so the client may try again.
"""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from tuplegate.data_plane.consistency import tell_newest
from tuplegate.engine import port
from tuplegate.http.exchange import Exchange
from tuplegate.protocol.errors import ServiceError

KEY_LENGTH_MAX: Final = 255
KEPT_BYTES_MAX: Final = 2**20
_ROWS_BYTES_MAX: Final = 16 * 2**20
_ANSWERS_BYTES_MAX: Final = {port.Access.WRITE: 64 * 2**20, port.Access.READ: 32 * 2**20}
"""The space for recorded answers of one database: beyond `_ROWS_BYTES_MAX` they are kept without rows, beyond these
bounds not at all. Readers get less, so that they cannot use up the space of writers."""
_REPLAYED: Final = (("idempotency-replayed", "true"),)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a transaction: the whole body, and a function that makes a smaller one to keep."""

    body: bytes
    without_rows: Callable[[], bytes]


def read_idempotency_key(exchange: Exchange) -> str | None:
    """Return the key of the request, or None. Raises malformed_request for a key that cannot be used."""
    header = exchange.headers.get(b"idempotency-key")
    if header is None:
        return None
    if not 1 <= len(header) <= KEY_LENGTH_MAX or not header.isascii() or not header.decode("ascii").isprintable():
        raise ServiceError(
            "malformed_request", f"an Idempotency-Key has 1 to {KEY_LENGTH_MAX} printable ASCII characters"
        )
    return header.decode("ascii")


async def run_once(
    engine: port.Engine,
    exchange: Exchange,
    target: port.Target,
    key: str,
    run: Callable[[port.Keep], Awaitable[object]],
    make: Callable[[port.TransactionResult], Answer],
) -> None:
    """Run the request unless it was run before. Either way the recorded answer is sent."""
    route = exchange.path
    request = hashlib.sha256(exchange.body).hexdigest()
    async with engine.hold_in(target.database, port.Lock.IDEMPOTENCY, f"{route}/{key}") as free:
        kept = await engine.find_kept(target.database, route, key)
        # The holder of the key may have answered already, and be about to release it.
        if await _replay(engine, exchange, kept, request):
            return
        if not free:
            raise ServiceError("idempotency_in_progress", "a request with this Idempotency-Key is still running")
        if kept.bytes > _ANSWERS_BYTES_MAX[target.access]:
            raise ServiceError(
                "answers_full",
                "this database keeps so many answers for Idempotency-Keys that no more can be kept; nothing was run",
                hint="Answers are kept for 24 hours. Send the request without an Idempotency-Key, or later.",
            )
        bytes_max = KEPT_BYTES_MAX if kept.bytes <= _ROWS_BYTES_MAX else 0
        made: list[Answer] = []

        def record(done: port.TransactionResult) -> bytes:
            made.append(make(done))
            return made[-1].body if len(made[-1].body) <= bytes_max else made[-1].without_rows()

        try:
            await run(port.Keep(route, key, request, record))
        except port.Superseded:
            # Another worker finished the same request between the look and the commit.
            if not await _replay(engine, exchange, await engine.find_kept(target.database, route, key), request):
                raise
        else:
            await tell_newest(exchange, engine)
            exchange.respond(200, made[-1].body)


async def run_alone(
    engine: port.Engine, target: port.Target, statement: port.Statement, bounds: port.Bounds, keep: port.Keep
) -> None:
    """Run one statement as a transaction, which records the answer together with its changes."""
    try:
        await engine.transaction(target, [statement], bounds, promise=port.Promise(keep=keep))
    except port.StatementFailed as failure:
        failure.statement = None
        if failure.sqlstate == "25001" and failure.context is None:
            message = f"an Idempotency-Key cannot be used here: {failure.message}"
            raise ServiceError("malformed_request", message, sqlstate="25001") from failure
        raise


async def _replay(engine: port.Engine, exchange: Exchange, kept: port.KeptAnswers, request: str) -> bool:
    """Send the recorded answer, if there is one; return whether there was."""
    if kept.found is None:
        return False
    if kept.found.request != request:
        raise ServiceError("idempotency_mismatch", "this Idempotency-Key was used with another body; nothing was run")
    await tell_newest(exchange, engine)
    exchange.respond(200, kept.found.body, _REPLAYED)
    return True
