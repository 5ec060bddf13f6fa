"""Values of every type, both ways, against the real engine: what it writes as text is what the JSON must say.

tests/extended/test_more_values.py tries more of them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.http.test_values_model import Number, Wire, open_wire, parse, quote
from tests.http.test_values_types import DOMAINS, KINDS, LABELS, OWN_KINDS, SCHEMA, Kind, strings
from tests.needs import Abilities, needs
from tests.service import Service

ALL = [*KINDS, *OWN_KINDS, *(kind for kind, _ in DOMAINS)]
ARRAY_NAMES = {kind.sql: array_name for kind, array_name in DOMAINS}

few = settings(max_examples=2, deadline=None, print_blob=True)
"""For tests that are run once for each type. An example is a batch of values: a request costs more than all of them."""

_EDGES = {
    "time": "'23:59:60'::time",
    "time(3)": "'23:59:60'::time",
    "timetz": "'00:00:00-15:59:59'::timetz",
    "regproc": "'now'::regproc",
    "int2vector": "''::int2vector",
    "oidvector": "''::oidvector",
}
"""Values that not every engine takes which has the type."""


def _needs_of(kind: Kind) -> list[str]:
    return [f"type {kind.sql}", *(f"value {edge}" for sql, edge in _EDGES.items() if kind.sql == sql)]


def _needs_of_column(kind: Kind) -> list[str]:
    arrays = ["value '{pg_class}'::regclass[]"] if kind.sql.startswith("reg") else []
    return [*_needs_of(kind)[1:], f"column {kind.sql}", f"column {kind.sql}[]", *arrays]


every_kind = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=needs(*_needs_of(kind)), id=kind.sql) for kind in ALL]
)
every_column = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=needs(*_needs_of_column(kind)), id=kind.sql) for kind in ALL]
)


@pytest.fixture(scope="module")
def wire(service: Service, abilities: Abilities) -> Iterator[Wire]:
    with open_wire(service, *filter(abilities.can_run, SCHEMA)) as opened:
        opened.has_dimensions = abilities.can("arrays")
        if abilities.can("format"):
            yield opened
            return
        database = str(opened.value("select current_database()"))
        with psycopg.connect(service.conninfo(database), autocommit=True) as opened.direct:
            yield opened


def literal(kind: Kind, text: str | None) -> str:
    return f"null::{kind.sql}" if text is None else f"{quote(text)}::{kind.sql}"


def array_literal(kind: Kind, texts: Sequence[str | None]) -> str:
    return f"array[{', '.join(literal(kind, text) for text in texts)}]::{kind.sql}[]"


def read(wire: Wire, kind: Kind, texts: Sequence[str | None]) -> list[tuple[Any, str | None]]:
    """Each value as the service gives it, and as the engine writes it; a column of as many rows."""
    listed = ", ".join(f"({i}, {literal(kind, text)})" for i, text in enumerate(texts))
    if wire.direct is not None:
        one = f"select v from (values {listed}) t(i, v) order by i"
        return list(zip((row[0] for row in wire.rows(one)), wire.read_directly(one), strict=True))
    shown = "case when v is not null or format('%s', v) <> '' then format('%s', v) end"
    body = wire.body(f"select v, {shown} from (values {listed}) t(i, v) order by i", row_mode="arrays")
    assert body["types"] == [kind.shown, "text"]
    return [(value, text) for value, text in body["rows"]]


def batches(kind: Kind) -> st.SearchStrategy[list[str | None]]:
    return st.lists(st.one_of(kind.texts, kind.texts, kind.texts, st.none()), min_size=12, max_size=48)


def expected(kind: Kind, text: str | None) -> Any:
    return None if text is None else kind.rule(text)


@every_kind
@few
@given(data=st.data())
def test_a_value_is_what_the_engine_writes(wire: Wire, kind: Kind, data: st.DataObject) -> None:
    """Each value of a column follows from the engine's text by the rule for its type."""
    check_values(wire, kind, data)


def check_values(wire: Wire, kind: Kind, data: st.DataObject) -> None:
    texts = data.draw(batches(kind))
    for batch in (texts, [text for text in texts if text is not None]):  # columns without NULLs go another way
        if batch:
            for value, text in read(wire, kind, batch):
                assert value == expected(kind, text)


@every_kind
@needs("arrays")
@few
@given(data=st.data())
def test_an_array_is_its_elements_nested(wire: Wire, kind: Kind, data: st.DataObject) -> None:
    """Arrays of any depth and lower bound, with NULLs, hold what their elements are by themselves."""
    check_arrays(wire, kind, data)


def check_arrays(wire: Wire, kind: Kind, data: st.DataObject) -> None:
    texts = data.draw(batches(kind))
    values = [value for value, _ in read(wire, kind, texts)]
    one = array_literal(kind, texts)
    low = f"(case when v::text = '{{}}' then v else format('[-1:%s]=%s', array_length(v, 1) - 2, v)::{kind.sql}[] end)"
    body = wire.body(
        f"select v, array[v, v], array[array[v], array[v]], {low}, v[9999:], null::{kind.sql}[] "
        f"from (select {one}) t(v)",
        row_mode="arrays",
    )
    assert body["types"] == [ARRAY_NAMES.get(kind.sql, kind.shown + "[]")] * 6
    assert body["rows"] == [[values, [values, values], [[values], [values]], values, [], None]]


@every_column
@few
@given(data=st.data())
def test_what_is_read_can_be_sent_back(wire: Wire, kind: Kind, data: st.DataObject) -> None:
    """A column of the same type takes what was read, a value or an array, and then holds the same."""
    check_both_ways(wire, kind, data)


def check_both_ways(wire: Wire, kind: Kind, data: st.DataObject) -> None:
    texts = data.draw(batches(kind))
    pairs = read(wire, kind, texts)
    values = [value for value, _ in pairs]
    one = array_literal(kind, texts)
    # Arrays inside jsonb[] are JSON arrays, not dimensions.
    two = one if kind.is_json or not wire.has_dimensions else f"array[{one}, {one}]"
    [[array, array_text]] = wire.rows(f"select v, format('%s', v) from (select {two}) t(v)")

    table = f"values_test.kept_{ALL.index(kind)}"
    wire.body(f"create table if not exists {table} (c {kind.sql}, a {kind.sql}[])")
    places = ", ".join(f"(${i}, ${len(values) + 1})" for i in range(1, len(values) + 1))
    kept = wire.rows(
        f"insert into {table} values {places} returning c, a, format('%s', c), format('%s', a)",
        [*values, array],
    )

    assert [row[0] for row in kept] == values
    assert all(row[1] == array for row in kept)
    if not kind.is_json and wire.direct is None:  # JSON null becomes NULL, white space between tokens is the client's
        assert [row[2] for row in kept] == [text or "" for _, text in pairs]
        assert all(row[3] == array_text for row in kept)


@given(texts=st.lists(strings, min_size=1, max_size=30))
@settings(max_examples=40, deadline=None, print_blob=True)
def test_text_comes_back_as_it_was_sent(wire: Wire, texts: list[str]) -> None:
    """Any text, as a literal, a parameter, an element and a key, is the same in the answer."""
    listed = ", ".join(quote(text) for text in texts)
    places = ", ".join(f"${i}::text" for i in range(2, len(texts) + 2))
    [row] = wire.rows(
        f"select array[{listed}]::text[], $1::text[], array[{places}], to_jsonb($1::text[]), {listed}", [texts, *texts]
    )
    assert row == [texts, texts, texts, texts, *texts]


@needs("domain")
@pytest.mark.parametrize("name", ["d_ints", "d_numerics", "d_times", "d_texts"])
def test_a_domain_over_an_array_is_an_array(wire: Wire, name: str) -> None:
    """Its elements follow their own rule, also where the domain is itself the element of an array."""
    text, value = {
        "d_ints": ("{1,NULL,3}", [Number("1"), None, Number("3")]),
        "d_numerics": ("{1.50,NULL,NaN}", [Number("1.50"), None, "NaN"]),
        "d_times": ('{"2026-11-14 23:57:08+00",infinity}', ["2026-11-14T23:57:08Z", "infinity"]),
        "d_texts": ('{a,"b c","{}",NULL,""}', ["a", "b c", "{}", None, ""]),
    }[name]
    type = f"values_test.{name}"
    [row] = wire.rows(f"select v, array[v, null::{type}, v], array[array[v]] from (select {quote(text)}::{type}) t(v)")
    assert row == [value, [value, None, value], [[value]]]
    back = "select $1::{0} = {1}::{0}, $2::{0}[] = array[{1}::{0}, null::{0}, {1}::{0}]"
    assert wire.rows(back.format(type, quote(text)), row[:2]) == [[True, True]]


def test_records_are_the_engines_text(wire: Wire) -> None:
    """A row without a type of its own is a string, and an array of them an array of strings."""
    body = wire.body(
        """select row(1, 'a "b"', null, timestamp '2026-11-14 00:00:00'), array[row(1, 'x'), row(2, 'y,z')],
                  row(), kept from (values (1, row('{a}'::text[], 'happy'::values_test.mood))) kept""",
        row_mode="arrays",
    )
    assert body["types"] == ["record", "record[]", "record", "record"]
    assert body["rows"] == [['(1,"a ""b""",,"2026-11-14 00:00:00")', ["(1,x)", '(2,"y,z")'], "()", '(1,"({a},happy)")']]


def test_numbers_keep_all_their_digits(wire: Wire, abilities: Abilities) -> None:
    """The largest numbers that the engine has come out digit by digit, also as a parameter."""
    huge = "9" * 131072 + "." + "1" * 16383 if abilities.can("postgresql") else "9" * 1000 + "." + "1" * 500
    assert wire.value("select $1::numeric", [Number(huge)]) == Number(huge)
    assert wire.value("select $1::text", [Number(huge)]) == huge
    assert wire.value("select array[$1::numeric]", [Number("1" * 1000)]) == [Number("1" * 1000)]
    assert wire.value("select 9223372036854775807") == Number("9223372036854775807")


def test_documents_keep_their_digits_keys_and_order(wire: Wire, abilities: Abilities) -> None:
    """json is given as it was stored, with white space instead of raw line ends; jsonb as the engine stores it."""
    assert wire.value("""select '{"b":1,"a":1.0,"b":2}'::jsonb""") == parse('{"a":1.0,"b":2}')
    if not abilities.can("postgresql"):
        return  # json is jsonb there
    document = '{"z":1.10,"a":12345678901234567890.12345678901234567890,\r\n"a":{"":[]},\t"n":1E400}'
    stored = wire.send(f"select {quote(document)}::json v")
    assert f'"v":{document.replace(chr(13), " ").replace(chr(10), " ")}' in stored.text
    assert wire.value(f"select {quote(document)}::json") == parse(document)


def test_time_has_the_contracts_form(wire: Wire) -> None:
    """The examples of the contract, and the forms outside of its pattern."""
    assert wire.rows(
        """select timestamptz '2026-11-14 23:57:08.741335+00', timestamp '2026-11-14 23:57:08.741335',
                  date '2026-11-14', time '23:57:08', date 'infinity', date '-infinity',
                  timestamptz '0044-03-15 12:00:00+00 BC', timestamp '0044-03-15 12:00:00 BC', date '0044-03-15 BC',
                  bytea 'hi'"""
    ) == [
        [
            *("2026-11-14T23:57:08.741335Z", "2026-11-14T23:57:08.741335", "2026-11-14", "23:57:08", "infinity"),
            *("-infinity", "0044-03-15T12:00:00+00 BC", "0044-03-15T12:00:00 BC", "0044-03-15 BC", "\\x6869"),
        ]
    ]


@needs("value 1 / (timestamptz 'infinity' > timestamptz '294276-12-31 23:59:59.999999+00')::int")
def test_a_time_beyond_all_others_is_a_word(wire: Wire) -> None:
    assert wire.rows("select timestamptz 'infinity', timestamp '-infinity'") == [["infinity", "-infinity"]]


def test_every_label_of_an_enum_arrives(wire: Wire) -> None:
    """Quotes, commas, braces, NULL as a word and line ends in a label are just text."""
    assert wire.value("select enum_range('happy'::values_test.mood)") == list(LABELS)


@needs("type aclitem")
def test_pseudo_types_are_the_engines_text(wire: Wire) -> None:
    """void is an empty string, a literal of no type is text, and a lone NULL is null."""
    body = wire.body("select pg_sleep(0), 'a', null, b'101', '{}'::aclitem[]", row_mode="arrays")
    assert body["types"] == ["void", "text", "text", "bit", "aclitem[]"]
    assert body["rows"] == [["", "a", None, "101", []]]


def test_a_stream_has_the_same_values(wire: Wire, abilities: Abilities) -> None:
    """A row of every type is the same bytes in a stream as in a buffered answer."""
    with_values = [
        *("true", "1.50::numeric", "'NaN'::float8", "now() - now()", "'x'::bytea", "array[1,null]", "null"),
        *("timestamptz '2026-11-14 00:00:00+00'", "'{\"a\":\n1}'::json", "'happy'::values_test.mood", "array[1.5]"),
        *("array['it''s'::values_test.mood]",),
        *(("array[5::values_test.d_int]", "'(1,1),(0,0)'::box") if abilities.can("domain") else ()),
    ]
    statement = "select " + ", ".join(f"{value} c{i}" for i, value in enumerate(with_values))
    streamed = wire.client.post(
        "/v1/query", json={"sql": statement, "row_mode": "arrays"}, headers={"Accept": "application/x-ndjson"}
    )
    lines = [dict(parse(line).pairs) for line in streamed.text.splitlines() if line]
    assert [line["event"] for line in lines] == ["columns", "row", "done"]
    assert [lines[1]["data"]] == wire.rows(statement)
