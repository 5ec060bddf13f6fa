"""`Idempotency-Key`: requests with the same key and body run once; a repeat gets the first answer.

The transaction itself records its answer, so there is never one without the other. While the first request runs, a lock
that ends with the worker holds its key. Failures are not recorded, so the client may try again.

A worker can die when its transaction is decided and not committed yet. So before a repeat runs, and again before the
client hears that it failed, the engine is asked whether an earlier transaction with the key is recorded or undecided.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from tuplegate.data_plane.consistency import tell_newest
from tuplegate.data_plane.large_answers import respond_whole
from tuplegate.engine import port
from tuplegate.http.exchange import Exchange
from tuplegate.protocol.errors import ServiceError

KEY_LENGTH_MAX: Final = 255
KEPT_BYTES_MAX: Final = 2**20
_ROWS_BYTES_MAX: Final = 16 * 2**20
_READERS_ROWS_BYTES_MAX: Final = 4 * 2**20
_ANSWERS_BYTES_MAX: Final = {port.Access.WRITE: 64 * 2**20, port.Access.READ: 8 * 2**20}
"""The space for recorded answers of one database: beyond the first bounds they are kept without rows, beyond these not
at all. All that readers can fill leaves writers half of the space for rows."""
_PAUSES_S: Final = [0.01, 0.05, 0.2, 0.5, 1.0, 1.0]  # mypyc loses a tuple of numbers
"""The pauses between looks at an undecided request. Another worker commits a prepared transaction within two
seconds."""
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
    engine: port.Answers,
    records: port.Records,
    exchange: Exchange,
    target: port.Target,
    key: str,
    run: Callable[[port.Keep], Awaitable[object]],
    make: Callable[[port.TransactionResult], Answer],
) -> None:
    """Run the request unless it was run before. Either way the recorded answer is sent."""
    route = _name_route(exchange, target)
    request = hashlib.sha256(exchange.body).hexdigest()
    whole: bytes | None = None
    async with records.hold_in(target.database, port.Lock.IDEMPOTENCY, f"{route}/{key}") as free:
        # The holder of the key may have answered already, and be about to release it.
        if free:
            kept = await _find_decided(records, target.database, route, key)
        else:
            kept = await records.find_kept(target.database, route, key)
        if await _replay(engine, exchange, kept, request, free=free):
            return
        if kept.bytes > _ANSWERS_BYTES_MAX[target.access]:
            raise ServiceError(
                "answers_full",
                "this database keeps so many answers for Idempotency-Keys that no more can be kept; nothing was run",
                hint="Answers are kept for 24 hours. Send the request without an Idempotency-Key, or later.",
            )
        rows_max = _ROWS_BYTES_MAX if target.access is port.Access.WRITE else _READERS_ROWS_BYTES_MAX
        bytes_max = KEPT_BYTES_MAX if kept.bytes <= rows_max else 0
        made: list[Answer] = []

        def record(done: port.TransactionResult) -> bytes:
            made.append(make(done))
            return made[-1].body if len(made[-1].body) <= bytes_max else made[-1].without_rows()

        try:
            await run(port.Keep(route, key, request, record))
        except (port.StatementFailed, port.Superseded, port.CopyRefused, ServiceError):
            # An earlier request may be the cause: its rows, its locks, its record. Then its answer is the answer.
            if not await _replay(engine, exchange, await _find_decided(records, target.database, route, key), request):
                raise
        else:
            await tell_newest(exchange, engine)
            whole = made[-1].body
    if whole is not None:
        await respond_whole(exchange, engine, target.database, whole)


def _name_route(exchange: Exchange, target: port.Target) -> str:
    """Return the route that a key belongs to, however its path is spelled. A token that may only read has routes of its
    own: it cannot use up a key that a writer is going to send."""
    path = unquote(exchange.path)
    return path if target.access is port.Access.WRITE else f"{path} (read)"


async def run_alone(
    transactions: port.Transactions,
    target: port.Target,
    statement: port.Statement,
    bounds: port.Bounds,
    keep: port.Keep,
) -> None:
    """Run one statement as a transaction, which records the answer together with its changes."""
    try:
        await transactions.transaction(target, [statement], bounds, promise=port.Promise(keep=keep))
    except port.StatementFailed as failure:
        failure.statement = None
        if failure.sqlstate == "25001" and failure.context is None:
            message = f"an Idempotency-Key cannot be used here: {failure.message}"
            raise ServiceError("malformed_request", message, sqlstate="25001") from failure
        raise


async def _find_decided(records: port.Records, database: str, route: str, key: str) -> port.KeptAnswers:
    """Return the record under a key, once it is decided; its present state if that takes too long.

    The transaction of a request that has failed, or whose client has left, is undecided for as long as the engine takes
    to end it.
    """
    for pause_s in _PAUSES_S:
        kept = await records.find_kept(database, route, key)
        if not kept.undecided:
            return kept
        await asyncio.sleep(pause_s)
    return await records.find_kept(database, route, key)


async def _replay(
    engine: port.Answers, exchange: Exchange, kept: port.KeptAnswers, request: str, *, free: bool = True
) -> bool:
    """Send the recorded answer, if there is one; return whether there was. Raises idempotency_in_progress if there may
    be one soon: the key is not `free`, or an earlier transaction is undecided."""
    if kept.found is None:
        if not free or kept.undecided:
            raise ServiceError("idempotency_in_progress", "a request with this Idempotency-Key is still running")
        return False
    if kept.found.request != request:
        raise ServiceError("idempotency_mismatch", "this Idempotency-Key was used with another body; nothing was run")
    await tell_newest(exchange, engine)
    exchange.respond(200, kept.found.body, _REPLAYED)
    return True
