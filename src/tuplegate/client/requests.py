"""Writes the bodies of requests as JSON text, once, so that a repetition sends the same bytes. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from tuplegate.client.retries import Repeat
from tuplegate.client.values import write_params

Statement = str | tuple[str, Sequence[Any]]
"""A statement of a transaction: SQL, or SQL and parameters."""

_TIMEOUT_MS_MAX = 86_400_000
# Numbers that a float could not hold come as strings, unless the caller wants plain JSON.
_SHAPES = {
    True: '"row_mode":"arrays","big_numbers":"string"',
    False: '"row_mode":"arrays","big_numbers":"number"',
}
_HINT = "/*+ STREAM */"


@dataclass(frozen=True)
class Call:
    """One request. A repetition sends the same bytes."""

    method: str
    url: str
    body: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeat: Repeat = Repeat.NEVER
    exact: bool = False
    """Keep the digits of numbers in the answer, as `Number`."""


@dataclass(frozen=True)
class OpenOptions:
    """The options of an open transaction. `timeout_s` is for all of it, `call_timeout_s` for one call that gives
    none."""

    url: str
    headers: Mapping[str, str]
    read_only: bool
    timeout_s: float
    idle_timeout_s: float | None
    call_timeout_s: float


def write_path(collection: str, name: str) -> str:
    return f"/v1/{collection}/{quote(name, safe='')}"


def drop_none(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def write_query_body(
    sql: str,
    params: Sequence[Any],
    timeout_s: float | None,
    max_rows: int | None,
    convert: bool,
    *,
    export: bool = False,
) -> str:
    bounds = "" if timeout_s is None else f'"timeout_ms":{_timeout_ms(timeout_s)},'
    bounds += ("" if max_rows is None else f'"max_rows":{max_rows},') + ('"export":true,' if export else "")
    return f'{{"sql":{json.dumps(sql)},"params":{write_params(params)},{bounds}{_SHAPES[convert]}}}'


def write_transaction_body(statements: Sequence[Statement], timeout_s: float, convert: bool, *, read_only: bool) -> str:
    if isinstance(statements, str):
        raise TypeError("statements is a list: of SQL, or of pairs of SQL and parameters")
    written = ",".join(_write_statement(statement) for statement in statements)
    only = "true" if read_only else "false"
    return f'{{"statements":[{written}],"read_only":{only},"timeout_ms":{_timeout_ms(timeout_s)},{_SHAPES[convert]}}}'


def write_begin_body(
    first: Statement | None, convert: bool, timeout_s: float, idle_timeout_s: float | None, *, read_only: bool
) -> str:
    """Write the body that begins an open transaction; `timeout_s` is for all of it."""
    statement = "" if first is None else f'"statement":{_write_statement(first)},'
    idle = "" if idle_timeout_s is None else f'"idle_timeout_ms":{_timeout_ms(idle_timeout_s)},'
    only = "true" if read_only else "false"
    return f'{{{statement}{idle}"read_only":{only},"timeout_ms":{_timeout_ms(timeout_s)},{_SHAPES[convert]}}}'


def write_commit_body(last: Statement | None, timeout_s: float) -> str:
    statement = "" if last is None else f'"statement":{_write_statement(last)},'
    return f'{{{statement}"timeout_ms":{_timeout_ms(timeout_s)},{_SHAPES[True]}}}'


def add_sequence(body: str, sequence: int) -> str:
    """Add its sequence within the transaction to the body of a request."""
    return f'{{"sequence":{sequence},{body[1:]}'


def _write_statement(statement: Statement) -> str:
    if isinstance(statement, str):
        return json.dumps(statement)
    sql, params = statement
    return f'{{"sql":{json.dumps(sql)},"params":{write_params(params)}}}'


def split_batches(count: int, size: int | None) -> list[tuple[int, int]]:
    """Return start and end of every batch of `size`; without a size, one batch."""
    if size is not None and size < 1:
        raise ValueError(f"batch_size is {size}: a batch has at least 1")
    size = count if size is None else size
    return [(start, min(start + size, count)) for start in range(0, count, size or 1)]


def _timeout_ms(timeout_s: float) -> int:
    return min(max(int(timeout_s * 1000), 1), _TIMEOUT_MS_MAX)


def drop_stream_hint(sql: str) -> str:
    """Replace the stream hint by blanks: the called method decides whether the answer is streamed."""
    start = len(sql) - len(sql.lstrip())
    if not sql.startswith(_HINT, start):
        return sql
    return sql[:start] + " " * len(_HINT) + sql[start + len(_HINT) :]
