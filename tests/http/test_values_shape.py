"""What surrounds the values: names of types and columns, the two row modes, big numbers, counts and cuts."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.http.test_values_model import Number, Object, Wire, identifier, open_wire
from tests.http.test_values_types import characters
from tests.needs import Abilities, by_words, needs
from tests.service import Service, Sql, since
from tests.waiting import eventually


@pytest.fixture(scope="module")
def wire(service: Service, abilities: Abilities) -> Iterator[Wire]:
    statements = [
        "drop schema if exists values_shape cascade",
        "create schema values_shape",
        "drop type if exists public.values_mood",
        "create type public.values_mood as enum ('sad', 'happy')",
        "create type values_shape.mood as enum ('sad', 'happy')",
        "create domain values_shape.positive as int8 check (value > 0)",
        "create domain values_shape.digits as numeric",
        "create table values_shape.t (id int4 primary key, name text)",
    ]
    with open_wire(service, *filter(abilities.can_run, statements)) as opened:
        yield opened
        opened.body("drop type public.values_mood")


def types(wire: Wire, select: str) -> Any:
    return wire.body(f"select {select}")["types"]


# -- names of types ------------------------------------------------------------------------------------------------


@needs("domain")
def test_types_have_their_short_names(wire: Wire) -> None:
    """Built-in types without a schema, others with theirs, arrays with brackets whatever their depth."""
    assert types(wire, "1, 1::int2, 'a'::varchar(3), array[1], array[array[1]], 'a'::\"char\", 'a'::char(3)") == [
        *("int4", "int2", "varchar", "int4[]", "int4[]", "char", "bpchar")
    ]
    assert types(wire, "'sad'::public.values_mood, 'sad'::values_shape.mood, array['sad'::values_shape.mood]") == [
        *("public.values_mood", "values_shape.mood", "values_shape.mood[]")
    ]
    assert types(wire, "null::values_shape.t, null::values_shape.t[], array[5::values_shape.positive]") == [
        *("values_shape.t", "values_shape.t[]", "values_shape.positive[]")
    ]


def test_an_answer_without_rows_has_its_types(wire: Wire) -> None:
    """Columns and types are known also where no row is, for types never seen before too."""
    wire.body("create type values_shape.unseen as enum ('a')")
    body = wire.body("select 'a'::values_shape.unseen as x, array['a'::values_shape.unseen] as y where false")
    assert (body["columns"], body["types"], body["rows"]) == (
        ["x", "y"],
        ["values_shape.unseen", "values_shape.unseen[]"],
        [],
    )
    wire.body("drop type values_shape.unseen")


def test_a_renamed_type_has_its_new_name(wire: Wire, read_sql: Sql) -> None:
    """For whoever asks, with whichever key."""
    wire.body("create type values_shape.before as enum ('a')")
    select = "select 'a'::values_shape.{0} v, array['a'::values_shape.{0}] a"
    for reader in (wire.body, read_sql):
        assert reader(select.format("before"))["types"] == ["values_shape.before", "values_shape.before[]"]
    wire.body("alter type values_shape.before rename to after")
    for reader in (wire.body, read_sql):
        assert reader(select.format("after"))["types"] == ["values_shape.after", "values_shape.after[]"]
    wire.body("drop type values_shape.after")


@needs("function_plpgsql")
@pytest.mark.parametrize("how", ["do", "function", "schema", "table"])
def test_a_type_renamed_in_other_ways_has_its_new_name(wire: Wire, how: str) -> None:
    """By a DO block, a function, with its schema or as the row type of a table."""
    wire.body("drop schema if exists values_renamed cascade")
    wire.body("drop schema if exists values_renamed2 cascade")
    wire.body("create schema values_renamed")
    wire.body("create table values_renamed.before (a int4)")
    rename = "alter table values_renamed.before rename to after"
    wire.body(
        f"""create function values_renamed.change() returns text language plpgsql
            as $$ begin {rename}; return 'done'; end $$"""
    )
    assert types(wire, "null::values_renamed.before") == ["values_renamed.before"]
    wire.body(
        {
            "do": f"do $$ begin {rename}; end $$",
            "function": "select values_renamed.change()",
            "schema": "alter schema values_renamed rename to values_renamed2",
            "table": rename,
        }[how]
    )
    name = "values_renamed2.before" if how == "schema" else "values_renamed.after"
    if how == "function":
        # The service cannot see what a function did; it asks again for types that it has known for a second.
        eventually(lambda: types(wire, f"null::{name}") == [name])
    assert types(wire, f"null::{name}") == [name]
    wire.body(f"drop schema {name.split('.')[0]} cascade")


@needs("domain")
def test_a_type_made_anew_is_another(wire: Wire) -> None:
    """A domain of numbers that becomes an enum, then an array, under one name, is each time what it is now."""
    wire.body("create domain values_shape.same as int4")
    assert wire.rows("select array[5::values_shape.same]") == [[[Number("5")]]]
    wire.body("drop domain values_shape.same")
    wire.body("create type values_shape.same as enum ('5')")
    assert wire.rows("select array['5'::values_shape.same], '5'::values_shape.same") == [[["5"], "5"]]
    wire.body("drop type values_shape.same")
    wire.body("create domain values_shape.same as numeric[]")
    assert wire.rows("select '{5.0}'::values_shape.same") == [[[Number("5.0")]]]
    wire.body("drop domain values_shape.same")


@needs("alter_type")
def test_a_table_whose_column_changes_its_type(wire: Wire) -> None:
    """The same statement gives the column as it is now."""
    wire.body("create table values_shape.changing (c int4)")
    wire.body("insert into values_shape.changing values (5)")
    select = "select * from values_shape.changing"
    assert wire.body(select)["types"] == ["int4"]
    wire.body("alter table values_shape.changing alter c type numeric(10, 2)")
    assert (wire.body(select)["types"], wire.rows(select)) == (["numeric"], [[Number("5.00")]])
    wire.body("alter table values_shape.changing rename c to d")
    assert wire.body(select)["rows"] == [Object((("d", Number("5.00")),))]
    wire.body("drop table values_shape.changing")


# -- rows and columns ----------------------------------------------------------------------------------------------


@needs("postgresql")  # others change letters to what they are composed of
@settings(max_examples=40, deadline=None, print_blob=True)
@given(names=st.lists(st.text(characters, min_size=1, max_size=15), min_size=1, max_size=8))
@example(
    names=['"', "\\", "a\nb", "\x01", "\x7f", "é", "😀" * 15, "f0", "f1", "self", "__class__", "a b", "'", "\u2028"]
)
@example(names=["a", "a", "a"])
@example(names=["a", "b", "a"])
@example(names=["x" * 63, "select", "A"])
def test_columns_may_have_any_name(wire: Wire, names: list[str]) -> None:
    """Objects are keyed by the names, the later of two of one name wins; arrays have every column."""
    assume(all(len(name.encode()) <= 63 for name in names))
    statement = "select " + ", ".join(f"{i} as {identifier(name)}" for i, name in enumerate(names))
    numbers = [Number(str(i)) for i in range(len(names))]
    body = wire.body(statement)
    assert body["columns"] == names
    assert [dict(row.pairs) for row in body["rows"]] == [dict(zip(names, numbers, strict=True))]
    assert len(body["rows"][0].pairs) == len(set(names))
    assert wire.rows(statement) == [numbers]


@needs("postgresql")
def test_a_long_name_is_cut_where_the_engine_cuts_it(wire: Wire) -> None:
    """At 63 bytes, between characters, with the engine's notice."""
    body = wire.body(f"select 1 as {identifier('é' * 40)}")
    assert body["columns"] == ["é" * 31]
    assert body["rows"] == [Object((("é" * 31, Number("1")),))]
    assert len(body["notices"]) == 1


@needs("empty_select")
@pytest.mark.parametrize("statement", ["select from generate_series(1, 3)", "table values_shape.nothing"])
def test_rows_without_columns_are_rows(wire: Wire, statement: str) -> None:
    """Three rows of nothing are three empty objects or arrays, and no row was affected."""
    wire.body("create table if not exists values_shape.nothing ()")
    wire.body("truncate values_shape.nothing")
    wire.body("insert into values_shape.nothing select from generate_series(1, 3)")
    body = wire.body(statement)
    assert (body["columns"], body["types"], body["rows"]) == ([], [], [Object(())] * 3)
    assert body["affected_rows"] == Number("0")
    assert wire.rows(statement) == [[], [], []]


@needs("postgresql")
def test_the_most_columns_that_the_engine_has(wire: Wire) -> None:
    """1,664 in a SELECT, in both row modes."""
    statement = "select " + ", ".join(f"{i} as c{i}" for i in range(1664)) + " from generate_series(1, 3)"
    numbers = [Number(str(i)) for i in range(1664)]
    assert wire.rows(statement) == [numbers] * 3
    named = Object(tuple((f"c{i}", number) for i, number in enumerate(numbers)))
    assert wire.body(statement)["rows"] == [named] * 3
    assert wire.error(statement.replace(" from", ", 1 from"))["sqlstate"] == "54011"


def test_many_rows_arrive_in_order(wire: Wire) -> None:
    """Also over several of the portions in which the driver hands them over, NULLs and arrays among them."""
    rows = wire.rows("select g, nullif(g % 7, 0), array[g], (g / 2.0)::numeric(10, 1) from generate_series(1, 2345) g")
    assert len(rows) == 2345
    for g, row in enumerate(rows, start=1):
        half = Number(f"{g // 2}.{5 * (g % 2)}")
        assert row == [Number(str(g)), Number(str(g % 7)) if g % 7 else None, [Number(str(g))], half]


@needs("postgresql")
def test_values_differ_from_portion_to_portion(wire: Wire) -> None:
    """A column whose odd values come late, after portions without any, is right in each."""
    rows = wire.rows(
        """select case when g = 1200 then 'NaN'::float8 when g = 1300 then null else g end,
                  case when g = 1200 then timestamptz '0044-03-15 12:00:00+00 BC' else '2026-11-14 00:00:00+00' end,
                  case when g = 1200 then E'{"a":\\n1}'::json else '[]' end
             from generate_series(1, 1500) g"""
    )
    assert rows[1199] == ["NaN", "0044-03-15T12:00:00+00 BC", Object((("a", Number("1")),))]
    assert rows[1299] == [None, "2026-11-14T00:00:00Z", []]
    assert all(row[1:] == ["2026-11-14T00:00:00Z", []] for i, row in enumerate(rows) if i != 1199)


# -- big numbers ---------------------------------------------------------------------------------------------------


@needs("domain")
def test_big_numbers_as_strings(wire: Wire) -> None:
    """Every int8 and numeric is a string then, in arrays and under domains too; smaller numbers stay numbers."""
    columns = """9223372036854775807, 1.50::numeric, array[1::int8, null], array[[1.50, 2], [3, 'NaN'::numeric]],
                 5::int4, 1.5::float8, 7::oid, null::numeric, 'NaN'::numeric, 5::values_shape.positive,
                 array[5::values_shape.positive], array[1.50::values_shape.digits], array[2::int4], true,
                 '{"a":12345678901234567890}'::jsonb, count(*)"""
    strings = wire.rows(f"select {columns}", big_numbers="string")
    document = Object((("a", Number("12345678901234567890")),))
    assert strings == [
        [
            *("9223372036854775807", "1.50", ["1", None], [["1.50", "2"], ["3", "NaN"]], Number("5"), Number("1.5")),
            *(Number("7"), None, "NaN", "5", ["5"], ["1.50"], [Number("2")], True, document, "1"),
        ]
    ]
    numbers = wire.rows(f"select {columns}")
    assert numbers[0][:3] == [Number("9223372036854775807"), Number("1.50"), [Number("1"), None]]
    assert numbers[0][9:12] == [Number("5"), [Number("5")], [Number("1.50")]]
    assert wire.rows("select $1::int8 + 0, $2::numeric[]", [strings[0][0], strings[0][3]], big_numbers="string") == [
        [strings[0][0], strings[0][3]]
    ]


# -- cuts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["g", "'sad'::values_shape.mood", "now()"])
@pytest.mark.parametrize("there", [0, 1, 3, 499, 500, 501, 1000, 1001])
def test_max_rows_cuts_and_says_so(wire: Wire, column: str, there: int) -> None:
    """`truncated` is there exactly when rows are missing, at every border of the driver's portions."""
    for most in {0, 1, there - 1, there, there + 1, 500} - {-1}:
        body = wire.body(f"select {column} from generate_series(1, {there}) g", max_rows=most)
        assert len(body["rows"]) == min(most, there)
        assert body.get("truncated", False) is (most < there)


def test_max_rows_undoes_no_write(wire: Wire) -> None:
    """All rows are written and counted, although few are returned."""
    wire.body("truncate values_shape.t")
    insert = "insert into values_shape.t select g, 'a' from generate_series(1, 1200) g returning id"
    body = wire.body(insert, max_rows=1)
    assert (len(body["rows"]), body["truncated"], body["affected_rows"]) == (1, True, Number("1200"))
    assert wire.value("select count(*) from values_shape.t") == Number("1200")


def test_a_new_type_does_not_cut_an_answer(service: Service, wire: Wire) -> None:
    """An answer within the limit is whole, also where one of its types was never seen before."""
    wire.body("create type values_shape.fresh as enum ('a')")
    answer = wire.send("select 'a'::values_shape.fresh, repeat('x', 100000) from generate_series(1, 400)")
    assert answer.status_code == 200
    assert len(answer.content) > 40_000_000
    assert answer.content.endswith(b"}")
    assert b'"truncated"' not in answer.content[-1000:]
    wire.body("drop type values_shape.fresh")


# -- counts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "affected", "rows"),
    by_words([
        ("insert into values_shape.t select g, 'new' from generate_series(10, 12) g", 3, 0),
        ("insert into values_shape.t values (10, 'a') returning id", 1, 1),
        ("insert into values_shape.t values (1, 'a') on conflict do nothing", 0, 0),
        ("insert into values_shape.t values (1, 'a') on conflict (id) do update set name = 'b' returning name", 1, 1),
        ("update values_shape.t set name = 'b'", 5, 0),
        ("update values_shape.t set name = 'b' where id > 2 returning *", 3, 3),
        ("update values_shape.t set name = 'b' where false returning *", 0, 0),
        ("delete from values_shape.t where id < 3", 2, 0),
        ("delete from values_shape.t returning id, name", 5, 5),
        (
            """merge into values_shape.t t using generate_series(4, 7) g on t.id = g
               when matched then update set name = 'm' when not matched then insert values (g, 'n')""",
            4,
            0,
        ),
        pytest.param(
            """merge into values_shape.t t using generate_series(4, 7) g on t.id = g
               when matched then delete when not matched then do nothing returning merge_action(), t.id""",
            2,
            2,
            marks=since(17),
        ),
        ("create table values_shape.copy as select * from values_shape.t", 5, 0),
        ("select * into values_shape.copy from values_shape.t where id > 3", 2, 0),
        ("with x as (select 1) select * into values_shape.copy from values_shape.t", 5, 0),
        ("create table values_shape.copy as select * from values_shape.t with no data", 0, 0),
        ("select * from values_shape.t", 0, 5),
        ("table values_shape.t", 0, 5),
        ("values (1), (2)", 0, 2),
        ("with x as (delete from values_shape.t returning id) select * from x", 0, 5),
        ("with x as (insert into values_shape.t values (9, 'x') returning id) select from x", 0, 1),
        ("with x as (select 9 as id) insert into values_shape.t select id, 'x' from x", 1, 0),
        ("with x as (select 1 as id) update values_shape.t set name = 'x' from x where t.id = x.id returning *", 1, 1),
        ("select set_config('app.x', 'y', true) from values_shape.t", 0, 5),
        ("insert into values_shape.t values (20, set_config('app.x', 'y', true)) returning id", 1, 1),
        ("truncate values_shape.t", 0, 0),
        ("do $$ begin delete from values_shape.t; end $$", 0, 0),
        ("explain (costs off) select 1", 0, 1),
        ("show TimeZone", 0, 1),
    ]),
)  # fmt: skip
def test_affected_rows(wire: Wire, statement: str, affected: int, rows: int) -> None:
    """The count of what was written by the statement itself; 0 for one that returns rows of a SELECT."""
    wire.body("drop table if exists values_shape.copy")
    wire.body("truncate values_shape.t")
    wire.body("insert into values_shape.t select g, 'old' from generate_series(1, 5) g")
    body = wire.body(statement)
    assert (body["affected_rows"], len(body["rows"])) == (Number(str(affected)), rows)


@pytest.mark.parametrize("count", [499, 500, 501, 1000])
def test_affected_rows_at_the_border_of_a_portion(wire: Wire, count: int) -> None:
    """The count is that of all rows, however the driver hands them over."""
    wire.body("truncate values_shape.t")
    body = wire.body(f"insert into values_shape.t select g, 'a' from generate_series(1, {count}) g returning id")
    assert (body["affected_rows"], len(body["rows"])) == (Number(str(count)), count)
