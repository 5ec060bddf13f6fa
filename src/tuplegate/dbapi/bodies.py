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
    return f'"sql":{write_text(sql)},"params":{write_list(params)}'


def write_repeated(sql: str, lists: Sequence[str]) -> str:
    """Return `"sql"` and `"params_list"` of a statement that runs once with each of the lists."""
    return f'"sql":{sql},"params_list":[{",".join(lists)}]'


def write_text(sql: str) -> str:
    """Return the text of a statement as JSON."""
    if not isinstance(sql, str):
        raise ProgrammingError(f"a statement is a text, not of type {type(sql).__name__}")
    return json.dumps(drop_stream_hint(sql))


def write_list(params: Sequence[Any] | None) -> str:
    """Return parameters as a JSON array. Raises ProgrammingError for a value that cannot be sent."""
    try:
        return write_params(() if params is None else params)
    except TypeError as exc:
        raise ProgrammingError(str(exc)) from exc


def split_lists(lists: Sequence[str], count_max: int, length_max: int) -> list[Sequence[str]]:
    """Cut lists of parameters into parts of so many lists, and so many characters unless one list has more."""
    parts: list[Sequence[str]] = []
    first = length = 0
    for index, each in enumerate(lists):
        if index > first and (index - first == count_max or length + len(each) > length_max):
            parts.append(lists[first:index])
            first, length = index, 0
        length += len(each)
    parts.append(lists[first:])
    return parts


def write_query(statement: str, timeout_ms: int) -> str:
    return f'{{{statement},"timeout_ms":{timeout_ms},{_SHAPE}}}'


def write_begin(statement: str | None, read_only: bool, life_ms: int | None, idle_ms: int | None) -> str:
    first = "" if statement is None else f'"statement":{{{statement}}},'
    life = "" if life_ms is None else f'"timeout_ms":{life_ms},'
    idle = "" if idle_ms is None else f'"idle_timeout_ms":{idle_ms},'
    return f'{{{first}{life}{idle}"read_only":{"true" if read_only else "false"},{_SHAPE}}}'


def write_batch(statements: Sequence[str], timeout_ms: int, read_only: bool) -> str:
    written = ",".join(f"{{{statement}}}" for statement in statements)
    only = "true" if read_only else "false"
    return f'{{"statements":[{written}],"read_only":{only},"timeout_ms":{timeout_ms},{_SHAPE}}}'
