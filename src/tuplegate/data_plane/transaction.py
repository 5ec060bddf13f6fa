"""`POST /v1/transaction`: applies all statements or none. Also finds, or settles, the outcome of a transaction by its
id."""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from tuplegate.access.transaction_ids import IdKind, TransactionId, TransactionIds
from tuplegate.admission.identity import Identity, IdentityCache
from tuplegate.data_plane.consistency import read_position, tell_newest, tell_position, tell_server, wants_snapshot
from tuplegate.data_plane.engine_errors import to_service_error
from tuplegate.data_plane.idempotency import Answer, read_idempotency_key, run_once
from tuplegate.data_plane.large_answers import respond_whole
from tuplegate.data_plane.long_requests import read_long_transaction, wrong_number_of_statements
from tuplegate.data_plane.query import SHAPES
from tuplegate.data_plane.timings import write_timings
from tuplegate.direct_future import yield_to_loop
from tuplegate.engine import port
from tuplegate.http.errors import respond_error
from tuplegate.http.exchange import Exchange
from tuplegate.http.requests import check_request, read_json
from tuplegate.protocol.errors import ServiceError
from tuplegate.protocol.messages import StatementItem, TransactionRequest
from tuplegate.protocol.pieces import LARGE
from tuplegate.protocol.statements import keyword_of_one
from tuplegate.protocol.time_limits import WorkKind, find_kind

_decode: Final = msgspec.json.Decoder(TransactionRequest).decode
_encode: Final = msgspec.json.Encoder().encode
_READ_ONLY: Final = TransactionId(IdKind.READ_ONLY)
_ABORTED: Final = TransactionId(IdKind.ABORTED)
_CHOSEN_ID: Final = re.compile(r"txn_[A-Za-z0-9_-]{8,120}")


class _Job:
    """A request, read and checked. `chosen` is the id that the client gave it."""

    def __init__(
        self,
        target: port.Target,
        statements: list[port.Statement],
        bounds: port.Bounds,
        read_only: bool,
        chosen: str | None,
    ) -> None:
        self.target = target
        self.statements = statements
        self.bounds = bounds
        self.read_only = read_only
        self.chosen = chosen

    @property
    def may_be_snapshot(self) -> bool:
        """Return whether it writes nothing, not even a record of its id."""
        return (self.read_only or not self.target.may_write) and self.chosen is None


class TransactionRoutes:
    def __init__(
        self,
        transactions: port.Transactions,
        records: port.Records,
        identities: IdentityCache,
        statements_max: int,
        ids: TransactionIds,
    ) -> None:
        self._transactions = transactions
        self._records = records
        self._identities = identities
        self._statements_max = statements_max
        self._ids = ids

    # -- running ------------------------------------------------------------------------------------------------

    def run(self, exchange: Exchange, identity: Identity) -> Awaitable[None]:
        check_request(exchange, "application/json")
        body = exchange.body
        if len(body) > LARGE:
            return self._answer_long(exchange, identity, body)
        return self._answer(exchange, identity, read_json(_decode, body, TransactionRequest))

    async def _answer_long(self, exchange: Exchange, identity: Identity, body: bytes) -> None:
        limit_ms = identity.allowance.bounds[WorkKind.TRANSACTION].timeout_ms
        await self._answer(exchange, identity, await read_long_transaction(body, self._statements_max, limit_ms))

    async def _answer(self, exchange: Exchange, identity: Identity, request: TransactionRequest) -> None:
        key = read_idempotency_key(exchange)
        target = await self._identities.find_target(identity, exchange)
        statements = await self._read_statements(request)
        bounds = bound_transaction(identity, statements).narrow(request.timeout_ms, None)
        job = _Job(target, statements, bounds, request.read_only, self._read_chosen_id(exchange, target))
        reads = wants_snapshot(exchange, identity, self._transactions)
        if reads and (key is not None or not job.may_be_snapshot):
            reads = False
            tell_server(exchange, on_replica=False)
        try:
            if key is None:
                done = await (self._read_snapshot(exchange, job) if reads else self._run(job, None))
                if done.reached is not None:
                    tell_position(exchange, done.reached)
                else:
                    await tell_newest(exchange, self._transactions)
                body = write_committed(exchange, self._find_id(exchange, job, done), done)
                await respond_whole(exchange, self._transactions, target.database, body)
            else:
                await run_once(
                    self._transactions,
                    self._records,
                    exchange,
                    job.target,
                    key,
                    lambda keep: self._run(job, keep),
                    lambda done: self._make_answer(exchange, job, done),
                )
        except port.Superseded as exc:
            raise ServiceError("transaction_aborted", f"{job.chosen} was aborted; nothing was applied") from exc
        except port.EngineFailure as failure:
            if reads:
                tell_server(exchange, on_replica=failure.on_replica)
            if isinstance(failure, port.StatementFailed):
                await tell_newest(exchange, self._transactions)
            self._respond_failure(exchange, job, failure)

    async def _read_snapshot(self, exchange: Exchange, job: _Job) -> port.TransactionResult:
        """Read from a snapshot that is no older than the client's position."""
        done = await self._transactions.snapshots.transaction(
            job.target, job.statements, job.bounds, read_position(exchange)
        )
        tell_server(exchange, on_replica=done.on_replica)
        return done

    async def _read_statements(self, request: TransactionRequest) -> list[port.Statement]:
        count, most = len(request.statements), self._statements_max
        if not 1 <= count <= most:
            raise wrong_number_of_statements(most, str(count))
        shape = SHAPES[request.row_mode, request.big_numbers]
        statements = []
        length = 0
        for index, item in enumerate(request.statements):
            sql, params = (item.sql, item.params) if isinstance(item, StatementItem) else (item, None)
            length += len(sql)
            if length > LARGE:  # skipping the comments before a statement takes long
                length = 0
                await yield_to_loop()
            try:
                statements.append(port.Statement(sql, keyword_of_one(sql), params, False, shape))
            except ServiceError as exc:
                raise exc.at_statement(index) from exc
        return statements

    def _read_chosen_id(self, exchange: Exchange, target: port.Target) -> str | None:
        header = exchange.headers.get(b"tuplegate-transaction-id")
        if header is None:
            return None
        id = header.decode("latin-1")
        if _CHOSEN_ID.fullmatch(id) is None:
            takes = "txn_ and 8 to 120 letters, digits, underscores or hyphens"
            raise ServiceError("malformed_request", f"a Tuplegate-Transaction-Id is {takes}")
        if self._ids.read(id, target.id) is not None:
            raise _used(id)
        return id

    def _run(self, job: _Job, keep: port.Keep | None) -> Awaitable[port.TransactionResult]:
        if job.chosen is not None:
            return self._run_as(job.chosen, job, keep)
        return self._begin(job, None if keep is None else port.Promise(None, keep))

    async def _run_as(self, id: str, job: _Job, keep: port.Keep | None) -> port.TransactionResult:
        """Run under the id that the client chose. No other request can use it, and it is in progress meanwhile."""
        database = job.target.database
        async with self._records.hold_in(database, port.Lock.TRANSACTION, id) as free:
            if not free or not await self._records.begin_id(database, id):
                raise _used(id)
            try:
                return await self._begin(job, port.Promise(id, keep))
            except (port.StatementFailed, port.EngineUnavailable, port.EngineBusy, port.CopyRefused):
                await self._records.abort_id(database, id)
                raise

    def _begin(self, job: _Job, promise: port.Promise | None) -> Awaitable[port.TransactionResult]:
        return self._transactions.transaction(
            job.target, job.statements, job.bounds, read_only=job.read_only, promise=promise
        )

    # -- answers ------------------------------------------------------------------------------------------------

    def _make_answer(self, exchange: Exchange, job: _Job, done: port.TransactionResult) -> Answer:
        id = self._find_id(exchange, job, done)
        return Answer(write_committed(exchange, id, done), lambda: write_committed(exchange, id, done, with_rows=False))

    def _find_id(self, exchange: Exchange, job: _Job, done: port.TransactionResult) -> bytes:
        """Return the id of a committed transaction, and count its rows."""
        exchange.row_count = sum([result.row_count for result in done.results])
        if job.chosen is not None:
            return job.chosen.encode()
        if done.number is None:
            return self._ids.write(_READ_ONLY, job.target.id).encode()
        id = TransactionId(IdKind.NUMBERED, done.number, "", done.mark, done.history)
        return self._ids.write(id, job.target.id).encode()

    def _respond_failure(self, exchange: Exchange, job: _Job, failure: port.EngineFailure) -> None:
        error = to_service_error(failure, _find_failed(job, failure))
        if isinstance(failure, port.OutcomeUnknown):
            known = job.chosen or self.find_lost_id(failure, job.target)
            if known is None:
                respond_error(exchange, error)
            else:
                error = error.with_hint(f"Ask GET /v1/transaction/{known}")
                respond_error(exchange, error, {"transaction_id": known})
            return
        id = job.chosen or self._ids.write(_ABORTED, job.target.id)
        if error.status != 200:
            respond_error(exchange, error, {"transaction_id": id})
            return
        exchange.failed = True
        exchange.error_code = error.body.code
        assert isinstance(failure, port.StatementFailed)
        body = (
            b'{"success":false,"transaction_id":"%b","results":[],"affected_rows":0,"attempts":%d,%b,"error":%b,'
            b'"request_id":"%b"}'
            % (
                id.encode(),
                failure.attempts,
                write_timings(exchange, failure.exec_us),
                _encode(error.body),
                exchange.request_id.encode(),
            )
        )
        exchange.respond(200, body)

    def find_lost_id(self, failure: port.OutcomeUnknown, target: port.Target) -> str | None:
        """Return the id by which the outcome can be asked for later; None if there is none."""
        ticket = failure.ticket
        if failure.id is not None or ticket is None:
            return failure.id
        kind = IdKind.LOST if ticket.word else IdKind.NUMBERED
        lost = TransactionId(kind, ticket.number, ticket.word, failure.mark, ticket.history)
        return self._ids.write(lost, target.id)

    # -- outcomes -----------------------------------------------------------------------------------------------

    def state(self, exchange: Exchange, identity: Identity) -> Awaitable[None]:
        return self._respond_outcome(exchange, identity, self._records.find_id)

    def abort(self, exchange: Exchange, identity: Identity) -> Awaitable[None]:
        return self._respond_outcome(exchange, identity, self._records.abort_id)

    async def _respond_outcome(
        self,
        exchange: Exchange,
        identity: Identity,
        of_chosen: Callable[[str, str], Awaitable[port.Outcome | None]],
    ) -> None:
        """Respond with the outcome. `of_chosen` finds, or settles, that of an id that a client chose; the service's own
        ids contain theirs."""
        target = await self._identities.find_target(identity, exchange)
        text = exchange.path_values["id"]
        id = self._ids.read(text, target.id)
        if id is None and _CHOSEN_ID.fullmatch(text) is None:
            raise ServiceError("not_found", "this is not the id of a transaction")
        try:
            outcome = await (of_chosen(target.database, text) if id is None else self._find_own_outcome(id, target))
        except port.EngineFailure as failure:
            raise to_service_error(failure) from failure
        if outcome is None:
            raise ServiceError(
                "not_found", "this database has seen no transaction with that id, or does not remember it"
            )
        await tell_newest(exchange, self._transactions)
        exchange.respond(200, _encode({"success": True, "transaction_id": text, "state": outcome.value}))

    async def _find_own_outcome(self, id: TransactionId, target: port.Target) -> port.Outcome | None:
        """Return the outcome of an id of the service's own, from the id itself or from the engine."""
        if id.kind is IdKind.NUMBERED:
            return await self._transactions.outcome(target, id.number, id.mark, id.history)
        if id.kind is IdKind.LOST:
            return await self._transactions.outcome_of_lost(
                target, port.Ticket(id.number, id.word, id.history), id.mark
            )
        return port.Outcome.COMMITTED if id.kind is IdKind.READ_ONLY else port.Outcome.ABORTED


def bound_transaction(identity: Identity, statements: Sequence[port.Statement]) -> port.Bounds:
    """Return the bounds of a transaction that asks for none. One that changes definitions has the time of those."""
    changes = any(find_kind(statement.keyword) is WorkKind.DEFINITION for statement in statements)
    return identity.allowance.bounds[WorkKind.DEFINITION if changes else WorkKind.TRANSACTION]


def _find_failed(job: _Job, failure: port.EngineFailure) -> port.Statement | None:
    """Return the statement that failed, if one did."""
    index = failure.statement if isinstance(failure, port.StatementFailed) else None
    return None if index is None else job.statements[index]


def _used(id: str) -> ServiceError:
    return ServiceError("transaction_id_used", f"{id} was used before", hint=f"Ask GET /v1/transaction/{id}")


def write_committed(exchange: Exchange, id: bytes, done: port.TransactionResult, *, with_rows: bool = True) -> bytes:
    """Return the body of the answer to a transaction that was committed."""
    results = [_write_result(result, result.rows if with_rows else b"[]") for result in done.results]
    return (
        b'{"success":true,"transaction_id":"%b","results":[%b],"affected_rows":%d,"attempts":%d,"commit":"%b",%b}'
        % (
            id,
            b",".join(results),
            sum([result.affected_rows for result in done.results]),
            done.attempts,
            done.commit.encode(),
            write_timings(exchange, done.exec_us),
        )
    )


def _write_result(result: port.Result, rows: bytes) -> bytes:
    truncated = result.truncated or rows is not result.rows
    return b'{"columns":%b,"types":%b,"rows":%b,"affected_rows":%d%b}' % (
        result.columns,
        result.types,
        rows,
        result.affected_rows,
        b',"truncated":true' if truncated else b"",
    )
