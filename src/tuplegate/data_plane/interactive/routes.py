"""`POST /v1/transaction/begin` and the routes of an open transaction: statements, commit, rollback, and its state."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from tuplegate.access.scopes import Scope
from tuplegate.access.transaction_ids import IdKind, TransactionId, TransactionIds
from tuplegate.admission.identity import Identity, IdentityCache
from tuplegate.data_plane.consistency import tell_newest
from tuplegate.data_plane.engine_errors import to_service_error
from tuplegate.data_plane.interactive.ended import Answer, explain_end
from tuplegate.data_plane.interactive.finding import Finder, describe, replay
from tuplegate.data_plane.interactive.handover import Handover
from tuplegate.data_plane.interactive.held import ANSWER_BYTES_MAX, Beginner, Held, Holdings
from tuplegate.data_plane.large_answers import respond_whole
from tuplegate.data_plane.long_requests import (
    read_long_begin,
    read_long_commit,
    read_long_inner_query,
    wrong_number_of_lists,
)
from tuplegate.data_plane.query import SHAPES, choose_format, write_failure, write_result
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
    FirstItem,
    InnerQueryRequest,
    ParamsList,
    StatementItem,
    StreamFormat,
)
from tuplegate.protocol.pieces import LARGE
from tuplegate.protocol.statements import is_streamed, keyword_of_one
from tuplegate.protocol.time_limits import WorkKind, find_kind

_encode: Final = msgspec.json.Encoder().encode
_decode_begin: Final = msgspec.json.Decoder(BeginRequest).decode
_decode_query: Final = msgspec.json.Decoder(InnerQueryRequest).decode
_decode_commit: Final = msgspec.json.Decoder(CommitRequest).decode
_R = TypeVar("_R")
_UNAVAILABLE: Final = 503


@dataclass(frozen=True, slots=True)
class OpenTransactions:
    """The open transactions of this worker, and the way to those of other workers."""

    holdings: Holdings
    handover: Handover


@dataclass(frozen=True, slots=True)
class OpenBounds:
    """Bounds of open transactions. `idle_ms` and `life_ms` are the defaults; a request may ask for up to `…_max`."""

    statements_max: int
    idle_ms: int
    idle_ms_max: int
    life_ms: int
    life_ms_max: int


class OpenTransactionRoutes:
    """The routes of open transactions. `finder` finds the transaction of a request, `others` handles all other
    transactions."""

    def __init__(
        self,
        opener: port.TransactionOpener,
        records: port.Records,
        identities: IdentityCache,
        held: OpenTransactions,
        streams: StreamWriter,
        bounds: OpenBounds,
        ids: TransactionIds,
        others: TransactionRoutes,
    ) -> None:
        self._opener = opener
        self._identities = identities
        self._holdings = held.holdings
        self._streams = streams
        self._bounds = bounds
        self._ids = ids
        self._own = held.handover.own
        self._finder = Finder(opener, records, identities, held.holdings, held.handover, ids)
        self._others = others

    async def _read_long(
        self,
        exchange: Exchange,
        identity: Identity,
        read: Callable[[bytes, int, int], Awaitable[_R]],
        run: Callable[[Exchange, Identity, _R], Awaitable[None]],
    ) -> None:
        limit_ms = identity.allowance.statement.timeout_ms
        await run(exchange, identity, await read(exchange.body, self._bounds.statements_max, limit_ms))

    # -- begin --------------------------------------------------------------------------------------------------

    def begin(self, exchange: Exchange, identity: Identity) -> Awaitable[None]:
        check_request(exchange, "application/json")
        if len(exchange.body) > LARGE:
            return self._read_long(exchange, identity, read_long_begin, self._begin)
        return self._begin(exchange, identity, read_json(_decode_begin, exchange.body or b"{}", BeginRequest))

    async def _begin(self, exchange: Exchange, identity: Identity, request: BeginRequest) -> None:
        first = None if request.statement is None else _read_statement(request.statement, request)
        lists = request.statement.params_list if isinstance(request.statement, FirstItem) else None
        if first is not None:
            _check_lists(first, lists, self._bounds.statements_max)
        target = await self._identities.find_target(identity, exchange)
        id = self._ids.write(TransactionId(IdKind.OPEN, self._own.number), target.id)
        held = await self._open(exchange, identity, target, id, request)
        if first is None:
            held.end_request(None)
            exchange.respond(201, _encode({"success": True, "transaction_id": id, **describe(held)}))
            return
        bounds = _bound(held, identity.allowance.bounds[find_kind(first.keyword)])
        answer = await self._see_through(held, None, self._run_first(exchange, held, first, lists, bounds))
        await self._respond(exchange, held, answer)

    async def _open(
        self, exchange: Exchange, identity: Identity, target: port.Target, id: str, request: BeginRequest
    ) -> Held:
        """Begin it in the engine. It is busy from the start."""
        bounds = self._bounds
        idle_ms = min(request.idle_timeout_ms or bounds.idle_ms, bounds.idle_ms_max)
        life_ms = min(request.timeout_ms or bounds.life_ms, bounds.life_ms_max)
        give_back = self._holdings.seats.take(identity.principal.organization)
        try:
            wait_ms = min(identity.allowance.statement.timeout_ms, life_ms)
            transaction = await self._opener.begin(target, id, wait_ms, read_only=request.read_only)
        except port.EngineFailure as failure:
            give_back()
            raise to_service_error(failure) from failure
        except BaseException:
            give_back()
            raise
        token = exchange.headers[b"authorization"][7:]
        principal, writes = identity.principal, target.may_write and not request.read_only
        begun_by = Beginner(principal.key, principal.organization, target, token, writes)
        held = Held(id, begun_by, transaction, idle_ms / 1000, life_ms / 1000)
        self._holdings.add(held, give_back)
        held.begin_request(None)
        return held

    async def _run_first(
        self, exchange: Exchange, held: Held, first: port.Statement, lists: ParamsList | None, bounds: port.Bounds
    ) -> Answer:
        """Run the first statement. If it fails, the transaction ends, since nothing was begun that could continue."""
        try:
            result = await held.transaction.query(first, bounds, lists)
        except port.EngineFailure as failure:
            if held.transaction.over is None:
                await held.roll_back()
            error = to_service_error(failure, first)
            exchange.error_code = error.body.code
            more = b',"transaction_id":"%b","state":"aborted"' % held.id.encode()
            if error.status == 200:
                return Answer(200, write_failure(exchange, failure, error, more))
            about = {"transaction_id": held.id, "state": "aborted"}
            return Answer(error.status, error_body(error.body, exchange.request_id, about))
        await tell_newest(exchange, self._opener)
        body = b'{"success":true,"transaction_id":"%b",%b,"result":%b}' % (
            held.id.encode(),
            _encode(describe(held))[1:-1],
            write_result(exchange, result),
        )
        return Answer(201, body)

    # -- statements ---------------------------------------------------------------------------------------------

    def query(self, exchange: Exchange, identity: Identity) -> Awaitable[None]:
        return self._finder.run_where_held(exchange, identity, self._read_query)

    def _read_query(self, exchange: Exchange, identity: Identity) -> Awaitable[None]:
        check_request(exchange, "application/json")
        if len(exchange.body) > LARGE:
            return self._read_long(exchange, identity, read_long_inner_query, self._query)
        return self._query(exchange, identity, read_json(_decode_query, exchange.body, InnerQueryRequest))

    async def _query(self, exchange: Exchange, identity: Identity, request: InnerQueryRequest) -> None:
        accept = exchange.headers.get(b"accept")
        format = None if accept is None or accept == b"*/*" else choose_format(accept.decode("latin-1"))
        if is_streamed(request.sql):
            format = StreamFormat.NDJSON if format is StreamFormat.NDJSON else StreamFormat.SSE
        keyword = keyword_of_one(request.sql, savepoints=True)
        shape = SHAPES[request.row_mode, request.big_numbers]
        statement = port.Statement(request.sql, keyword, request.params, False, shape)
        _check_lists(statement, request.params_list, self._bounds.statements_max)
        if request.export:
            raise ServiceError("malformed_request", "a statement of an open transaction cannot be an export")
        if request.params_list is not None and (format is not None or request.max_rows is not None):
            raise ServiceError("malformed_request", "with `params_list` there is neither a stream nor `max_rows`")
        held = await self._take(exchange, identity, request.sequence)
        if held is None:
            return
        kind = find_kind(keyword, is_streamed=format is not None)
        bounds = _bound(held, identity.allowance.bounds[kind].narrow(request.timeout_ms, request.max_rows))
        if format is not None:
            await self._stream(exchange, format, held, statement, held.transaction.stream(statement, bounds))
            return
        work = self._run(exchange, held, statement, request.params_list, bounds)
        answer = await self._see_through(held, request.sequence, work)
        await self._respond(exchange, held, answer)

    async def _take(
        self, exchange: Exchange, identity: Identity, sequence: int | None, *, commits: bool = False
    ) -> Held | None:
        """Return the transaction, busy with this request; None if the request is answered already."""
        held = await self._finder.find_held(exchange, identity, sequence, commits=commits)
        repeated = None if held is None else held.begin_request(sequence)
        if repeated is not None:
            replay(exchange, repeated)
            return None
        return held

    async def _run(
        self, exchange: Exchange, held: Held, statement: port.Statement, lists: ParamsList | None, bounds: port.Bounds
    ) -> Answer:
        try:
            result = await held.transaction.query(statement, bounds, lists)
        except port.TransactionOver:
            return _answer_over(exchange, held)
        except port.EngineFailure as failure:
            error = to_service_error(failure, statement)
            exchange.error_code = error.body.code
            about = describe(held)
            if error.status == 200:
                return Answer(200, write_failure(exchange, failure, error, b',"transaction":' + _encode(about)))
            return Answer(error.status, error_body(error.body, exchange.request_id, {"transaction": about}))
        await tell_newest(exchange, self._opener)
        return Answer(200, write_result(exchange, result, b',"transaction":' + _encode(describe(held))))

    async def _stream(
        self,
        exchange: Exchange,
        format: StreamFormat,
        held: Held,
        statement: port.Statement,
        opening: AbstractAsyncContextManager[port.RowStream],
    ) -> None:
        held.end_stream = partial(self._streams.end, exchange)
        failed: Answer | None = None
        try:
            await self._streams.write(exchange, format, statement, opening, lambda: {"transaction": describe(held)})
        except port.TransactionOver:
            failed = _answer_over(exchange, held)
        except ServiceError as error:
            if exchange.answered:
                raise
            exchange.error_code = error.body.code
            failed = Answer(error.status, error_body(error.body, exchange.request_id, {"transaction": describe(held)}))
        finally:
            held.end_stream = None
            self._finish(held, failed)
        if failed is not None:
            exchange.respond(failed.status, failed.body)

    async def _see_through(self, held: Held, sequence: int | None, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Run the work to its end, and keep its answer. If the client leaves, its statement continues only if the
        client can ask for the answer again."""
        future = see_through(self._finish_with(held, work), _ignore)
        try:
            return await future
        except asyncio.CancelledError:
            if sequence is None:
                held.transaction.cancel()
            raise

    async def _respond(self, exchange: Exchange, held: Held, answer: Answer) -> None:
        await respond_whole(exchange, self._opener, held.begun_by.engine_name, answer.body, answer.status)

    async def _finish_with(self, held: Held, work: Coroutine[Any, Any, Answer]) -> Answer:
        answer: Answer | None = None
        try:
            answer = await work
        finally:
            self._finish(held, answer)
        return answer

    def _finish(self, held: Held, answer: Answer | None) -> None:
        """Keep the answer, unless it is too large, or tells the client to repeat the request although the transaction
        is over: a repetition is then answered with the transaction's outcome."""
        if answer is not None:
            is_vain = answer.status == _UNAVAILABLE and held.transaction.over is not None
            answer = None if is_vain or len(answer.body) > ANSWER_BYTES_MAX else answer
        held.end_request(answer)
        self._holdings.keep_answer(held)

    # -- ends ---------------------------------------------------------------------------------------------------

    def commit(self, exchange: Exchange, identity: Identity) -> Awaitable[None]:
        return self._finder.run_where_held(exchange, identity, self._read_commit)

    def _read_commit(self, exchange: Exchange, identity: Identity) -> Awaitable[None]:
        check_request(exchange, "application/json")
        if len(exchange.body) > LARGE:
            return self._read_long(exchange, identity, read_long_commit, self._commit)
        return self._commit(exchange, identity, read_json(_decode_commit, exchange.body or b"{}", CommitRequest))

    async def _commit(self, exchange: Exchange, identity: Identity, request: CommitRequest) -> None:
        last = None if request.statement is None else _read_statement(request.statement, request)
        held = await self._take(exchange, identity, request.sequence, commits=True)
        if held is None:
            return
        kind = WorkKind.STATEMENT if last is None else find_kind(last.keyword)
        bounds = _bound(held, identity.allowance.bounds[kind].narrow(request.timeout_ms, None))
        work = self._run_commit(exchange, held, last, bounds)
        # What was decided is carried out, whether anybody waits for it or not.
        answer = await self._see_through(held, request.sequence or 1, work)
        await self._respond(exchange, held, answer)

    async def _run_commit(
        self, exchange: Exchange, held: Held, last: port.Statement | None, bounds: port.Bounds
    ) -> Answer:
        try:
            done = await held.transaction.commit(last, bounds)
        except port.TransactionOver:
            return _answer_over(exchange, held)
        except port.EngineFailure as failure:
            error = to_service_error(failure, last)
            if isinstance(failure, port.OutcomeUnknown):
                error = error.with_hint(f"Ask GET /v1/transaction/{held.id}")
            exchange.error_code = error.body.code
            exchange.failed = True
            about: dict[str, object] = {"transaction_id": held.id, **describe(held)}
            if error.status == 200:
                about |= {"results": [], "affected_rows": 0, "attempts": 1}
            return Answer(error.status, error_body(error.body, exchange.request_id, about))
        exchange.row_count = sum(result.row_count for result in done.results)
        await tell_newest(exchange, self._opener)
        return Answer(200, write_committed(exchange, held.id.encode(), done))

    def roll_back(self, exchange: Exchange, identity: Identity) -> Awaitable[None]:
        return self._finder.run_where_held(exchange, identity, self._roll_back)

    async def _roll_back(self, exchange: Exchange, identity: Identity) -> None:
        held = await self._finder.find_held(exchange, identity, None, ends=True)
        if held is None:
            return
        held.begin_request(None)
        answer = await self._see_through(held, 1, _run_rollback(held))
        exchange.respond(answer.status, answer.body)

    async def state(self, exchange: Exchange, identity: Identity) -> None:
        if not await self._finder.tell_state(exchange, identity, abort=False):
            await self._others.state(exchange, identity)

    async def abort(self, exchange: Exchange, identity: Identity) -> None:
        if not await self._finder.tell_state(exchange, identity, abort=True):
            if Scope.WRITE not in identity.scopes:
                raise ServiceError("forbidden", "to abort another transaction needs the scope write")
            await self._others.abort(exchange, identity)


async def _run_rollback(held: Held) -> Answer:
    await held.roll_back()
    return Answer(200, _encode({"success": True, "transaction_id": held.id, "state": "aborted"}))


def _answer_over(exchange: Exchange, held: Held) -> Answer:
    assert held.transaction.over is not None
    error = explain_end(held.id, held.transaction.over)
    exchange.error_code = error.body.code
    return Answer(error.status, error_body(error.body, exchange.request_id))


def _read_statement(item: str | StatementItem, request: BeginRequest | CommitRequest) -> port.Statement:
    sql, params = (item.sql, item.params) if isinstance(item, StatementItem) else (item, None)
    shape = SHAPES[request.row_mode, request.big_numbers]
    return port.Statement(sql, keyword_of_one(sql, savepoints=True), params, False, shape)


def _bound(held: Held, bounds: port.Bounds) -> port.Bounds:
    """Let a statement take no longer than its transaction may yet stay open."""
    left_ms = int(held.left_s * 1000) + 1
    return bounds if bounds.timeout_ms <= left_ms else port.Bounds(left_ms, bounds.rows_max, bounds.bytes_max)


def _check_lists(statement: port.Statement, lists: ParamsList | None, most: int) -> None:
    if lists is not None and statement.params is not None:
        raise ServiceError("malformed_request", "a statement has `params` or `params_list`, not both")
    if lists is not None and not 1 <= len(lists) <= most:
        raise wrong_number_of_lists(most, str(len(lists)))


def _ignore(_cancelled: bool) -> None:
    pass
