"""Reads the statements and parameters of a long request in pieces, so that the event loop is not blocked, and only as
many of them as are allowed."""

import asyncio
import re
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

from tuplegate.direct_future import yield_to_loop
from tuplegate.http.requests import read_json
from tuplegate.protocol import messages
from tuplegate.protocol.errors import ServiceError
from tuplegate.protocol.neon import LongSqlQuery, LongSqlRequest, SqlQuery, SqlRequest
from tuplegate.protocol.pieces import LARGE, split_array

_Item = TypeVar("_Item")

_decode_query = msgspec.json.Decoder(messages.LongQueryRequest).decode
_decode_inner_query = msgspec.json.Decoder(messages.LongInnerQueryRequest).decode
_decode_begin = msgspec.json.Decoder(messages.LongBeginRequest).decode
_decode_commit = msgspec.json.Decoder(messages.LongCommitRequest).decode
_decode_transaction = msgspec.json.Decoder(messages.LongTransactionRequest).decode
_decode_sql = msgspec.json.Decoder(LongSqlRequest).decode
_params_decoder: msgspec.json.Decoder[list[msgspec.Raw] | None] = msgspec.json.Decoder(list[msgspec.Raw] | None)


class _Params(msgspec.Struct, frozen=True):
    """Only the parameters, under their name, for the words of an error."""

    params: list[msgspec.Raw] | None


class _Statements(msgspec.Struct, frozen=True):
    """Only the statements, under their name."""

    statements: list[str | messages.LongStatementItem]


class _Lists(msgspec.Struct, frozen=True):
    """Only the lists of parameters, under their name."""

    params_list: messages.ParamsList


class _Queries(msgspec.Struct, frozen=True):
    """Only the queries, under their name."""

    queries: list[LongSqlQuery]


_decode_named = msgspec.json.Decoder(_Params).decode


class _ItemList(Generic[_Item]):
    """The field of a request that lists its statements, or their parameters; `kind` is the request, and `refuse` makes
    the error if there are too many."""

    def __init__(
        self,
        name: str,
        decode: Callable[[bytes], msgspec.Struct],
        kind: type[msgspec.Struct],
        refuse: "Callable[[int, str], ServiceError]",
    ) -> None:
        self._refuse = refuse
        self._name = name
        self._decode = decode
        self._kind = kind
        self._index = re.compile(rf"`\$\.{name}\[(\d+)\]")

    async def read(self, text: bytes, most: int, timer: "_Timer") -> list[_Item]:
        """Read the statements, but not their parameters. Raises malformed_request, also if there are too many."""
        if text[:1] != b"[":
            return self._read(text, 0)
        items: list[_Item] = []
        for piece in split_array(text, b"[]", b",", 1):
            if piece is not None:
                part, before, behind = piece
                items += self._read(b"[" * before + part + b"]" * behind, len(items))
                if len(items) > most:
                    raise self._refuse(most, f"{most + 1} or more")
            await timer.pause()
        return items

    def _read(self, text: bytes, first: int) -> list[_Item]:
        """Read some of them. Errors count them from `first`."""

        def decode(body: bytes) -> msgspec.Struct:
            try:
                return self._decode(body)
            except msgspec.ValidationError as exc:
                said = str(exc)
                start = max(0, len(said) - LARGE)  # the place is at the end
                moved = self._index.sub(lambda found: f"`$.{self._name}[{first + int(found[1])}]", said[start:])
                raise msgspec.ValidationError(said[:start] + moved) from exc

        found = read_json(decode, b'{"%b":%b}' % (self._name.encode(), text), self._kind)
        items: list[_Item] = getattr(found, self._name)
        return items


class _Timer:
    """Returns to the loop between two pieces of work, until the request's time is over."""

    def __init__(self, timeout_ms: int | None, limit_ms: int) -> None:
        self._limit_ms = min(timeout_ms or limit_ms, limit_ms)
        self._time = asyncio.get_running_loop().time
        self._deadline = self._time() + self._limit_ms / 1000

    async def pause(self) -> None:
        """Raises timeout."""
        await yield_to_loop()
        if self._time() > self._deadline:
            message = f"the parameters were not read within {self._limit_ms} ms, the time limit; nothing was run"
            raise ServiceError("timeout", message, sqlstate="57014")


async def read_long_query(body: bytes, limit_ms: int) -> messages.QueryRequest:
    """Read a query. Raises malformed_request, and timeout if it takes longer than its statement may."""
    long = read_json(_decode_query, body, messages.QueryRequest)
    params = await _read_params(long.params, _Timer(long.timeout_ms, limit_ms))
    return messages.QueryRequest(long.sql, params, **_options(long, messages.QueryOptions))


async def read_long_inner_query(body: bytes, lists_max: int, limit_ms: int) -> messages.InnerQueryRequest:
    """Do the same for a statement of an open transaction, which may have many lists of parameters."""
    long = read_json(_decode_inner_query, body, messages.InnerQueryRequest)
    timer = _Timer(long.timeout_ms, limit_ms)
    params = await _read_params(long.params, timer)
    lists = await _read_lists(long.params_list, lists_max, timer)
    return messages.InnerQueryRequest(long.sql, params, lists, long.sequence, **_options(long, messages.QueryOptions))


async def read_long_begin(body: bytes, lists_max: int, limit_ms: int) -> messages.BeginRequest:
    long = read_json(_decode_begin, body, messages.BeginRequest)
    first: str | messages.FirstItem | None = None
    if isinstance(long.statement, messages.LongFirstItem):
        timer = _Timer(None, limit_ms)
        params = await _read_params(long.statement.params, timer)
        lists = await _read_lists(long.statement.params_list, lists_max, timer)
        first = messages.FirstItem(long.statement.sql, params, lists)
    else:
        first = long.statement
    return messages.BeginRequest(statement=first, **_options(long, messages.BeginOptions))


async def _read_lists(raw: msgspec.Raw, most: int, timer: _Timer) -> messages.ParamsList | None:
    return None if bytes(raw) == b"null" else await _LISTS.read(bytes(raw), most, timer)


async def read_long_commit(body: bytes, _lists_max: int, limit_ms: int) -> messages.CommitRequest:
    long = read_json(_decode_commit, body, messages.CommitRequest)
    return messages.CommitRequest(
        statement=await _read_statement(long.statement, limit_ms), **_options(long, messages.CommitOptions)
    )


async def _read_statement(
    item: str | messages.LongStatementItem | None, limit_ms: int
) -> str | messages.StatementItem | None:
    if not isinstance(item, messages.LongStatementItem):
        return item
    return messages.StatementItem(item.sql, await _read_params(item.params, _Timer(None, limit_ms)))


async def read_long_transaction(body: bytes, statements_max: int, limit_ms: int) -> messages.TransactionRequest:
    """Read a transaction. Raises malformed_request, and timeout if it takes longer than the transaction may."""
    long = read_json(_decode_transaction, body, messages.TransactionRequest)
    timer = _Timer(long.timeout_ms, limit_ms)
    items = await _STATEMENTS.read(bytes(long.statements), statements_max, timer)
    each = await _read_params_of_each([None if isinstance(item, str) else item.params for item in items], timer)
    statements = [
        item if isinstance(item, str) else messages.StatementItem(item.sql, params)
        for item, params in zip(items, each, strict=True)
    ]
    return messages.TransactionRequest(statements, **_options(long, messages.TransactionOptions))


async def _read_params_of_each(raws: list[msgspec.Raw | None], timer: _Timer) -> list[list[msgspec.Raw] | None]:
    """Read the parameters of each statement; None where it is a text alone."""
    found: list[list[msgspec.Raw] | None] = []
    length = 0
    for index, raw in enumerate(raws):
        length += 0 if raw is None else len(bytes(raw))
        if length > LARGE:
            length = 0
            await timer.pause()
        try:
            found.append(None if raw is None else await _read_params(raw, timer))
        except ServiceError as exc:
            raise exc.at_statement(index) from exc
    return found


async def read_long_sql(body: bytes, statements_max: int, limit_ms: int) -> SqlRequest:
    """Read the body of `POST /sql`. Raises malformed_request, and timeout if it takes longer than its work may."""
    long = read_json(_decode_sql, body, SqlRequest)
    timer = _Timer(None, limit_ms)
    params = await _read_params(long.params, timer)
    if bytes(long.queries) == b"null":
        return SqlRequest(long.query, params, long.array_mode)
    items = await _QUERIES.read(bytes(long.queries), statements_max, timer)
    each = await _read_params_of_each([item.params for item in items], timer)
    queries = [SqlQuery(item.query, own, item.array_mode) for item, own in zip(items, each, strict=True)]
    return SqlRequest(long.query, params, long.array_mode, queries)


def wrong_number_of_statements(most: int, count: str) -> ServiceError:
    return ServiceError("malformed_request", f"a transaction has 1 to {most} statements, not {count}")


def wrong_number_of_lists(most: int, count: str) -> ServiceError:
    return ServiceError("malformed_request", f"`params_list` has 1 to {most} lists, not {count}")


def _options(request: msgspec.Struct, kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {name: getattr(request, name) for name in kind.__struct_fields__}


async def _read_params(raw: msgspec.Raw, timer: _Timer) -> list[msgspec.Raw] | None:
    text = bytes(raw)
    if text[:1] != b"[":  # null, or something else, which is refused with the name of the field
        return read_json(_decode_named, b'{"params":%b}' % text, _Params).params
    if text.count(b",") < messages.PARAMS_MAX:
        return read_json(_params_decoder.decode, text, _Params)
    params: list[msgspec.Raw] = []
    for piece in split_array(text, b"[]", b",", 1):
        if piece is not None:
            part, before, behind = piece
            more = read_json(_params_decoder.decode, b"[" * before + part + b"]" * behind, _Params)
            params += more or []
            if len(params) > messages.PARAMS_MAX:
                message = f"more than {messages.PARAMS_MAX} parameters were sent, which is the most that can be"
                raise ServiceError("parameter_mismatch", message, sqlstate="54000")
        await timer.pause()
    return params


_STATEMENTS: Final = _ItemList[str | messages.LongStatementItem](
    "statements", msgspec.json.Decoder(_Statements).decode, messages.TransactionRequest, wrong_number_of_statements
)
_QUERIES: Final = _ItemList[LongSqlQuery](
    "queries", msgspec.json.Decoder(_Queries).decode, SqlRequest, wrong_number_of_statements
)
_LISTS: Final = _ItemList[list[msgspec.Raw]](
    "params_list", msgspec.json.Decoder(_Lists).decode, messages.InnerQueryRequest, wrong_number_of_lists
)
