"""`database send`: a database goes from one service to another, whatever engines they have, and is compared."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.control import Organization, new_organization
from tests.needs import needs
from tests.service import Service
from tuplegate.cli.sending.definitions import read_definitions
from tuplegate.cli.sending.rows import digest_rows
from tuplegate.client import Client, SqlError

CONTENT = (
    "create schema shop",
    "create type shop.mood as enum ('sad', 'it''s ok')",
    "create table shop.customer (id serial primary key, name text not null, mood shop.mood default 'sad', note jsonb,"
    " tags text[], born date, seen timestamptz, balance numeric(12, 2) check (balance >= 0), pic bytea, f float8,"
    " ok bool)",
    'create table shop."Odd ""orders"""'
    " (id int generated always as identity primary key, customer int references shop.customer, total numeric,"
    " twice numeric generated always as (total * 2) stored, unique (customer, total))",
    "create table shop.nothing (a int)",
    "create index by_name on shop.customer (lower(name))",
    "create view shop.rich as select name from shop.customer where balance > 100",
    "create view shop.a_richer as select name from shop.rich where name <> ''",
    "comment on table shop.customer is 'who buys'",
    "insert into shop.customer (name, mood, note, tags, born, seen, balance, pic, f, ok)"
    " select 'é \"q\" ' || g::text, 'it''s ok', jsonb_build_object('b', g, 'a', array[1.50, null]),"
    " array['a,b', null, '\"'], date '2020-01-01' + g, timestamptz '2020-01-01 00:00:00+00' + g * interval '1 second',"
    " g * 1.25, '\\x00ff'::bytea, g / 3.0, g % 2 = 0 from generate_series(1, 2500) g",
    "insert into shop.customer (name) values ('only this')",
    'insert into shop."Odd ""orders""" (customer, total) select g, g * 1.10 from generate_series(1, 300) g',
)


@pytest.fixture
def source(service: Service) -> Organization:
    return new_organization(service)


@pytest.fixture
def target(service: Service) -> Organization:
    return new_organization(service)


@pytest.fixture
def command(service: Service, source: Organization, target: Organization, tmp_path: Path) -> Command:
    return Command(service, tmp_path, TUPLEGATE_API_KEY=source.key, TUPLEGATE_TO_API_KEY=target.key)


@pytest.fixture
def here(service: Service, source: Organization) -> Iterator[Client]:
    with Client(service.url, source.key) as opened:
        yield opened


@pytest.fixture
def there(service: Service, target: Organization) -> Iterator[Client]:
    with Client(service.url, target.key) as opened:
        yield opened


@needs("postgresql")
def test_a_database_arrives_whole(service: Service, command: Command, here: Client, there: Client) -> None:
    """With its types, keys, checks, defaults, indexes, views, comments and rows; sequences go on where they were."""
    for statement in CONTENT:
        here.query(statement)
    done = command("database", "send", "--to-url", service.url)
    assert done.code == 0, done.err
    assert {line["result"] for line in done.lines} == {"taken", "same"}, done.out
    rows = {line["name"]: line["note"] for line in done.lines if line["kind"] == "rows"}
    assert rows == {
        '"shop"."customer"': "2,501 rows",
        '"shop"."Odd ""orders"""': "300 rows",
        '"shop"."nothing"': "0 rows",
    }
    read = "select * from shop.customer where id in (1, 2500, 2501) order by id"
    assert list(there.query(read)) == list(here.query(read))
    assert there.query("select count(*) as n from shop.a_richer")[0] == {"n": 2420}
    assert there.query("insert into shop.customer (name) values ('next') returning id, mood")[0] == {
        "id": 2502,
        "mood": "sad",
    }
    inserted = there.query('insert into shop."Odd ""orders""" (customer, total) values (1, 5) returning id, twice')[0]
    assert (inserted["id"], int(inserted["twice"])) == (301, 10)
    for refused in (
        "insert into shop.customer (name, balance) values ('x', -1)",
        'insert into shop."Odd ""orders""" (customer, total) values (9999, 1)',
        'insert into shop."Odd ""orders""" (customer, total) values (1, 5)',
        'insert into shop."Odd ""orders""" (id, customer, total) values (7777, 1, 6)',
    ):
        with pytest.raises(SqlError):
            there.query(refused)


@needs("postgresql")
def test_a_database_with_something_in_it_receives_nothing(service: Service, command: Command, there: Client) -> None:
    there.query("create table mine (a int)")
    done = command("database", "send", "--to-url", service.url)
    assert done.code == 6
    assert "not empty" in done.err
    assert command("database", "send").code == 2


def test_only_what_the_catalog_tells_in_full_is_sent(service: Service, command: Command, here: Client) -> None:
    """A database on another engine than PostgreSQL is refused, and nothing is made."""
    done = command("database", "send", "--to-url", service.url)
    is_postgresql = here.health()["engine"]["kind"] == "postgresql"
    assert done.code == (0 if is_postgresql else 6), done.err
    assert ("catalog does not tell" in done.err) is not is_postgresql


def test_a_comparison_sees_each_value_and_no_order(here: Client) -> None:
    """Two tables with the same rows in another order are the same; one digit makes them different."""
    for name, rows in {
        "one": "(1, 'a', 1.5), (2, null, 2.5)",
        "two": "(2, null, 2.5), (1, 'a', 1.5)",
        "three": "(1, 'a', 1.5), (2, null, 2.51)",
        "four": "(1, 'a', 1.5), (2, '', 2.5)",
        "five": "(1, 'a', 1.5), (2, null, 2.5), (2, null, 2.5)",
    }.items():
        here.query(f"create table {name} (a int, b text, c float8)")
        here.query(f"insert into {name} values {rows}")
    digests = {table.name: digest_rows(here, table, table.columns) for table in read_definitions(here).tables}
    assert digests["one"] == digests["two"]
    assert len(set(digests.values())) == 4


@needs("postgresql")
@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("jsonb", ["1.0", "1.00", "1", '"1"', "10", "1e1", '"1e1"', "null"]),
        (
            "json",
            ["1.0", "1.00", "0", "-0", '{"a":1,"a":2}', '{"a":2,"a":1}', '{"a":2}', '[["a",2]]', '"{}"', "{}", "[]"],
        ),
        ("jsonb[]", ["{1.0}", "{1.00}", '{"null"}', "{null}", "[2:2]={1.0}"]),
        ("numeric", ["1.0", "1.00", "0", "NaN"]),
        ("float8", ["0", "-0", "1", "1.0000000000000002"]),
    ],
)
def test_a_comparison_sees_every_digit(here: Client, type_: str, values: list[str]) -> None:
    """Values that are equal as numbers, and not the same text, are different; names of a document have no order."""
    for number, value in enumerate(values):
        here.query(f"create table t{number} as select $1::text::{type_} as v", [value])
    digests = {table.name: digest_rows(here, table, table.columns) for table in read_definitions(here).tables}
    same = {here.query(f"select v::text from t{number}").value() for number in range(len(values))}
    assert len(set(digests.values())) == len(same)
    assert len(same) >= len(values) - 1  # jsonb writes 10 and 1e1 alike
    here.query('create table ordered as select \'{"a": 1, "b": 2}\'::json as v')
    here.query('create table unordered as select \'{"b":2,"a":1}\'::json as v')
    last = {one.name: digest_rows(here, one, one.columns) for one in read_definitions(here).tables}
    assert last["ordered"] == last["unordered"]


@needs("postgresql")
def test_values_arrive_to_the_letter(service: Service, command: Command, here: Client, there: Client) -> None:
    """JSON null is not NULL, and what a tenant's cast would make of a value is not asked."""
    for statement in (
        "create type mood as enum ('sad', 'ok', '')",
        "create function wrong(text) returns mood language sql as $$ select 'sad'::mood $$",
        "create cast (text as mood) with function wrong(text)",
        "create function wrong(mood) returns text language sql as $$ select 'sad' $$",
        "create cast (mood as text) with function wrong(mood)",
        "create domain doc as jsonb",
        "create table load (id int, a jsonb, b json, c doc, d jsonb[], e int[], f float8, g mood, h mood[], i bpchar)",
        "insert into load values (1, 'null', '{\"a\":1 ,\"a\": -0}', 'null', '{\"null\",null}', '[2:3]={1,2}', '-0',"
        " 'ok', '[0:1]={ok,\"\"}', 'x  '), (2, null, 'null', null, null, '{{1},{2}}', '0', '', '{}', ''),"
        " (3, '\"null\"', ' \"a\"\n', '1.00', '{}', '{}', 'NaN', null, null, null)",
    ):
        here.query(statement)
    columns = ", ".join(f"format('%s', {name}), {name} is null" for name in "abcdefghi")
    before = here.query(f"select {columns} from load order by id").tuples()
    sent = command("database", "send", "--to-url", service.url)
    assert there.query(f"select {columns} from load order by id").tuples() == before, sent.out
    assert [line["result"] for line in sent.lines if line["kind"] == "rows"] == ["same"], sent.out
