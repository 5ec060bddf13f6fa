"""`POST /v1/transaction/begin` and what follows it: statements, commit, rollback, and the state of it all."""

import asyncio
import secrets
from collections.abc import Awaitable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tuplegate.access.transaction_ids import NONCE_BYTES, IdKind, TransactionId, read_id, write_id
from tuplegate.admission.identity import Identity, IdentityCache
from tuplegate.data_plane.consistency import tell_newest
from tuplegate.data_plane.failures import to_service_error
from tuplegate.data_plane.interactive.handover import Handover, Holder, HolderGone, HolderSilent
from tuplegate.data_plane.interactive.held import ANSWER_BYTES_MAX, Answer, Ended, Held, Holdings, find_repeated
from tuplegate.data_plane.query import choose_format, write_failure, write_result
from tuplegate.data_plane.stream import StreamWriter
from tuplegate.data_plane.transaction import TransactionRoutes, write_committed
from tuplegate.eager import see_through
from tuplegate.engine import port
from tuplegate.http.errors import error_body
from tuplegate.http.exchange import Exchange
from tuplegate.http.requests import check_request, read_json
from tuplegate.protocol.errors import ServiceError
from tuplegate.protocol.messages import (
    BeginRequest,
    CommitRequest,
    InnerQueryRequest,
    StatementItem,
    StreamFormat,
)
from tuplegate.protocol.statements import is_streamed, keyword_of_one

_encode: Final = msgspec.json.Encoder().encode
_decode_begin: Final = msgspec.json.Decoder(BeginRequest).decode
_decode_query: Final = msgspec.json.Decoder(InnerQueryRequest).decode
_decode_commit: Final = msgspec.json.Decoder(CommitRequest).decode
_EXPIRED: Final = (port.EndReason.IDLE, port.EndReason.LIFETIME)


@dataclass(frozen=True, slots=True)
class OpenBounds:
    """`idle_ms` and `life_ms` are what a transaction gets that asks for nothing; it may ask for `…_max`."""

    statement_timeout_ms: int
    answer_bytes_max: int
    idle_ms: int
    idle_ms_max: int
    life_ms: int
    life_ms_max: int


class OpenTransactionRoutes:
    """`secret` signs the ids, which tell who holds a transaction; `handover` reaches that worker.

    `others` knows all other transactions.
    """

    def __init__(
        self,
        engine: port.Engine,
        identities: IdentityCache,
        holdings: Holdings,
        streams: StreamWriter,
        bounds: OpenBounds,
        secret: bytes,
        handover: Handover,
        others: TransactionRoutes,
    ) -> None:
        self._engine = engine
        self._identities = identities
        self._holdings = holdings
        self._streams = streams
        self._bounds = bounds
        self._secret = secret
        self._handover = handover
        self._others = others

    # -- begin --------------------------------------------------------------------------------------------------

    def begin(self, exchange: Exchange, identity: Identity) -> Awaitable[None]:
        check_request(exchange, "application/json")
        return self._begin(exchange, identity, read_json(_decode_begin, exchange.body or b"{}", BeginRequest))

    async def _begin(self, exchange: Exchange, identity: Identity, request: BeginRequest) -> None:
        first = None if request.statement is None else _read_statement(request.statement)
        target = await self._identities.find_target(identity, exchange)
        id = write_id(
            TransactionId(IdKind.OPEN, self._handover.own.number),
            target.id,
            self._secret,
            secrets.token_bytes(NONCE_BYTES),
        )
        held = await self._open(exchange, identity, target, id, request)
        if first is None:
            held.end_request(None)
            exchange.respond(201, _encode({"success": True, "transaction_id": id, **_describe(held)}))
            return
        shape = port.Shape(request.row_mode, request.big_numbers)
        answer = await self._see_through(held, None, self._run_first(exchange, held, first, shape))
        exchange.respond(answer.status, answer.body)

    async def _open(
        self, exchange: Exchange, identity: Identity, target: port.Target, id: str, request: BeginRequest
    ) -> Held:
        """Begin it in the engine. It is busy from the start."""
        bounds = self._bounds
        idle_ms = min(request.idle_timeout_ms or bounds.idle_ms, bounds.idle_ms_max)
        life_ms = min(request.timeout_ms or bounds.life_ms, bounds.life_ms_max)
        give_back = self._holdings.take_place(identity.principal.organization)
        try:
            wait_ms = min(bounds.statement_timeout_ms, life_ms)
            transaction = await self._engine.begin(target, id, wait_ms, read_only=request.read_only)
        except port.EngineFailure as failure:
            give_back()
            raise to_service_error(failure) from failure
        except BaseException:
            give_back()
            raise
        token = exchange.headers[b"authorization"][7:]
        held = Held(id, identity.principal.key, token, transaction, idle_ms / 1000, life_ms / 1000)
        self._holdings.add(held, give_back)
        held.begin_request(None)
        return held

    async def _run_first(self, exchange: Exchange, held: Held, first: port.Statement, shape: port.Shape) -> Answer:
        """Run the first statement. Where it fails there is nothing to go on with, so the transaction ends."""
        try:
            result = await held.transaction.query(first, shape, self._bound(held, None, None))
        except port.EngineFailure as failure:
            if held.transaction.over is None:
                await held.transaction.roll_back()
            error = to_service_error(failure, first)
            exchange.error_code = error.body.code
            more = b',"transaction_id":"%b","state":"aborted"' % held.id.encode()
            if error.status == 200:
                return Answer(200, write_failure(exchange, failure, error, more))
            about = {"transaction_id": held.id, "state": "aborted"}
            return Answer(error.status, error_body(error.body, exchange.request_id, about))
        await tell_newest(exchange, self._engine)
        body = b'{"success":true,"transaction_id":"%b",%b,"result":%b}' % (
            held.id.encode(),
            _encode(_describe(held))[1:-1],
            write_result(exchange, result),
        )
        return Answer(201, body)

    # -- statements ---------------------------------------------------------------------------------------------

    def query(self, exchange: Exchange, identity: Identity) -> Awaitable[None]:
        check_request(exchange, "application/json")
        return self._query(exchange, identity, read_json(_decode_query, exchange.body, InnerQueryRequest))

    async def _query(self, exchange: Exchange, identity: Identity, request: InnerQueryRequest) -> None:
        accept = exchange.headers.get(b"accept")
        format = None if accept is None or accept == b"*/*" else choose_format(accept.decode("latin-1"))
        if is_streamed(request.sql):
            format = StreamFormat.NDJSON if format is StreamFormat.NDJSON else StreamFormat.SSE
        keyword = keyword_of_one(request.sql, savepoints=True)
        statement = port.Statement(request.sql, keyword, request.params)
        held = await self._find_held(exchange, identity, request.sequence)
        if held is None:
            return
        repeated = held.begin_request(request.sequence)
        if repeated is not None:
            _replay(exchange, repeated)
            return
        shape = port.Shape(request.row_mode, request.big_numbers)
        bounds = self._bound(held, request.timeout_ms, request.max_rows)
        if format is not None:
            await self._stream(exchange, format, held, statement, held.transaction.stream(statement, shape, bounds))
            return
        work = self._run(exchange, held, statement, shape, bounds)
        answer = await self._see_through(held, request.sequence, work)
        exchange.respond(answer.status, answer.body)

    def _bound(self, held: Held, timeout_ms: int | None, max_rows: int | None) -> port.Bounds:
        limit_ms = min(self._bounds.statement_timeout_ms, int(held.left_s * 1000) + 1)
        return port.Bounds(min(timeout_ms or limit_ms, limit_ms), max_rows, self._bounds.answer_bytes_max)

    async def _run(
        self, exchange: Exchange, held: Held, statement: port.Statement, shape: port.Shape, bounds: port.Bounds
    ) -> Answer:
        try:
            result = await held.transaction.query(statement, shape, bounds)
        except port.TransactionOver:
            return self._answer_over(exchange, held)
        except port.EngineFailure as failure:
            error = to_service_error(failure, statement)
            exchange.error_code = error.body.code
            about = _describe(held)
            if error.status == 200:
                return Answer(200, write_failure(exchange, failure, error, b',"transaction":' + _encode(about)))
            return Answer(error.status, error_body(error.body, exchange.request_id, {"transaction": about}))
        await tell_newest(exchange, self._engine)
        return Answer(200, write_result(exchange, result, b',"transaction":' + _encode(_describe(held))))

    async def _stream(
        self,
        exchange: Exchange,
        format: StreamFormat,
        held: Held,
        statement: port.Statement,
        opening: AbstractAsyncContextManager[port.RowStream],
    ) -> None:
        try:
            await self._streams.write(exchange, format, statement, opening, lambda: {"transaction": _describe(held)})
        except port.TransactionOver as over:
            raise self._explain_over(held) from over
        finally:
            self._finish(held, None)

    async def _see_through(self, held: Held, sequence: int | None, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Run the work to its end, and keep its answer. Where the client leaves, its statement goes on only if the
        client can ask for the answer again."""
        future = see_through(self._finish_with(held, work), _ignore)
        try:
            return await future
        except asyncio.CancelledError:
            if sequence is None:
                held.transaction.cancel()
            raise

    async def _finish_with(self, held: Held, work: Coroutine[Any, Any, Answer]) -> Answer:
        answer: Answer | None = None
        try:
            answer = await work
        finally:
            self._finish(held, answer)
        return answer

    def _finish(self, held: Held, answer: Answer | None) -> None:
        held.end_request(answer if answer is not None and len(answer.body) <= ANSWER_BYTES_MAX else None)
        self._holdings.keep_answer(held)

    # -- ends ---------------------------------------------------------------------------------------------------

    def commit(self, exchange: Exchange, identity: Identity) -> Awaitable[None]:
        check_request(exchange, "application/json")
        return self._commit(exchange, identity, read_json(_decode_commit, exchange.body or b"{}", CommitRequest))

    async def _commit(self, exchange: Exchange, identity: Identity, request: CommitRequest) -> None:
        last = None if request.statement is None else _read_statement(request.statement)
        held = await self._find_held(exchange, identity, request.sequence, commits=True)
        if held is None:
            return
        repeated = held.begin_request(request.sequence)
        if repeated is not None:
            _replay(exchange, repeated)
            return
        shape = port.Shape(request.row_mode, request.big_numbers)
        work = self._run_commit(exchange, held, last, shape, self._bound(held, request.timeout_ms, None))
        # What was decided is carried out, whether anybody waits for it or not.
        answer = await self._see_through(held, request.sequence or 1, work)
        exchange.respond(answer.status, answer.body)

    async def _run_commit(
        self, exchange: Exchange, held: Held, last: port.Statement | None, shape: port.Shape, bounds: port.Bounds
    ) -> Answer:
        try:
            done = await held.transaction.commit(last, shape, bounds)
        except port.TransactionOver:
            return self._answer_over(exchange, held)
        except port.EngineFailure as failure:
            error = to_service_error(failure, last)
            if isinstance(failure, port.OutcomeUnknown):
                error = error.with_hint(f"Ask GET /v1/transaction/{held.id}")
            exchange.error_code = error.body.code
            exchange.failed = True
            about: dict[str, object] = {"transaction_id": held.id}
            if error.status == 200:
                about |= {"results": [], "affected_rows": 0, "attempts": 1, **_describe(held)}
            return Answer(error.status, error_body(error.body, exchange.request_id, about))
        exchange.row_count = sum(result.row_count for result in done.results)
        await tell_newest(exchange, self._engine)
        return Answer(200, write_committed(exchange, held.id.encode(), done))

    async def roll_back(self, exchange: Exchange, identity: Identity) -> None:
        held = await self._find_held(exchange, identity, None, ends=True)
        if held is None:
            return
        held.begin_request(None)
        await self._see_through(held, 1, self._run_rollback(held))
        exchange.respond(200, _encode({"success": True, "transaction_id": held.id, "state": "aborted"}))

    async def _run_rollback(self, held: Held) -> Answer:
        try:
            await held.transaction.roll_back()
        except port.TransactionOver:
            pass
        return Answer(200, b"")

    # -- states -------------------------------------------------------------------------------------------------

    async def state(self, exchange: Exchange, identity: Identity) -> None:
        if not await self._tell_state(exchange, identity, abort=False):
            await self._others.state(exchange, identity)

    async def abort(self, exchange: Exchange, identity: Identity) -> None:
        if not await self._tell_state(exchange, identity, abort=True):
            await self._others.abort(exchange, identity)

    async def _tell_state(self, exchange: Exchange, identity: Identity, *, abort: bool) -> bool:
        """Answer with the state of an open transaction, which is aborted before if it can be. Return False for the id
        of another one."""
        target = await self._identities.find_target(identity, exchange)
        id = exchange.path_values["id"]
        read = read_id(id, target.id, self._secret)
        if read is None or read.kind is not IdKind.OPEN:
            return False
        if await self._handed_over(exchange, read):
            return True
        held = self._holdings.open.get(id)
        if held is not None and held.key != identity.principal.key:
            raise _not_found()
        if held is not None:
            if abort:
                held.transaction.abort(port.EndReason.ROLLBACK)
                await held.over.wait()
            else:
                exchange.respond(200, _encode({"success": True, "transaction_id": id, **_describe(held)}))
                return True
        ended = self._find_ended(id, identity)
        if ended is None:
            outcome = await self._settle(target, id)
            about = {"state": outcome.value}
            if outcome is port.Outcome.ABORTED:
                about["reason"] = port.EndReason.LOST.value
        else:
            about = _describe_ended(ended.outcome)
        await tell_newest(exchange, self._engine)
        exchange.respond(200, _encode({"success": True, "transaction_id": id, **about}))
        return True

    def _find_ended(self, id: str, identity: Identity) -> Ended | None:
        ended = self._holdings.ended.get(id)
        if ended is not None and ended.key != identity.principal.key:
            raise _not_found()
        return None if ended is None or ended.outcome is port.Outcome.IN_PROGRESS else ended

    async def _settle(self, target: port.Target, id: str) -> port.Outcome:
        """Return the outcome of one that nobody holds: what is not committed never will be."""
        try:
            return await self._engine.abort_id(target.database, id)
        except port.EngineFailure as failure:
            raise to_service_error(failure) from failure

    async def _find_held(
        self, exchange: Exchange, identity: Identity, sequence: int | None, *, commits: bool = False, ends: bool = False
    ) -> Held | None:
        """Return the transaction that the request is about; None where it is over and the request is answered.

        A commit, or a rollback, of one that is over is answered with what became of it.
        """
        target = await self._identities.find_target(identity, exchange)
        id = exchange.path_values["id"]
        read = read_id(id, target.id, self._secret)
        if read is None or read.kind is not IdKind.OPEN:
            raise _not_found()
        if await self._handed_over(exchange, read):
            return None
        held = self._holdings.open.get(id)
        if held is not None and held.key != identity.principal.key:
            raise _not_found()
        if held is not None:
            return held
        ended = self._find_ended(id, identity)
        if ended is not None:
            repeated = None
            if sequence is not None and sequence <= ended.sequence:
                repeated = find_repeated(sequence, ended.sequence, ended.answer)
            elif commits and ended.outcome is port.Outcome.COMMITTED:
                repeated = ended.answer
            if repeated is not None:
                _replay(exchange, repeated)
                return None
        outcome = ended.outcome if ended is not None else await self._settle(target, id)
        self._answer_ended(exchange, id, outcome, commits=commits, ends=ends)
        return None

    def _answer_ended(
        self, exchange: Exchange, id: str, outcome: port.EndReason | port.Outcome, *, commits: bool, ends: bool
    ) -> None:
        if commits and outcome is port.Outcome.COMMITTED:
            # Its answer is not here any more, but that it was committed is recorded.
            done = port.TransactionResult([], port.Commit.TWO_PHASE, None, 1, 0, [])
            exchange.respond(200, write_committed(exchange, id.encode(), done))
        elif ends and outcome not in (port.Outcome.COMMITTED, port.Outcome.IN_PROGRESS):
            exchange.respond(200, _encode({"success": True, "transaction_id": id, "state": "aborted"}))
        else:
            raise _explain_end(id, outcome)

    def _answer_over(self, exchange: Exchange, held: Held) -> Answer:
        error = self._explain_over(held)
        exchange.error_code = error.body.code
        return Answer(error.status, error_body(error.body, exchange.request_id))

    def _explain_over(self, held: Held) -> ServiceError:
        assert held.transaction.over is not None
        return _explain_end(held.id, held.transaction.over)

    async def _handed_over(self, exchange: Exchange, id: TransactionId) -> bool:
        """Return whether another worker holds the transaction, and has answered. One that is gone holds nothing."""
        handover, holder = self._handover, Holder.read(id.number)
        if holder == handover.own:
            return False
        if holder.node != handover.own.node and handover.vouches(exchange):
            raise ServiceError(
                "engine_unavailable",
                "the transaction is held by another machine than the one that was asked for it",
                hint="Does the setting node_url of each machine lead to that machine?",
            )
        try:
            await handover.pass_on(exchange, holder)
        except HolderGone:
            return False
        except HolderSilent as silent:
            state = await handover.ask_state(exchange, holder)
            if state in ("aborted", "committed"):
                return False
            raise ServiceError(
                "outcome_unknown" if state else "engine_unavailable",
                "the worker that holds the transaction has not answered",
                hint="Send the request again with its `sequence`." if state else None,
            ) from silent
        exchange.usage = None  # the holder has counted it
        return True


def _explain_end(id: str, outcome: port.EndReason | port.Outcome) -> ServiceError:
    if outcome in _EXPIRED:
        what = "waited too long for its next request" if outcome is port.EndReason.IDLE else "was open for too long"
        return ServiceError("transaction_expired", f"{id} {what}, and was rolled back")
    if outcome is port.Outcome.COMMITTED:
        return ServiceError("wrong_state", f"{id} is committed")
    if outcome is port.Outcome.IN_PROGRESS:
        return ServiceError("transaction_in_use", f"what becomes of {id} is being found out")
    reason = port.EndReason.LOST if outcome is port.Outcome.ABORTED else outcome
    return ServiceError("transaction_aborted", f"{id} was rolled back (reason: {reason.value}); nothing was applied")


def _describe(held: Held) -> dict[str, str]:
    """Return the fields that tell the state of a transaction."""
    over = held.transaction.over
    if over is not None:
        return _describe_ended(over)
    return {"state": "failed" if held.transaction.is_failed else "open", "expires_at": held.expires_at}


def _describe_ended(outcome: port.EndReason | port.Outcome) -> dict[str, str]:
    if isinstance(outcome, port.Outcome):
        return {"state": outcome.value}
    return {"state": port.Outcome.ABORTED.value, "reason": outcome.value}


def _read_statement(item: str | StatementItem) -> port.Statement:
    sql, params = (item.sql, item.params) if isinstance(item, StatementItem) else (item, None)
    return port.Statement(sql, keyword_of_one(sql, savepoints=True), params)


def _replay(exchange: Exchange, answer: Answer) -> None:
    exchange.extra_headers += b"tuplegate-replayed: true\r\n"
    exchange.respond(answer.status, answer.body)


def _not_found() -> ServiceError:
    return ServiceError("not_found", "this token has begun no transaction with that id")


def _ignore(_cancelled: bool) -> None:
    pass
