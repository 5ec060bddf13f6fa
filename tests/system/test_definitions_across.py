"""Definitions and several workers: once a change of them is answered, every worker reads a statement by the new ones.

A statement comes often at one worker, so that it is kept prepared there. Another worker changes what it means. The
first worker must then answer as the engine answers a text that it has never seen.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.control import engine, new_organization
from tests.needs import needs, needs_of
from tests.service import Service, running_service
from tests.workers import Caller, callers

OFTEN = 8
"""Often enough for the engine to have planned it for any value."""


@pytest.fixture(scope="module")
def two() -> Iterator[Service]:
    with running_service("--workers", "2") as running:
        yield running


@pytest.fixture
def pair(two: Service) -> Iterator[list[Caller]]:
    """A client of each worker, in a database of its own: nothing is kept beside code that another test has stored."""
    found = callers(two, new_organization(two).control.token)
    yield found
    for caller in found:
        caller.close()


@dataclass(frozen=True)
class Case:
    """A statement, what is there before it comes often, and a change of its meaning. `seen` is what it answers after
    the change, or what `question` answers behind it."""

    name: str
    before: list[str]
    statement: str
    change: list[str]
    seen: Any
    params: list[Any] = field(default_factory=list)
    after: list[Any] | None = None
    """Other parameters, for the time after the change."""
    question: str = ""


REMEMBER = (
    "create function remember() returns text language sql begin atomic select set_config('app.seen', 'x', false); end"
)
"""Leaves a setting on the connection."""

UUID = "ABCDEF00-0000-4000-8000-00000000ABCD"

CASES = [
    Case(
        "an enumeration's value that is stored",
        ["create type mood as enum ('a', 'b')", "create table p (id int, e mood)", "insert into p values (1, 'b')"],
        "update p set e = 'a' where id = $1",
        ["alter type mood rename value 'a' to 'fine'", "alter type mood add value 'a'"],
        "a",
        [1],
        question="select e::text from p where id = 1",
    ),
    Case(
        "an enumeration's value that is compared",
        ["create type mood as enum ('a', 'b')", "create table p (id int, e mood)", "insert into p values (1, 'a')"],
        "select count(*) from p where e = 'a'",
        ["alter type mood rename value 'a' to 'fine'", "alter type mood add value 'a'"],
        0,
    ),
    Case(
        "a parameter's type, by a column that it is stored in",
        ["create table p (id int, a int)"],
        "insert into p values (1, $1)",
        ["truncate p", "alter table p alter a type text"],
        "+7",
        [7],
        ["+7"],
        question="select a from p",
    ),
    Case(
        "a parameter's type, by a column that it is compared with",
        ["create table p (id int)", "insert into p values (1)"],
        "select count(*) from p where id = $1",
        ["alter table p alter id type bigint", "insert into p values (3000000000)"],
        1,
        [1],
        [3000000000],
    ),
    Case(
        "a number that its column does not hold any more",
        ["create table p (n int8)", "create table narrow (n int4)"],
        "insert into p values ($1)",
        ["alter table p rename to wide", "alter table narrow rename to p"],
        "22003",
        [3000000000],
    ),
    Case(
        "a parameter's type, by the functions that there are",
        [
            "create function f(a int) returns int language sql as 'select 1'",
            "create function f(a text) returns int language sql as 'select 2'",
        ],
        "select f($1)",
        ["drop function f(text)"],
        1,
        ["7"],
    ),
    Case(
        "a literal's type, where it was taken for a UUID",
        ["create table p (a uuid)"],
        f"insert into p values ('{UUID}')",
        ["truncate p", "alter table p alter a type text"],
        UUID,
        question="select a from p",
    ),
    Case(
        "a literal that did fit its column",
        ["create table p (id int, n int)"],
        "update p set n = 40000 where id = 1",
        ["alter table p alter n type smallint"],
        "22003",
    ),
    Case(
        "a function that takes the very type",
        ["create table p (id int, v varchar)", "insert into p values (1, 'A')"],
        "select lower(v) from p where id = $1",
        ["create function lower(varchar) returns text language sql immutable return 'another'"],
        "another",
        [1],
    ),
    Case(
        "a table in a schema that is looked into first",
        ["create table p (id int)", "insert into p values (1)", "create schema authorization current_user"],
        "select id from p where id = 1",
        ["create table p (id int)"],
        None,
    ),
    Case(
        "a domain's default",
        ["create domain d as text default 'old'", "create table p (id int, a d)"],
        "insert into p (id) values ($1)",
        ["truncate p", "alter domain d set default 'new'"],
        "new",
        [1],
        question="select a from p",
    ),
    Case(
        "the name of a text search configuration",
        ["create text search configuration mine (copy = simple)"],
        "select to_tsvector('mine', $1)::text",
        [
            "alter text search configuration mine rename to other",
            "create text search configuration mine (copy = english)",
        ],
        "'run':1",
        ["Running"],
    ),
    Case(
        "the mapping of a text search configuration",
        ["create text search configuration mine (copy = simple)"],
        "select to_tsvector('mine', 'Running')::text where $1 = 1",
        ["alter text search configuration mine alter mapping for asciiword with english_stem"],
        "'run':1",
        [1],
    ),
    Case(
        "the name of a type",
        ["create type thing as (a int)"],
        "select pg_typeof(null::thing)::text where $1 = 1",
        ["alter type thing rename to other", "create type thing as (a int)"],
        "thing",
        [1],
    ),
    Case(
        "the name of a table, in a literal",
        ["create table p (id int)"],
        "select 'p'::regclass::text where $1 = 1",
        ["alter table p rename to other", "create table p (id int)"],
        "p",
        [1],
    ),
    Case(
        "the name of a collation",
        [
            "create collation mine (locale = 'C', provider = libc)",
            "create table p (a text)",
            "insert into p values ('a')",
        ],
        "select pg_collation_for(a collate mine)::text from p where a = $1",
        ["alter collation mine rename to other", "create collation mine (locale = 'C', provider = libc)"],
        "mine",
        ["a"],
    ),
    Case(
        "a view",
        ["create table p (id int)", "insert into p values (1)", "create view v as select id from p"],
        "select id from v where id = 1",
        ["create or replace view v as select id from p where id < 1", "insert into p values (0)"],
        None,
    ),
]


def ask(caller: Caller, sql: str, params: list[Any]) -> Any:
    """The first value of the answer, None without any; the code of an error."""
    _, body = caller("POST", "/v1/query", {"sql": sql, "params": params} if params else {"sql": sql})
    if not body["success"]:
        return body["error"]["sqlstate"]
    return next((value for row in body["rows"] for value in row.values()), None)


def find_seen(here: Caller, there: Caller, case: Case) -> Any:
    """What is seen `here` of a change `there`."""
    for text in case.before:
        there.sql(text)
    for _ in range(OFTEN):
        ask(here, case.statement, case.params)
    for text in case.change:
        there.sql(text)
    answer = ask(here, case.statement, case.params if case.after is None else case.after)
    return ask(there, case.question, []) if case.question else answer


def mark(case: Case) -> Any:
    """Mark the case with what its texts need of the engine."""
    names = {name for text in (*case.before, case.statement, *case.change) for name in needs_of(text)}
    return pytest.param(case, id=case.name, marks=needs(*sorted(names)) if names else ())


@pytest.mark.parametrize("case", [mark(case) for case in CASES])
def test_a_change_through_another_worker_is_seen_at_once(pair: list[Caller], case: Case) -> None:
    here, there = pair
    assert find_seen(here, there, case) == case.seen


@needs("postgresql")
def test_statements_are_kept_though_there_are_two_workers(two: Service, pair: list[Caller]) -> None:
    """Else the tests above would show nothing."""
    for caller in pair:
        caller.sql(f"create table kept_by_{caller.pid} (id int)")
        name = ask(caller, "select current_database()", [])
        for number in range(OFTEN):
            caller.sql(f"select id from kept_by_{caller.pid} where id = {number}")
        with engine(two, name) as connection:
            texts = connection.execute("select query from pg_stat_activity where datname = %s", (name,)).fetchall()
        assert (f"select id from kept_by_{caller.pid} where id = $1",) in texts


@needs("postgresql")
def test_code_that_another_worker_stores_leaves_nothing_on_a_connection(pair: list[Caller]) -> None:
    """Not even the name of a setting, which no reset removes."""
    here, there = pair
    for _ in range(OFTEN):
        here.sql("select 1")
    there.sql(REMEMBER)
    here.sql("select remember()")
    for _ in range(OFTEN):
        assert here.sql("select current_setting('app.seen', true) as seen") == [{"seen": None}]


def test_a_type_that_another_worker_renames_has_its_new_name(pair: list[Caller]) -> None:
    here, there = pair
    there.sql("create type thing as enum ('a')")
    for _ in range(OFTEN):
        assert here("POST", "/v1/query", {"sql": "select 'a'::thing"})[1]["types"] == ["public.thing"]
    there.sql("alter type thing rename to other")
    for sql in ("select 'a'::other", "select 'a'::other as \"thing\""):
        assert here("POST", "/v1/query", {"sql": sql})[1]["types"] == ["public.other"]
