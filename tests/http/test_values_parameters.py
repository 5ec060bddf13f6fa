"""Parameters: each kind of JSON value, for placeholders of each kind of type."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.cases import each_of
from tests.http.test_values_model import Number, Object, Wire, dump, open_wire, parse
from tests.http.test_values_types import documents, json_numbers, strings
from tests.needs import Abilities, needs
from tests.service import Service, Sql

some = settings(max_examples=50, deadline=None, print_blob=True)

LOOKS_LIKE_JSON = [
    *("abc", "5", "null", "true", "{}", "[1]", "", " ", '"x"', '"', "1e999", "-1e999", " 5 ", "\n5", "1.", "01", "-"),
    *('"\\ud800"', '"\\ude00"', '"\\u0000"', "\\u0000", '{"a":1}', "[", "NaN", "Infinity", "0x1", '{"a":1,}', "\t"),
    *("[" * 1100 + "]" * 1100, "[" * 5000 + "]" * 5000, "1" * 5000, "\ufeff5", "5 5", "nul", "'a'", "\\x6869", "1e5"),
]
"""Strings that one JSON reader or another takes for JSON. A parameter that is a string is a string."""


COLUMNS = {
    "j": "json",
    "b": "jsonb",
    "d": "values_parameters.document",
    "t": "text",
    "i": "int4",
    "n": "numeric",
    "js": "json[]",
    "bs": "jsonb[]",
    "ds": "values_parameters.document[]",
    "ts": "text[]",
    "ins": "int4[]",
    "boxes": "box[]",
    "o": "bool",
    "v": "varchar(10)",
    "bools": "bool[]",
    "floats": "float8[]",
}


@pytest.fixture(scope="module")
def wire(service: Service, abilities: Abilities) -> Iterator[Wire]:
    columns = {
        name: "jsonb" if name == "d" and not abilities.can("domain") else type
        for name, type in COLUMNS.items()
        if name not in ("js", "bs", "ds", "boxes") or abilities.can("column jsonb[]")
    }
    statements = [
        "drop schema if exists values_parameters cascade",
        "create schema values_parameters",
        "create domain values_parameters.document as jsonb",
        f"create table values_parameters.kept ({', '.join(f'{name} {type}' for name, type in columns.items())})",
    ]
    with open_wire(service, *filter(abilities.can_run, statements)) as opened:
        yield opened


def keep(wire: Wire, column: str, value: Any) -> Any:
    """What a column holds after it was given `value`."""
    return wire.value(f"insert into values_parameters.kept ({column}) values ($1) returning {column}", [value])


@some
@given(text=strings)
def test_a_string_for_json_is_a_json_string(wire: Wire, text: str) -> None:
    """json, jsonb and a domain over it store the string, whatever it looks like; text stores it as it is."""
    row = wire.rows(
        "insert into values_parameters.kept (j, b, d, t) values ($1, $2, $3, $4) returning j, b, d, t", [text] * 4
    )
    assert row == [[text] * 4]


@each_of("text", LOOKS_LIKE_JSON)
@each_of("column", ["j", "b", "d", "t"])
def test_a_string_that_looks_like_json_stays_a_string(wire: Wire, column: str, text: str) -> None:
    """Alone in its statement, so that nothing else makes the service ask for the placeholder's type."""
    assert keep(wire, column, text) == text


@needs("postgresql")
@some
@given(document=documents)
@example(document=Object(()))
@example(document=[])
@example(document=Object((("a", Number("1" * 100)),)))
def test_a_document_is_stored_as_it_is(wire: Wire, document: Any) -> None:
    """json keeps every digit, key and their order; null is NULL; a text placeholder gets the JSON text of it."""
    assert keep(wire, "j", document) == document
    stored, is_null = wire.rows("select $1::json, $1::json is null", [document])[0]
    assert (stored, is_null) == (document, document is None)
    assert wire.value("select $1::jsonb = $2::text::jsonb", [document, dump(document)]) in (True, None)
    text = wire.value("select $1::text", [document])
    if isinstance(document, Object | list | Number):
        assert parse(text) == document
    elif isinstance(document, bool):
        assert text == str(document).lower()
    else:
        assert text == document


@needs("column jsonb[]")
@some
@given(values=st.lists(documents, max_size=6))
def test_arrays_of_documents_take_any_document(wire: Wire, values: list[Any]) -> None:
    """An element of json[] or jsonb[] is JSON itself: strings, arrays and objects too; null is NULL."""
    assert keep(wire, "js", values) == values
    assert wire.value("select array_length($1::json[], 1)", [values]) == (Number(str(len(values))) if values else None)
    same = "select $1::{0}[] is not distinct from array(select e::text::jsonb from unnest($2::text[]) e)"
    texts = [None if value is None else dump(value) for value in values]
    assert wire.value(same.format("jsonb"), [values, texts]) is True
    assert keep(wire, "ds", values) == keep(wire, "bs", values)


@some
@given(number=json_numbers)
def test_a_number_keeps_its_digits(wire: Wire, number: Number) -> None:
    """numeric and text get the digits that were sent, not what a double would make of them."""
    assert wire.value("select $1::text", [number]) == number.digits
    assert wire.value("select $1::numeric = $2::text::numeric", [number, number.digits]) is True
    assert wire.value("select array[$1]::text[]", [number]) == [number.digits]
    assert wire.value("select $1::text[]", [[number]]) == [number.digits]


def nested(element: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Arrays of one to three dimensions, each as long as its neighbours."""

    def of_shape(shape: list[int]) -> st.SearchStrategy[Any]:
        inner = element
        for length in reversed(shape):
            inner = st.lists(inner, min_size=length, max_size=length)
        return inner

    return st.lists(st.integers(1, 3), min_size=1, max_size=3).flatmap(of_shape)


@needs("arrays")
@some
@given(texts=nested(st.none() | strings), numbers=nested(st.none() | st.integers(-(2**31), 2**31 - 1)))
def test_arrays_nest(wire: Wire, texts: Any, numbers: Any) -> None:
    """A JSON array becomes an array of as many dimensions, NULLs and odd strings included."""
    [row] = wire.rows("select $1::text[], $2::int4[]", [texts, numbers])
    assert row == [texts, parse(dump(numbers))]


@needs("arrays", "column jsonb[]")
@each_of(
    ("column", "sent", "kept"),
    [
        ("i", "5", Number("5")),
        ("i", 5, Number("5")),
        ("i", None, None),
        ("n", "1.50", Number("1.50")),
        ("n", Number("1.50"), Number("1.50")),
        ("n", Number("1e3"), Number("1000")),
        ("n", "NaN", "NaN"),
        ("o", True, True),
        ("o", "f", False),
        ("t", True, "true"),
        ("t", 5, "5"),
        ("t", None, None),
        ("t", {"a": [1, None]}, '{"a": [1, null]}'),
        ("t", [1, "x"], '[1, "x"]'),
        ("v", [], "[]"),
        ("b", True, True),
        ("b", 5, Number("5")),
        ("b", None, None),
        ("b", [], []),
        ("b", [None], [None]),
        ("d", {}, Object(())),
        ("ins", [], []),
        ("ins", [1, "2", None], [Number("1"), Number("2"), None]),
        ("ins", [[1], [2]], [[Number("1")], [Number("2")]]),
        ("ins", "[2:3]={1,2}", [Number("1"), Number("2")]),
        ("ins", "{}", []),
        ("ts", [1, True, "x", {"a": 1}, None, "NULL", ""], ["1", "true", "x", '{"a": 1}', None, "NULL", ""]),
        ("bools", [True, False, None, "t"], [True, False, None, True]),
        ("floats", [Number("0.1"), "NaN", "Infinity", None], [Number("0.1"), "NaN", "Infinity", None]),
        ("boxes", ["(1,1),(0,0)", None], ["(1,1),(0,0)", None]),
        ("boxes", [["(1,1),(0,0)"], ["(2,2),(0,0)"]], [["(1,1),(0,0)"], ["(2,2),(0,0)"]]),
        ("bs", [], []),
        ("bs", ["5", "null", "{}", [1]], ["5", "null", "{}", [Number("1")]]),
        ("bs", [[1, 2], [3, 4]], [[Number("1"), Number("2")], [Number("3"), Number("4")]]),
        ("bs", [[1, 2], [3]], [[Number("1"), Number("2")], [Number("3")]]),
    ],
)
def test_what_a_column_holds_of_a_parameter(wire: Wire, column: str, sent: Any, kept: Any) -> None:
    """Null, bool, number, string, array and object, for columns of each kind."""
    assert keep(wire, column, sent) == kept


@needs("arrays", "column jsonb[]")
@each_of(
    ("column", "sent", "sqlstate"),
    [
        ("i", "abc", "22P02"),
        ("i", True, "22P02"),
        ("i", Number("1.5"), "22P02"),
        ("i", 2**31, "22003"),
        ("ins", [[1], [2, 3]], "22P02"),
        ("ins", [[1], 2], "22P02"),
        ("ins", ["x"], "22P02"),
        ("ins", {"a": 1}, "22P02"),
        ("boxes", ["x"], "22P02"),
        ("v", "x" * 11, "22001"),
        ("b", "a\0b", "22P05"),
        ("b", {"a": "\0"}, "22P05"),
    ],
)
def test_the_engine_judges_a_parameter(wire: Wire, column: str, sent: Any, sqlstate: str) -> None:
    """A value that does not fit its column is an SQL error with the engine's code, and nothing is stored."""
    count = "select count(*) from values_parameters.kept"
    before = wire.value(count)
    error = wire.error(f"insert into values_parameters.kept ({column}) values ($1)", [sent])
    assert error["sqlstate"] == sqlstate
    assert wire.value(count) == before


@needs("column jsonb[]")
def test_a_nul_character_fits_only_into_json(wire: Wire) -> None:
    """Text cannot hold one, so it is refused; json keeps it as the escape it is, alone and inside."""
    for type, value in (("text", "a\0b"), ("text[]", ["a\0b"])):
        refused = wire.send(f"select $1::{type}", [value])
        assert (refused.status_code, refused.json()["error"]["sqlstate"]) == (400, "22021")
    assert keep(wire, "j", {"k": "a\0b"}) == Object((("k", "a\0b"),))
    assert keep(wire, "js", ["a\0b"]) == ["a\0b"]
    assert keep(wire, "j", "a\0b") == "a\0b"


@needs("arrays")
@each_of("depth", [7, 100, 300, 600, 900])
@each_of("type", ["int4[]", "json", "text"])
def test_deep_arrays_get_an_answer(wire: Wire, type: str, depth: int) -> None:
    """The engine takes six dimensions and says so; JSON may be deeper than any array."""
    deep = Number("[" * depth + "1" + "]" * depth)
    if type == "int4[]":
        assert wire.error(f"select $1::{type}", [deep])["sqlstate"] == "54000"
    else:
        assert wire.value(f"select length($1::{type}::text)", [deep]) == Number(str(2 * depth + 1))


def test_json_text_is_written_with_a_cast(wire: Wire) -> None:
    """The contract's way to store JSON text, JSON null included."""
    assert wire.value("select $1::text::jsonb", ['{"a":1}']) == parse('{"a":1}')
    assert wire.value("select $1::text::jsonb is null", ["null"]) is False
    assert wire.value("select $1::jsonb is null", [None]) is True
    assert wire.error("select $1::text::jsonb", ["abc"])["sqlstate"] == "22P02"


def test_white_space_in_a_request_is_no_part_of_a_value(wire: Wire) -> None:
    """A body that was written for people means the same."""
    body = """{ "sql" : "select $1::int4[], $2::text, $3::jsonb, $4::text[], $5::bool" , "row_mode": "arrays",
        "params" : [ [ 1 ,\n null , [ ] ] , \t"a" , { "k" : [ null ] } , [ "x" , null\r\n] , null ] }"""
    answer = wire.client.post("/v1/query", content=body.replace(", [ ] ]", "]"))
    assert answer.json()["rows"] == [[[1, None], "a", {"k": [None]}, ["x", None], None]]


def test_one_placeholder_used_twice_has_one_type(wire: Wire) -> None:
    """The type is the engine's choice for the placeholder, wherever else it is used."""
    assert wire.rows("select $1::jsonb, jsonb_typeof($1)", ["5"]) == [["5", "string"]]
    assert wire.rows("select $1::text, $1 || 'x'", ["5"]) == [["5", "5x"]]


def test_a_statement_is_run_once_although_its_parameter_is_tried_twice(wire: Wire) -> None:
    """A string that a json placeholder refused at first is stored by exactly one INSERT."""
    count = "select count(*) from values_parameters.kept where b = '\"only once\"'"
    assert wire.value(count) == Number("0")
    assert keep(wire, "b", "only once") == "only once"
    assert wire.value(count) == Number("1")


def test_more_parameters_than_the_protocol_counts_are_refused(wire: Wire) -> None:
    """65,535 work; one more is an error of the request."""
    places = ", ".join(f"${i}::int2" for i in range(1, 65536))
    assert wire.value(f"select num_nonnulls({places[: places.index(', $101:')]})", [1] * 100) == Number("100")
    answer = wire.send("select 1", [1] * 65536)
    assert answer.status_code == 400, answer.text


@needs("do_block", "domain")
def test_a_long_chain_of_domains_is_one_type_to_the_client(sql: Sql) -> None:
    """However many domains lie over each other, a parameter is written for the type below all of them."""
    making = "create domain chain_0 as int[]; for i in 1..1100 loop execute format('create domain chain_%s as chain_%s'"
    sql(f"do $$ begin {making}, i, i - 1); end loop; end $$", timeout_ms=60000)
    assert sql.value("select $1::chain_1100 as a", [[1, 2]]) == [1, 2]
    assert sql.value("select array[$1::chain_1100] as a", [[1, 2]]) == [[1, 2]]
    sql("drop domain chain_0 cascade")


@needs("do_block", "domain")
def test_arrays_within_arrays_take_bounded_memory(sql: Sql) -> None:
    """The text of an array of arrays in domains doubles with every level; deep ones are refused by the engine."""
    making = "create domain deep_0 as int[]; for i in 1..60 loop execute format('create domain deep_%s as deep_%s[]'"
    sql(f"do $$ begin {making}, i, i - 1); end loop; end $$", timeout_ms=60000)
    assert sql.value("select $1::deep_1 as a", [[[1, 2], [3]]]) == [[1, 2], [3]]
    assert sql.value("select $1::deep_2 as a", [[[[1, 2], [3]], []]]) == [[[1, 2], [3]], []]
    assert sql.value("select null::deep_60 as a") is None
    for depth in (22, 60):
        nested: Any = 1
        for _ in range(depth):
            nested = [nested]
        started = time.monotonic()
        assert sql.fails("select $1::deep_60 as a", [nested])["sqlstate"] == "22P02"
        assert time.monotonic() - started < 5
    sql("drop domain deep_0 cascade")
