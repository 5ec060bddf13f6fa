"""`POST /v1/transaction`: statements in, all of them or none applied; `GET /v1/transaction/{id}`: what became of it."""

import secrets
from collections.abc import Awaitable
from dataclasses import dataclass

import msgspec

from querygate.access.transaction_ids import NONCE_BYTES, Kind, TransactionId, make, read
from querygate.data_plane.answers import timings
from querygate.data_plane.failures import to_service_error
from querygate.data_plane.identity import Identity, IdentityCache
from querygate.data_plane.requests import check_content_type, read_json, refuse_headers
from querygate.engine import port
from querygate.http.answers import respond_error
from querygate.http.exchange import Exchange
from querygate.protocol.errors import ServiceError
from querygate.protocol.messages import StatementItem, TransactionRequest
from querygate.protocol.statements import keyword_of_one

_decode = msgspec.json.Decoder(TransactionRequest).decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class TransactionBounds:
    timeout_ms: int
    statements_max: int
    answer_bytes_max: int


class TransactionRoutes:
    """`secret` signs the ids."""

    def __init__(
        self, engine: port.Engine, identities: IdentityCache, bounds: TransactionBounds, secret: bytes
    ) -> None:
        self._engine = engine
        self._identities = identities
        self._bounds = bounds
        self._secret = secret

    def run(self, exchange: Exchange, identity: Identity) -> Awaitable[None]:
        check_content_type(exchange, "application/json")
        refuse_headers(exchange)
        return self._answer(exchange, identity, read_json(_decode, exchange.read_body()))

    async def _answer(self, exchange: Exchange, identity: Identity, request: TransactionRequest) -> None:
        statements = self._statements(request)
        target = await self._identities.target(identity, exchange)
        limit_ms = self._bounds.timeout_ms
        bounds = port.Bounds(
            limit_ms if request.timeout_ms is None else min(request.timeout_ms, limit_ms),
            None,
            self._bounds.answer_bytes_max,
        )
        shape = port.Shape(request.row_mode, request.big_numbers)
        try:
            done = await self._engine.transaction(target, statements, shape, bounds, read_only=request.read_only)
        except port.EngineFailure as failure:
            self._respond_failure(exchange, target, failure)
            return
        kind = TransactionId(Kind.READ_ONLY) if done.number is None else TransactionId(Kind.NUMBERED, done.number)
        body = (
            b'{"success":true,"transaction_id":"%b","results":[%b],"affected_rows":%d,"attempts":%d,"commit":"%b",%b}'
            % (
                self._id(kind, target),
                b",".join(map(_result, done.results)),
                sum(result.affected_rows for result in done.results),
                done.attempts,
                done.commit.value.encode(),
                timings(exchange, done.exec_us),
            )
        )
        exchange.respond(200, body)

    def _statements(self, request: TransactionRequest) -> list[port.Statement]:
        count, most = len(request.statements), self._bounds.statements_max
        if not 1 <= count <= most:
            raise ServiceError("malformed_request", f"a transaction has 1 to {most} statements, not {count}")
        statements = []
        for index, item in enumerate(request.statements):
            sql, params = (item.sql, item.params) if isinstance(item, StatementItem) else (item, None)
            try:
                statements.append(port.Statement(sql, keyword_of_one(sql), params))
            except ServiceError as exc:
                raise exc.at_statement(index) from exc
        return statements

    def _respond_failure(self, exchange: Exchange, target: port.Target, failure: port.EngineFailure) -> None:
        error = to_service_error(failure)
        if error.status != 200:
            if failure.number is not None:
                hint = (
                    f"Ask GET /v1/transaction/{self._id(TransactionId(Kind.NUMBERED, failure.number), target).decode()}"
                )
                error = error.with_hint(hint)
            respond_error(exchange, error)
            return
        assert isinstance(failure, port.StatementFailed)
        body = (
            b'{"success":false,"transaction_id":"%b","results":[],"affected_rows":0,"attempts":%d,%b,"error":%b,'
            b'"request_id":"%b"}'
            % (
                self._id(TransactionId(Kind.ABORTED), target),
                failure.attempts,
                timings(exchange, failure.exec_us),
                _encode(error.body),
                exchange.request_id.encode(),
            )
        )
        exchange.respond(200, body)

    def _id(self, id: TransactionId, target: port.Target) -> bytes:
        return make(id, target.database, self._secret, secrets.token_bytes(NONCE_BYTES)).encode()

    async def state(self, exchange: Exchange, identity: Identity) -> None:
        target = await self._identities.target(identity, exchange)
        text = exchange.path_values["id"]
        id = read(text, target.database, self._secret)
        outcome = None if id is None else await self._outcome(id, target)
        if outcome is None:
            raise ServiceError("not_found", "this database has no transaction with that id")
        body = {"success": True, "transaction_id": text, "state": outcome.value}
        exchange.respond(200, _encode(body))

    async def _outcome(self, id: TransactionId, target: port.Target) -> port.Outcome | None:
        if id.kind is Kind.READ_ONLY:
            return port.Outcome.COMMITTED
        if id.kind is Kind.ABORTED:
            return port.Outcome.ABORTED
        try:
            return await self._engine.outcome(target, id.number)
        except port.EngineFailure as failure:
            raise to_service_error(failure) from failure


def _result(result: port.Result) -> bytes:
    return b'{"columns":%b,"types":%b,"rows":%b,"affected_rows":%d%b}' % (
        result.columns,
        result.types,
        result.rows,
        result.affected_rows,
        b',"truncated":true' if result.truncated else b"",
    )
