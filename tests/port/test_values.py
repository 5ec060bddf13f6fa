"""Values: rows are JSON when they leave the engine, by one rule for each type, and parameters are JSON texts."""

import json
from typing import Any

import pytest

from tests.port.tenant import BYTES_MAX, ENOUGH_MS, Tenant, read, statement
from tuplegate.engine.port import Bounds, Shape, StatementFailed, ValueStyle

VALUES = [
    ("bool", "true", True),
    ("int2", "-32768", -32768),
    ("int4", "2147483647", 2147483647),
    ("int8", "9223372036854775807", 9223372036854775807),
    ("float8", "0.1", 0.1),
    ("float8", "NaN", "NaN"),
    ("float8", "-Infinity", "-Infinity"),
    ("numeric", "1.50", 1.5),
    ("numeric", "NaN", "NaN"),
    ("text", 'it\'s "é😀" \\ {}\n', 'it\'s "é😀" \\ {}\n'),
    ("text", "", ""),
    ("varchar", "NULL", "NULL"),
    ("bytea", "\\x00ff", "\\x00ff"),
    ("date", "2026-11-14", "2026-11-14"),
    ("time", "23:57:08.5", "23:57:08.5"),
    ("timestamp", "2026-11-14 23:57:08.741335", "2026-11-14T23:57:08.741335"),
    ("timestamptz", "2026-11-14 23:57:08+02", "2026-11-14T21:57:08Z"),
    ("uuid", "6F9619FF-8B86-D011-B42D-00CF4FC964FF", "6f9619ff-8b86-d011-b42d-00cf4fc964ff"),
    ("inet", "10.0.0.1/8", "10.0.0.1/8"),
    ("jsonb", '{"b": [1, null, "x"], "a": {}}', {"a": {}, "b": [1, None, "x"]}),
    ("jsonb", "null", None),
    ("int4[]", "{1,NULL,3}", [1, None, 3]),
    ("text[]", '{a,"b c","{}",NULL,""}', ["a", "b c", "{}", None, ""]),
    ("timestamptz[]", '{"2026-11-14 23:57:08+00"}', ["2026-11-14T23:57:08Z"]),
    ("bool[]", "{}", []),
]
"""A type, a value in the engine's words, and the same in JSON."""

TYPES = sorted({type for type, _, _ in VALUES})


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


async def test_each_type_has_its_form_in_json(tenant: Tenant) -> None:
    """One row of every type, and one of NULLs; the types are told by the names that SQL has for them."""
    listed = ", ".join(f"{_quoted(text)}::{type} as c{i}" for i, (type, text, _) in enumerate(VALUES))
    result = await tenant.query(f"select {listed}")
    assert json.loads(result.types) == [type for type, _, _ in VALUES]
    assert json.loads(result.rows) == [[value for _, _, value in VALUES]]
    assert await tenant.rows("select " + ", ".join(f"null::{type}" for type in TYPES)) == [[None] * len(TYPES)]


async def test_what_is_read_can_be_sent_back(tenant: Tenant) -> None:
    """A column takes its own values as parameters, and then holds the same."""
    columns = ", ".join(f"c{i} {type}" for i, (type, _, _) in enumerate(VALUES))
    places = ", ".join(f"${i}" for i in range(1, len(VALUES) + 1))
    table = await tenant.table(columns=columns)
    values = [value for _, _, value in VALUES]
    assert await tenant.rows(f"insert into {table} values ({places}) returning *", *values) == [values]
    assert await tenant.rows(f"insert into {table} values ({places}) returning *", *[None] * len(values)) == [
        [None] * len(values)
    ]


@pytest.mark.parametrize(
    ("type", "number"),
    [("int2", 70000), ("int2", -32769), ("int4", 2**40), ("int4", -(2**31) - 1), ("int4", "3000000000")],
)
async def test_a_number_that_does_not_fit_is_refused(tenant: Tenant, type: str, number: int | str) -> None:
    """However it is sent; none is cut until it fits."""
    table = await tenant.table(columns=f"a {type}")
    insert = f"insert into {table} values ($1)"

    async def stream() -> None:
        async with tenant.stream(f"{insert} returning a", number) as rows:
            await read(rows)

    for sending in (tenant.query(insert, number), stream(), tenant.transaction("select 1", (insert, number))):
        with pytest.raises(StatementFailed) as refused:
            await sending
        assert refused.value.sqlstate == "22003"
    assert await tenant.value(f"select count(*) from {table}") == 0


async def test_numbers_keep_all_their_digits(tenant: Tenant) -> None:
    """They are written as the engine has them; no reader has rounded them."""
    digits = "12345678901234567890.12345678901234567890"
    assert (await tenant.query(f"select {digits}::numeric, 9007199254740993")).rows == (
        f"[[{digits},9007199254740993]]".encode()
    )


async def test_big_numbers_can_be_strings(tenant: Tenant) -> None:
    """Whole numbers of 64 bits and numerics, so that a reader with floats of 64 bits loses nothing."""
    shape = Shape("arrays", "string")
    row = await tenant.rows("select 1::int4, 9007199254740993::int8, 2.50::numeric, 0.5::float8", shape=shape)
    assert row == [[1, "9007199254740993", "2.50", 0.5]]


async def test_rows_are_objects_or_arrays(tenant: Tenant) -> None:
    query = "select 1 as id, 'a' as \"Näme\" union all select 2, null order by 1"
    result = await tenant.query(query, shape=Shape("objects"))
    assert json.loads(result.columns) == ["id", "Näme"]
    assert json.loads(result.rows) == [{"id": 1, "Näme": "a"}, {"id": 2, "Näme": None}]
    assert await tenant.rows(query) == [[1, "a"], [2, None]]


async def test_rows_can_be_the_engine_s_text_with_columns_that_are_described(tenant: Tenant) -> None:
    """All of them, or those that JSON has no type for. A transaction can ask for each of its statements."""
    table = await tenant.table(columns="a int8, b int4[], c text")
    await tenant.query(f"insert into {table} values (1, '{{1,2}}', null)")
    styles: dict[ValueStyle, list[Any]] = {"text": ["1", "{1,2}", None], "mixed": ["1", [1, 2], None]}
    for style, row in styles.items():
        shape = Shape("arrays", style=style)
        result = await tenant.query(f"select * from {table}", shape=shape)
        assert (json.loads(result.rows), result.tag) == ([row], b"SELECT 1")
        columns = json.loads(result.columns)
        assert [(one["name"], one["columnID"]) for one in columns] == [("a", 1), ("b", 2), ("c", 3)]
        assert len({one["tableID"] for one in columns}) == 1
    one, other = (
        statement(f"select c, b from {table}"),
        statement("select 1 as n", shape=Shape("objects", style="text")),
    )
    done = await tenant.engine.transaction(
        tenant.writer, [one, other], Bounds(ENOUGH_MS, None, BYTES_MAX), read_only=True, promise=None
    )
    assert [result.rows for result in done.results] == [b"[[null,[1,2]]]", b'[{"n":"1"}]']


async def test_parameters_can_be_written_without_a_look_at_their_placeholders(tenant: Tenant) -> None:
    """A string as it is, also for JSON; an array as the engine's; the rest as its JSON."""
    listed = "$1::jsonb, $2::int4[], $3::jsonb, $4::bool, $5::text"
    row = await tenant.rows(f"select {listed}", '{"a": 1}', [1, None], {"b": [2]}, True, None, is_untyped=True)
    assert row == [[{"a": 1}, [1, None], {"b": [2]}, True, None]]


async def test_a_result_counts(tenant: Tenant) -> None:
    """Rows that were given, and rows that were changed; a statement without rows has no columns."""
    table = await tenant.table()
    inserted = await tenant.query(f"insert into {table} values (1, 'x'), (2, 'y')")
    assert (inserted.columns, inserted.types, inserted.rows) == (b"[]", b"[]", b"[]")
    assert (inserted.affected_rows, inserted.row_count) == (2, 0)
    returned = await tenant.query(f"update {table} set b = 'z' where a = 1 returning a")
    assert (returned.affected_rows, returned.row_count, returned.rows) == (1, 1, b"[[1]]")
    selected = await tenant.query(f"select * from {table}")
    assert (selected.affected_rows, selected.row_count) == (0, 2)
    assert (await tenant.query(f"select * from {table} where a = 9")).rows == b"[]"


@pytest.mark.parametrize("text", ["5", "null", '{"a":1}', "[", '"x"', "", "it's"])
async def test_a_string_stays_a_string(tenant: Tenant, text: str) -> None:
    """Also for a placeholder that takes JSON, and whatever it looks like."""
    assert await tenant.rows("select $1::text, $2::jsonb", text, text) == [[text, text]]


async def test_a_parameter_is_written_as_its_placeholder_wants_it(tenant: Tenant) -> None:
    """JSON has fewer types than SQL: the engine's side finds out which one is meant."""
    row = await tenant.rows(
        "select $1::int8, $2::numeric, $3::text, $4::bool, $5::jsonb, $6::int4[], $7::text[], $8::float8, $9::date",
        *("7", 1.5, 5, True, {"k": [1, None]}, [1, None], ["a", "b,c"], 2, "2026-11-14"),
    )
    assert row == [[7, 1.5, "5", True, {"k": [1, None]}, [1, None], ["a", "b,c"], 2, "2026-11-14"]]
