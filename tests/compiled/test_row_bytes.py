"""What writes rows where the hot path is compiled writes the very bytes that the driver and msgspec make of them."""

from collections.abc import Iterator
from itertools import product
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from tests.inside import owner
from tests.service import Service
from tuplegate.engine.libpq.values import row_encoder
from tuplegate.engine.libpq.values.row_encoder import RowEncoder
from tuplegate.engine.libpq.values.types import BUILT_IN_TYPES_SQL, TypeRegistry, read_types
from tuplegate.engine.port import Shape
from tuplegate.protocol.messages import BigNumbers, RowMode

SHAPES = [Shape(row_mode, numbers) for row_mode, numbers in product(get_args(RowMode), get_args(BigNumbers))]

TEXTS = {
    "text": st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    "int2": st.integers(-(2**15), 2**15 - 1).map(str),
    "int8": st.integers(-(2**63), 2**63 - 1).map(str),
    "oid": st.integers(0, 2**32 - 1).map(str),
    "float4": st.floats(width=32).map(str),
    "float8": st.floats().map(str),
    "numeric": st.decimals(places=3, allow_nan=False).map(str) | st.just("NaN"),
    "bool": st.sampled_from(["t", "f"]),
    "json": st.sampled_from(['{"a":\n [1,\r\n"\\n\u00e4"]}', "null", "1", '"x\ty"'.replace("\t", " ")]),
    "jsonb": st.sampled_from(['{"a": [1, "\\n\u00e4"]}', "null", "-0.10"]),
    "timestamp": st.sampled_from(["2026-01-02 03:04:05", "0044-03-15 12:00:00.5 BC", "infinity", "-infinity"]),
    "timestamptz": st.sampled_from(["2026-01-02 03:04:05.123456+02", "0044-03-15 12:00:00 BC", "infinity"]),
    "bytea": st.binary().map(lambda data: "\\x" + data.hex()),
    "date": st.dates().map(str),
    "uuid": st.uuids().map(str),
    "interval": st.sampled_from(["1 day 02:00:00", "-1 mons"]),
}
ROWS = st.lists(
    st.fixed_dictionaries({name: st.none() | strategy for name, strategy in TEXTS.items()}), min_size=0, max_size=4
)


class Rows:
    """Results of an engine, and both ways to write them."""

    def __init__(self, connection: PGconn) -> None:
        self._connection = connection
        built_in = self.ask(BUILT_IN_TYPES_SQL)
        rows = [[_text(built_in, row, column) for column in range(8)] for row in range(built_in.ntuples)]
        self._types = TypeRegistry(read_types(rows))

    def ask(self, sql: str, params: list[bytes | None] | None = None) -> PGresult:
        result = self._connection.exec_params(sql.encode(), params)
        assert result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK), result.error_message
        return result

    def written(self, result: PGresult, shape: Shape, rows_max: int | None = None) -> tuple[bytes, bytes]:
        """By what is to be tested: separated by commas, and as lines."""
        encoder = self._encoder(result, shape)
        assert encoder._writer is not None
        return bytes(encoder.encode_array(result, rows_max)), encoder.encode_lines(result, rows_max)

    def expected(self, result: PGresult, shape: Shape, rows_max: int | None = None) -> tuple[bytes, bytes]:
        encoder = self._encoder(result, shape)
        encoder._writer = None
        return bytes(encoder.encode_array(result, rows_max)), encoder.encode_lines(result, rows_max)

    def _encoder(self, result: PGresult, shape: Shape) -> RowEncoder:
        columns = range(result.nfields)
        names = [(result.fname(column) or b"").decode() for column in columns]
        return RowEncoder(names, [result.ftype(column) for column in columns], shape, self._types)


def _text(result: PGresult, row: int, column: int) -> str | None:
    value = result.get_value(row, column)
    return None if value is None else value.decode()


@pytest.fixture(scope="module")
def rows(service: Service) -> Iterator[Rows]:
    with owner(service) as connection:
        connection.execute("set timezone = 'UTC'")
        yield Rows(connection.pgconn)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.row_mode}-{shape.big_numbers}")
def test_every_type(rows: Rows, shape: Shape) -> None:
    @settings(max_examples=150, deadline=None)
    @given(ROWS, st.sampled_from(["UTC", "Asia/Kathmandu"]), st.sampled_from(["hex", "escape"]), st.none() | st.just(2))
    def same(wanted: list[dict[str, str | None]], zone: str, bytea: str, rows_max: int | None) -> None:
        rows.ask(f"set timezone = '{zone}'")
        rows.ask(f"set bytea_output = '{bytea}'")
        texts = [row[name] for row in wanted for name in TEXTS]
        params = [None if text is None else text.encode() for text in texts]
        numbers = iter(range(1, len(params) + 1))
        lines = ["(" + ",".join(f"${next(numbers)}::{type}" for type in TEXTS) + ")" for _ in wanted]
        lines = lines or ["(" + ",".join(f"null::{type}" for type in TEXTS) + ")"]
        where = "" if wanted else " where false"
        names = ",".join(f"c{number}" for number in range(len(TEXTS)))
        result = rows.ask(f"select * from (values {','.join(lines)}) v({names}){where}", params)
        assert rows.written(result, shape, rows_max) == rows.expected(result, shape, rows_max)

    same()


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.row_mode}-{shape.big_numbers}")
@pytest.mark.parametrize(
    "columns",
    [
        "",
        "1 as a",
        "1 as a, 2 as a, 3 as b, 4 as a",
        """1 as "with ""quotes"" and \\", 2 as "ä\t" """,
        "repeat('x', 1000000) as long, repeat(E'\\n', 100000) as escaped",
        "'' as empty, null as nothing",
    ],
)
def test_every_shape(rows: Rows, shape: Shape, columns: str) -> None:
    result = rows.ask(f"select {columns} from generate_series(1, 3)")
    assert rows.written(result, shape) == rows.expected(result, shape)


def test_every_byte_that_must_be_escaped(rows: Rows) -> None:
    result = rows.ask("select 'a' || chr(n) || 'ü' || chr(n) from generate_series(1, 300) n")
    assert rows.written(result, SHAPES[0]) == rows.expected(result, SHAPES[0])


def test_text_that_is_not_utf8(rows: Rows) -> None:
    rows.ask("set client_encoding = 'LATIN1'")
    try:
        for sql in ("select chr(252) as text", """select ('"' || chr(252) || '"')::json"""):
            result = rows.ask(sql)
            with pytest.raises(UnicodeDecodeError):
                rows.written(result, SHAPES[0])
    finally:
        rows.ask("set client_encoding = 'UTF8'")


def test_arrays_are_left_to_the_driver(rows: Rows) -> None:
    result = rows.ask("select array[1, 2] as numbers, 'x' as text")
    encoder = rows._encoder(result, SHAPES[0])
    assert encoder._writer is None
    assert bytes(encoder.encode_array(result)) == b'{"numbers":[1,2],"text":"x"}'


def test_the_package_is_compiled() -> None:
    assert not row_encoder.__file__.endswith(".py")
