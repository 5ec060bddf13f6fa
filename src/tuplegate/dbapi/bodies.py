"""Writes the bodies of requests about an open transaction. Pure."""

import json
from collections.abc import Sequence
from typing import Any

from tuplegate.client.requests import drop_stream_hint
from tuplegate.client.values import write_params
from tuplegate.dbapi.errors import ProgrammingError

_SHAPE = '"row_mode":"arrays","big_numbers":"string"'


def write_statement(sql: str, params: Sequence[Any] | None) -> str:
    """Return `"sql"` and `"params"` of a statement. Raises ProgrammingError for a value that cannot be sent."""
    if not isinstance(sql, str):
        raise ProgrammingError(f"a statement is a text, not of type {type(sql).__name__}")
    try:
        return f'"sql":{json.dumps(drop_stream_hint(sql))},"params":{write_params(() if params is None else params)}'
    except TypeError as exc:
        raise ProgrammingError(str(exc)) from exc


def write_query(statement: str, timeout_ms: int, sequence: int | None) -> str:
    number = "" if sequence is None else f',"sequence":{sequence}'
    return f'{{{statement},"timeout_ms":{timeout_ms},{_SHAPE}{number}}}'


def write_begin(statement: str | None, read_only: bool, life_ms: int | None, idle_ms: int | None) -> str:
    first = "" if statement is None else f'"statement":{{{statement}}},'
    life = "" if life_ms is None else f'"timeout_ms":{life_ms},'
    idle = "" if idle_ms is None else f'"idle_timeout_ms":{idle_ms},'
    return f'{{{first}{life}{idle}"read_only":{"true" if read_only else "false"},{_SHAPE}}}'


def write_batch(statements: Sequence[str], timeout_ms: int, read_only: bool) -> str:
    written = ",".join(f"{{{statement}}}" for statement in statements)
    only = "true" if read_only else "false"
    return f'{{"statements":[{written}],"read_only":{only},"timeout_ms":{timeout_ms},{_SHAPE}}}'
