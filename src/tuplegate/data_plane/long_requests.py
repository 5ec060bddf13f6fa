"""Reads the parameters of a long request in pieces, so that the event loop is not blocked, up to the most allowed."""

from typing import Any

import msgspec

from tuplegate.direct_future import yield_to_loop
from tuplegate.http.requests import read_json
from tuplegate.protocol.errors import ServiceError
from tuplegate.protocol.messages import (
    PARAMS_MAX,
    LongQueryRequest,
    LongStatementItem,
    LongTransactionRequest,
    QueryOptions,
    QueryRequest,
    StatementItem,
    TransactionOptions,
    TransactionRequest,
)
from tuplegate.protocol.pieces import split_array

_decode_query = msgspec.json.Decoder(LongQueryRequest).decode
_decode_transaction = msgspec.json.Decoder(LongTransactionRequest).decode
_params_decoder: msgspec.json.Decoder[list[msgspec.Raw] | None] = msgspec.json.Decoder(list[msgspec.Raw] | None)


class _Params(msgspec.Struct, frozen=True):
    """Only the parameters, under their name, for the words of an error."""

    params: list[msgspec.Raw] | None


_decode_named = msgspec.json.Decoder(_Params).decode


async def read_long_query(body: bytes) -> QueryRequest:
    long = read_json(_decode_query, body, QueryRequest)
    params = await _read_params(long.params)
    return QueryRequest(long.sql, params, **_options(long, QueryOptions))


async def read_long_transaction(body: bytes) -> TransactionRequest:
    long = read_json(_decode_transaction, body, TransactionRequest)
    statements: list[str | StatementItem] = []
    for index, item in enumerate(long.statements):
        if isinstance(item, LongStatementItem):
            try:
                statements.append(StatementItem(item.sql, await _read_params(item.params)))
            except ServiceError as exc:
                raise exc.at_statement(index) from exc
        else:
            statements.append(item)
    return TransactionRequest(statements, **_options(long, TransactionOptions))


def _options(request: QueryOptions | TransactionOptions, kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {name: getattr(request, name) for name in kind.__struct_fields__}


async def _read_params(raw: msgspec.Raw) -> list[msgspec.Raw] | None:
    text = bytes(raw)
    if text[:1] != b"[":  # null, or something else, which is refused with the name of the field
        return read_json(_decode_named, b'{"params":%b}' % text, _Params).params
    if text.count(b",") < PARAMS_MAX:
        return read_json(_params_decoder.decode, text, _Params)
    params: list[msgspec.Raw] = []
    for piece in split_array(text, b"[]", b",", 1):
        if piece is not None:
            part, before, behind = piece
            more = read_json(_params_decoder.decode, b"[" * before + part + b"]" * behind, _Params)
            params += more or []
            if len(params) > PARAMS_MAX:
                message = f"more than {PARAMS_MAX} parameters were sent, which is the most that can be"
                raise ServiceError("parameter_mismatch", message, sqlstate="54000")
        await yield_to_loop()
    return params
