"""What tenants can do: make what they like in their database; and a read key sees all of it and changes nothing."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.service import ENGINE
from tests.tenants import Tenant

EXTENSIONS = [
    "vector", "pg_trgm", "citext", "hstore", "ltree", "btree_gin", "btree_gist", "cube", "fuzzystrmatch", "intarray",
    "isn", "lo", "seg", "tablefunc", "tcn", "tsm_system_rows", "tsm_system_time", "unaccent", "dict_int",
]  # fmt: skip


@pytest.mark.parametrize("name", EXTENSIONS)
def test_a_tenant_makes_trusted_extensions(one: Tenant, name: str) -> None:
    needs_extension(one, name)
    one.write(f"create extension {name}")
    try:
        assert one.read.value("select extversion is not null from pg_extension where extname = $1", [name]) is True
    finally:
        one.write(f"drop extension {name}")


def test_vectors_are_found_by_their_distance(one: Tenant) -> None:
    """By a key that reads, through an index of pgvector."""
    needs_extension(one, "vector")
    one.write("create extension vector")
    one.write("create table item (id int, at vector(2))")
    one.write("create index on item using hnsw (at vector_l2_ops)")
    one.write("insert into item values (1, '[0,0]'), (2, '[5,5]')")
    try:
        assert one.read.rows("select id, at from item order by at <-> '[4,4]' limit 1") == [{"id": 2, "at": "[5,5]"}]
    finally:
        one.write("drop table item")
        one.write("drop extension vector")


def needs_extension(tenant: Tenant, name: str) -> None:
    """The bundled engine has all of them, but pgvector only where the processor runs it. On another engine the operator
    says what is there, and what tenants may make."""
    trusted = tenant.write.value("select bool_or(trusted) from pg_available_extension_versions where name = $1", [name])
    if not trusted and (ENGINE or name == "vector"):
        pytest.skip(f"the engine {'does not have' if trusted is None else 'does not trust'} {name}")


@pytest.fixture
def later(one: Tenant) -> Iterator[Tenant]:
    """A schema that was made after the reading role."""
    one.write("drop schema if exists later cascade")
    one.write("create schema later")
    yield one
    one.write("drop schema later cascade")


@pytest.mark.parametrize(
    ("making", "use", "value"),
    [
        (["create table later.t as select 1 as a"], "select a from later.t", 1),
        (["select 2 as a into later.t"], "select a from later.t", 2),
        (["create view later.v as select 3 as a"], "select a from later.v", 3),
        (["create materialized view later.m as select 4 as a"], "select a from later.m", 4),
        (["create sequence later.s start 5"], "select last_value from later.s", 5),
        (["create function later.f() returns int language sql return 6"], "select later.f()", 6),
        (
            ["create function later.f() returns int language plpgsql as $$ begin return 7; end $$"],
            "select later.f()",
            7,
        ),
        (["create type later.mood as enum ('calm')"], "select 'calm'::later.mood", "calm"),
        (["create domain later.small as int check (value < 10)"], "select 8::later.small", 8),
        (["create type later.pair as (a int, b int)"], "select ((1, 2)::later.pair).b", 2),
        (
            ["create aggregate later.total (int) (sfunc = int4pl, stype = int, initcond = '0')"],
            "select later.total(a) from generate_series(1, 4) a",
            10,
        ),
        (
            [
                "create table later.p (a int) partition by range (a)",
                "create table later.p1 partition of later.p for values from (0) to (10)",
                "insert into later.p values (9)",
            ],
            "select a from later.p1",
            9,
        ),
        (
            [
                "create table later.t (a int)",
                "create function later.tf() returns trigger language plpgsql as"
                " $$ begin new.a := new.a + 1; return new; end $$",
                "create trigger added before insert on later.t for each row execute function later.tf()",
                "insert into later.t values (9)",
            ],
            "select a from later.t",
            10,
        ),
        (
            [
                "create table later.t (a int)",
                "insert into later.t values (11), (12)",
                "alter table later.t enable row level security",
                "create policy twelve on later.t using (a = 12)",
            ],
            "select a from later.t",
            12,
        ),
    ],
)
def test_what_is_made_later_is_seen_by_a_read_key(later: Tenant, making: list[str], use: str, value: Any) -> None:
    for statement in making:
        later.write(statement)
    assert later.read.value(use) == value


@pytest.fixture(scope="module")
def guarded(one: Tenant) -> Iterator[Tenant]:
    """With what a read key could try to write by."""
    one.write("create schema guarded")
    for made in (
        "create table guarded.t as select 1 as a",
        "create sequence guarded.s",
        "create materialized view guarded.m as table guarded.t",
        "create function guarded.writes() returns void language sql as 'insert into guarded.t values (2)'",
        "create function guarded.writes_as_owner() returns int language plpgsql security definer as"
        " $$ begin insert into guarded.t values (2); return 1; end $$",
        "create procedure guarded.writes_too() language plpgsql security definer as"
        " $$ begin insert into guarded.t values (2); end $$",
    ):
        one.write(made)
    yield one
    one.write("drop schema guarded cascade")


@pytest.mark.parametrize(
    "statement",
    [
        "insert into guarded.t values (2)",
        "update guarded.t set a = 2",
        "delete from guarded.t",
        "truncate guarded.t",
        "merge into guarded.t using (select 1) x on true when matched then delete",
        "with x as (delete from guarded.t returning a) select * from x",
        "select * from guarded.t for update",
        "select nextval('guarded.s')",
        "select setval('guarded.s', 9)",
        "select guarded.writes()",
        "select guarded.writes_as_owner()",
        "call guarded.writes_too()",
        "do $$ begin perform guarded.writes_as_owner(); end $$",
        "do $$ begin set transaction read write; perform guarded.writes_as_owner(); end $$",
        "do $$ begin set local transaction_read_only = off; perform guarded.writes_as_owner(); end $$",
        "do $$ begin set default_transaction_read_only = off; perform guarded.writes_as_owner(); end $$",
        "select set_config('transaction_read_only', 'off', true), guarded.writes_as_owner()",
        "select guarded.writes_as_owner() where set_config('transaction_read_only', 'off', false) = 'off'",
        "explain analyze select guarded.writes_as_owner()",
        "select lo_create(0)",
        "select lo_from_bytea(0, 'x')",
        "select query_to_xml('select guarded.writes_as_owner()', true, true, '')",
        "create temp table x (a int)",
        "refresh materialized view guarded.m",
        "comment on table guarded.t is 'x'",
        "alter table guarded.t add b int",
        "drop table guarded.t",
        "grant all on guarded.t to public",
        "reindex table guarded.t",
    ],
)
def test_a_read_key_changes_nothing_by_any_means(guarded: Tenant, statement: str) -> None:
    """Not through functions with their maker's rights, nor by switching the protection off first."""
    error = guarded.read.fails(statement)
    assert error["sqlstate"] in ("25006", "42501", "25001"), error
    client = guarded.read.client
    for more in ({}, {"read_only": True}):
        body = {"statements": ["select 1", statement], **more}
        assert client.post("/v1/transaction", json=body).json()["success"] is False
    streamed = client.post("/v1/query", json={"sql": statement}, headers={"Accept": "application/x-ndjson"})
    assert '"event":"done"' not in streamed.text
    assert guarded.write.rows("select a from guarded.t") == [{"a": 1}]


def test_a_tenant_decides_what_its_read_keys_see(later: Tenant) -> None:
    """Rights that were given by default can be taken away, table by table."""
    later.write("create table later.t (a int)")
    role = later.read.value("select current_user")
    later.write(f"revoke select on later.t from {role}")
    assert later.read.fails("table later.t")["sqlstate"] == "42501"
