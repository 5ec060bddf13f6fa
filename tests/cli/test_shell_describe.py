"""`\\d` and its like: what a database holds."""

from collections.abc import Iterator

import pytest

from tests.cli.command import Command
from tests.service import Service
from tuplegate.client import Client

SETUP = (
    "create schema shelf",
    "create table shelf.author (id int generated always as identity primary key, name text not null unique,"
    " born date default '1900-01-01' check (born > '1000-01-01'), age int generated always as (2000) stored)",
    "comment on table shelf.author is 'people who write'",
    "create table shelf.book (id int primary key, author_id int not null references shelf.author, title varchar(40),"
    " price numeric(8, 2)) ",
    "create index book_title on shelf.book (lower(title))",
    "create function shelf.noted() returns trigger language plpgsql as $$ begin return new; end $$",
    "create trigger book_noted before insert on shelf.book for each row execute function shelf.noted()",
    "create view shelf.titles as select title from shelf.book",
    "create materialized view shelf.prices as select price from shelf.book",
    "create sequence shelf.numbers start 7",
    "create table shelf.log (at date) partition by range (at)",
    "create table shelf.log_2026 partition of shelf.log for values from ('2026-01-01') to ('2027-01-01')",
    "create type shelf.mood as enum ('good', 'bad')",
    'create table shelf."Odd Name" ("A b" int)',
)


@pytest.fixture
def shelf(service: Service) -> Iterator[None]:
    with Client(service.url, service.key) as client:
        client.transaction(SETUP)
        yield
        client.query("drop schema shelf cascade")


@pytest.mark.usefixtures("shelf")
def test_all_about_a_table(command: Command) -> None:
    """Columns, types, defaults, indexes, constraints, keys both ways, triggers."""
    author = command("shell", "-o", "table", given="\\d shelf.author").out
    for wanted in (
        "table shelf.author: people who write",
        "id      integer  false     generated always as identity",
        "name    text     false     NULL",
        "born    date     true      '1900-01-01'::date",
        "generated always as (2000) stored",
        "author_pkey      primary key",
        "author_name_key  unique",
        "CHECK (born > '1000-01-01'::date)",
        "referenced by",
        "shelf.book  book_author_id_fkey  FOREIGN KEY (author_id) REFERENCES shelf.author(id)",
    ):
        assert wanted in author, author
    book = command("shell", "-o", "table", given="\\d shelf.book").out
    for wanted in (
        "title      character varying(40)",
        "lower((title)::text)",
        "foreign keys",
        "book_noted  on       CREATE TRIGGER book_noted BEFORE INSERT ON shelf.book",
    ):
        assert wanted in book, book


@pytest.mark.usefixtures("shelf")
def test_all_about_what_is_no_table(command: Command) -> None:
    """Views, sequences, indexes, partitions, and names that need quotes."""
    names = ("titles", "prices", "numbers", "book_title", "log", '"Odd Name"')
    given = "".join(f"\\d shelf.{name}\n" for name in names)
    shown = command("shell", "-o", "table", given=given).out
    for wanted in (
        "view shelf.titles",
        "title\n   FROM shelf.book;",  # before version 16 the engine writes `book.title`
        "materialized view shelf.prices",
        "sequence shelf.numbers",
        "bigint      7",
        "index shelf.book_title",
        "RANGE (at)",
        "FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')",
        'table shelf."Odd Name"',
    ):
        assert wanted in shown, shown
    parts = command("shell", "-o", "table", given="\\d shelf.log_2026").out
    assert "partition or child of" in parts


@pytest.mark.usefixtures("shelf")
def test_a_pattern_stands_for_several_relations(command: Command) -> None:
    """And what is not there is said, with an exit code of its own."""
    shown = command("shell", "-o", "table", given="\\d shelf.b*").out
    assert "table shelf.book\n" in shown
    assert "shelf.author\n" not in shown
    for name in ("nowhere", "nowhere*"):
        missing = command("shell", given=f"\\d {name}")
        assert (missing.code, "\\d lists them" in missing.err) == (6, True)


@pytest.mark.usefixtures("shelf")
def test_lists_of_what_there_is(command: Command) -> None:
    """Each kind has its command; patterns narrow them down."""

    def listed(line: str) -> list[str]:
        return [row["name"] for row in command("shell", given=line).lines]

    assert listed("\\dt shelf.*") == ["Odd Name", "author", "book", "log", "log_2026"]
    assert listed("\\dt shelf.?ook") == ["book"]
    assert listed('\\dt shelf."Odd Name"') == ["Odd Name"]
    assert listed("\\dv shelf.*") == ["titles"]
    assert listed("\\dm shelf.*") == ["prices"]
    assert listed("\\ds shelf.*") == ["author_id_seq", "numbers"]
    assert listed("\\di shelf.book*") == ["book_pkey", "book_title"]
    assert listed("\\df shelf.*") == ["noted"]
    assert set(listed("\\df lower")) == {"lower"}
    assert "shelf" in listed("\\dn")
    assert listed("\\dT shelf.*") == ["shelf.mood"]
    assert "plpgsql" in listed("\\dx")
    assert "main" in listed("\\l")
    assert {"author", "titles", "prices", "numbers"} <= set(listed("\\d"))
    [role] = command("shell", given="\\du").lines
    assert role["role"].endswith("_w")
    [here] = command("shell", given="\\conninfo").lines
    assert here["address"] == command.env["TUPLEGATE_URL"]


def test_help_names_every_command(command: Command) -> None:
    """And where the reference of SQL is."""
    from tuplegate.cli.shell.commands import COMMANDS

    shown = command("shell", given="\\?").out
    for name in COMMANDS:
        assert f"{name} " in shown or f"{name}[+] " in shown
    assert command("shell", given="\\h create table").out.strip().endswith("/sql-createtable.html")


@pytest.mark.usefixtures("shelf")
def test_a_plus_shows_more(command: Command) -> None:
    """With every command that lists something; others say that they take none."""
    from tuplegate.cli.shell.commands import COMMANDS

    lists = [name for name, entry in COMMANDS.items() if entry.run_plus is not None]
    assert lists == ["\\d", "\\dt", "\\dv", "\\dm", "\\di", "\\ds", "\\dn", "\\df", "\\dT", "\\dx", "\\du", "\\l"]
    done = command("shell", given="".join(f"{name}+\n" for name in lists))
    assert done.code == 0, done.err
    found = {row["name"]: row for row in done.lines if "name" in row}
    assert (found["author"]["description"], found["author"]["persistence"]) == ("people who write", "permanent")
    assert found["shelf.mood"]["elements"] == "good, bad"
    assert found["plpgsql"]["objects"] > 0
    assert found["noted"]["language"] == "plpgsql"
    described = command("shell", "-o", "table", given="\\d+ shelf.book\n\\dt+ shelf.au*;\n\\x+\n")
    assert (described.code, "\\x takes no +" in described.err) == (2, True)
    for wanted in ("storage of columns", "access_method", "people who write"):
        assert wanted in described.out
