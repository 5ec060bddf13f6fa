"""The value rules of the contract (§3, Values), written a second time and independently of the service.

Numbers are kept as their digits and objects as their pairs in order, so that a comparison sees what the bytes say:
1 is not 1.0 and not "1". The engine's own text of a value is what its output function gives, asked for with
`format('%s', v)`, or where that gives another, with a connection of the test's own; a cast to text is another text for
some types. There are no tests in this file.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import psycopg

from tests.service import Service


@dataclass(frozen=True)
class Number:
    """A JSON number by its digits."""

    digits: str


@dataclass(frozen=True)
class Object:
    """A JSON object by its pairs, in order and with duplicates."""

    pairs: tuple[tuple[str, Any], ...]


def parse(text: str) -> Any:
    """JSON without any loss; NaN and Infinity, which Python would take, are refused."""

    def refuse(word: str) -> Any:
        raise ValueError(f"{word} is not JSON")

    return json.loads(
        text,
        parse_int=Number,
        parse_float=Number,
        parse_constant=refuse,
        object_pairs_hook=lambda pairs: Object(tuple(pairs)),
    )


def dump(value: Any) -> str:
    """The inverse of `parse`; takes ordinary Python values too."""
    match value:
        case Number():
            return value.digits
        case Object():
            return "{" + ", ".join(f"{json.dumps(key)}: {dump(part)}" for key, part in value.pairs) + "}"
        case dict():
            return dump(Object(tuple(value.items())))
        case list() | tuple():
            return "[" + ", ".join(map(dump, value)) + "]"
        case _:
            return json.dumps(value)


class Wire:
    """`POST /v1/query`, read without loss. `has_dimensions`: the engine has arrays of arrays.

    `direct` is a connection to the database, where the engine's text of a value is read from it.
    """

    has_dimensions = True
    direct: "psycopg.Connection[tuple[Any, ...]] | None" = None

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def read_directly(self, sql: str) -> list[str | None]:
        """The first column, as the engine sends it."""
        assert self.direct is not None
        result = self.direct.execute(sql.encode()).pgresult
        assert result is not None
        values = [result.get_value(row, 0) for row in range(result.ntuples)]
        return [None if value is None else value.decode() for value in values]

    def send(self, sql: str, params: Sequence[Any] | None = None, **fields: Any) -> httpx.Response:
        body = {"sql": sql, **fields} if params is None else {"sql": sql, "params": list(params), **fields}
        return self.client.post("/v1/query", content=dump(body), headers={"Content-Type": "application/json"})

    def body(self, sql: str, params: Sequence[Any] | None = None, **fields: Any) -> dict[str, Any]:
        """The body of an answer that must be a success."""
        answer = self.send(sql, params, **fields)
        assert answer.status_code == 200, answer.text
        assert b"\n" not in answer.content
        assert b"\r" not in answer.content
        body = dict(parse(answer.text).pairs)
        assert body["success"] is True, body
        return body

    def rows(self, sql: str, params: Sequence[Any] | None = None, **fields: Any) -> list[Any]:
        rows: list[Any] = self.body(sql, params, row_mode="arrays", **fields)["rows"]
        return rows

    def value(self, sql: str, params: Sequence[Any] | None = None, **fields: Any) -> Any:
        [[value]] = self.rows(sql, params, **fields)
        return value

    def error(self, sql: str, params: Sequence[Any] | None = None, **fields: Any) -> dict[str, Any]:
        """The error of a statement that the engine refuses."""
        answer = self.send(sql, params, **fields)
        body = answer.json()
        assert answer.status_code == 200, body
        assert body["success"] is False, body
        error: dict[str, Any] = body["error"]
        return error


@contextmanager
def open_wire(service: Service, *statements: str) -> Iterator[Wire]:
    """A wire on which `statements` have been run."""
    with service.client() as client:
        wire = Wire(client)
        for statement in statements:
            wire.body(statement)
        yield wire


def quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# -- the rules: the engine's text to what the JSON must be ---------------------------------------------------------


def as_text(text: str) -> Any:
    return text


def as_bool(text: str) -> Any:
    return {"t": True, "f": False}[text]


def as_number(text: str) -> Any:
    return text if text in ("NaN", "Infinity", "-Infinity") else Number(text)


def as_json(text: str) -> Any:
    return parse(text)


def as_timestamp(text: str) -> Any:
    return re.sub(r"^(\d+-\d\d-\d\d) ", r"\1T", text)


def as_timestamptz(text: str) -> Any:
    return re.sub(r"\+00$", "Z", as_timestamp(text))
