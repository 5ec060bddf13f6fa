"""Decides which statements mean the same when they run prepared, with one plan for all values.

The engine converts a literal to the type of its column, with the column's length and fields, and computes constants
before it looks at a row: `update t set n = 40000 where id = 0` fails for a smallint though there is no row 0. It
converts a parameter before it knows the column, and with one plan for all values it computes nothing beforehand. So the
service asks for the columns, and uses a template only if nothing is left to compute:

- There is one table, without a view, rules or policies.
- A value to store has the column's own type, or one that always fits it; the column is of no domain and has no length,
precision or fields.
- A value to compare is a number beside numbers, or a text beside texts. A UUID is recognized by its form.

None of these can fail for its value, so an error is never that of the template.

A text with parameters of its own keeps its meaning if the columns that it stores in have no length, precision or
fields. Any other is prepared anew after five runs: for the first five the engine makes a plan for the values at hand.
"""

import re
from typing import Final

from psycopg.pq.abc import PGresult

from tuplegate.engine.libpq.connections.commands import Command
from tuplegate.engine.libpq.values.types import INT2, INT4, INT8, NUMERIC, TEXT
from tuplegate.engine.sql.templates import Form

ANY_NUMBER: Final = 1 << 60
CUSTOM_PLANS: Final = 5
"""The number of runs that the engine plans for the values at hand, before it considers one plan for all values."""
_UNUSED: Final = 0

_VARCHAR, _BPCHAR, _UUID = 1043, 1042, 2950
_INFERRED: Final = 0

_NUMBERS: Final = frozenset({INT2, INT4, INT8, NUMERIC})
_TEXTS: Final = frozenset({TEXT, _VARCHAR, _BPCHAR})
_HOLDS: Final = {
    INT4: frozenset({INT4, INT8, NUMERIC}),
    INT8: frozenset({INT8, NUMERIC}),
    NUMERIC: frozenset({NUMERIC}),
    _INFERRED: frozenset({TEXT, _VARCHAR}),
}
"""The types of columns without a length that take every value of a literal's type."""

_COLUMNS_SQL: Final = b"""
SELECT a.attname, a.atttypid, a.atttypmod
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) c.oid
 WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass($1)
   AND c.relkind OPERATOR(pg_catalog.=) ANY (ARRAY['r', 'p']) AND NOT c.relhasrules AND NOT c.relrowsecurity
   AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped
 ORDER BY a.attnum
"""

_LOOKS_LIKE_A_UUID: Final = re.compile(rb"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


class Column:
    """A column. `modifier` is the engine's number for a length, a precision or fields; -1 if it has none."""

    def __init__(self, name: str, type: int, modifier: int) -> None:
        self.name = name
        self.type = type
        self.modifier = modifier


class Verdict:
    """The number of runs before a prepared statement is prepared anew; 0 means never prepare it. The parameters in
    `uuids`, counted from 0, must look like UUIDs. The verdict holds until `until`, for definitions with this
    `version`."""

    def __init__(self, runs: int, uuids: tuple[int, ...] = ()) -> None:
        self.runs = runs
        self.uuids = uuids
        self.version = 0
        self.until = 0.0

    def takes(self, values: list[bytes | None]) -> bool:
        for index in self.uuids:
            value = values[index]
            if value is None or _LOOKS_LIKE_A_UUID.fullmatch(value) is None:
                return False
        return True


def ask_for_columns(form: Form) -> Command:
    return Command(_COLUMNS_SQL, [form.table.encode()])


def read_columns(result: PGresult) -> list[Column]:
    return [
        Column(
            (result.get_value(row, 0) or b"").decode(),
            int(result.get_value(row, 1) or 0),
            int(result.get_value(row, 2) or 0),
        )
        for row in range(result.ntuples)
    ]


def judge_template(form: Form, types: tuple[int, ...], columns: list[Column]) -> Verdict:
    """Judge a template whose literals are of these types."""
    uuids = []
    for place in form.places:
        column = _find(columns, place.column, place.index)
        literal = types[place.number - 1]
        if column is None or (place.stored and column.modifier != -1):
            return Verdict(_UNUSED)
        if literal == _INFERRED and column.type == _UUID:
            uuids.append(place.number - 1)
        elif column.type not in (_HOLDS[literal] if place.stored else _TEXTS if literal == _INFERRED else _NUMBERS):
            return Verdict(_UNUSED)
    return Verdict(ANY_NUMBER, tuple(uuids))


def judge_text(form: Form, columns: list[Column]) -> Verdict:
    """Judge a text with parameters of its own."""
    for place in form.places:
        column = _find(columns, place.column, place.index)
        if column is None or (place.stored and column.modifier != -1):
            return Verdict(CUSTOM_PLANS)
    return Verdict(ANY_NUMBER)


def _find(columns: list[Column], name: str, index: int) -> Column | None:
    if index >= 0:
        return columns[index] if index < len(columns) else None
    for column in columns:
        if column.name == name:
            return column
    return None
