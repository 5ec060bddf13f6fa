"""Copies the rows of a table, each once, and compares them afterwards with what was sent.

Values go as the text that the engine writes, and the other engine reads: no digit is lost on the way. A batch has an
Idempotency-Key, so one whose answer is lost is sent again without being stored twice.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from tuplegate.cli.sending.definitions import Record, Relation
from tuplegate.cli.transfer.value_forms import text_sql
from tuplegate.client.statements import quote
from tuplegate.client.values import Number, RepeatedNames, write

if TYPE_CHECKING:
    from tuplegate.client import Client

_VALUES_MAX = 8_000
"""How many values go in one statement. The protocol has room for 65,535."""
_BATCH_CHARACTERS = 2_000_000
_STREAM_S = 24 * 3600.0
_DIGEST_MAX = 2**128
_WHOLE_HOURS = re.compile(r"([+-]\d\d):00(?=[\",}]|$)")
"""The offset of a time zone, which some engines write with minutes."""

Values = tuple[str | None, ...]
Progress = Callable[[int], None]


def read_values(client: "Client", table: Relation, columns: Sequence[Record]) -> Iterator[list[Values]]:
    """Yield all rows, a portion at a time, as texts."""
    texts = ", ".join(text_sql(quote(column["name"]), column["type"]) for column in columns) or "null::text"
    with client.stream(f"select {texts} from {table.full_name}", convert=False, timeout_s=_STREAM_S) as rows:
        while portion := rows.next_tuples():
            yield portion


def send_rows(
    source: "Client", target: "Client", table: Relation, columns: Sequence[Record], progress: Progress
) -> int:
    """Copy all rows; return their number."""
    sent = 0
    for batch in _make_batches(read_values(source, table, columns), max(1, _VALUES_MAX // max(1, len(columns)))):
        target.query(_write_insert(table, columns, len(batch)), [value for row in batch for value in row])
        sent += len(batch)
        progress(sent)
    return sent


def _make_batches(portions: Iterator[list[Values]], rows_max: int) -> Iterator[list[Values]]:
    batch: list[Values] = []
    size = 0
    for portion in portions:
        for row in portion:
            batch.append(row)
            size += sum(len(value) for value in row if value is not None)
            if len(batch) >= rows_max or size >= _BATCH_CHARACTERS:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _write_insert(table: Relation, columns: Sequence[Record], rows: int) -> str:
    if not columns:
        return f"insert into {table.full_name} select from generate_series(1, {rows})"
    names = ", ".join(quote(column["name"]) for column in columns)
    # A text for a placeholder of json would be taken for a JSON string, and JSON null for NULL.
    casts = [f"::text::{column['document']}" if column["document"] else "" for column in columns]
    numbers = count(1)
    places = (f"({', '.join(f'${next(numbers)}{cast}' for cast in casts)})" for _ in range(rows))
    return f"insert into {table.full_name} ({names}) values {', '.join(places)}"


# -- comparing -------------------------------------------------------------------------------------------------------


def digest_rows(client: "Client", table: Relation, columns: Sequence[Record]) -> tuple[int, int]:
    """Return the number of rows, and a digest of their values in which their order does not count."""
    forms = [_find_form(column["type"]) for column in columns]
    found, digest = 0, 0
    for portion in read_values(client, table, columns):
        for row in portion:
            shown = [None if value is None else form(value) for value, form in zip(row, forms, strict=True)]
            hashed = hashlib.sha256(json.dumps(shown, ensure_ascii=False).encode("utf-8", "surrogatepass")).digest()
            digest = (digest + int.from_bytes(hashed[:16], "big")) % _DIGEST_MAX
            found += 1
    return found, digest


def _find_form(type: str) -> Callable[[str], str]:
    """Return a function that gives values of the type one form, if engines write it in several."""
    if type in ("json", "jsonb"):
        return _order_names
    if type in ("real", "double precision"):
        return lambda text: repr(float(text))
    if type.startswith("character("):
        return str.rstrip
    if type.startswith(("timestamp", "time")) and "with time zone" in type:
        return lambda text: _WHOLE_HOURS.sub(r"\1", text)
    return str


def _order_names(text: str) -> str:
    """Return a document with the names of its objects in order. Numbers stay the digits that they are."""
    return write(json.loads(text, parse_float=Number, parse_int=Number, object_pairs_hook=_order_pairs))


def _order_pairs(pairs: list[tuple[str, Any]]) -> RepeatedNames:
    return RepeatedNames(sorted(pairs, key=itemgetter(0)))
