"""`GET /tables` shows what the caller may see of its database, and nothing else."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.control import new_organization
from tests.inside import owner
from tests.needs import Abilities, needs
from tests.service import Service, Sql, running_service

Shown = dict[str, dict[str, Any]]


@pytest.fixture
def shop(sql: Sql) -> Iterator[Sql]:
    """A schema of the test's own."""
    sql("create schema shop")
    yield sql
    sql("drop schema shop cascade")


def tables(client: httpx.Client, schema: str = "shop") -> Shown:
    """By name, those of one schema."""
    answer = client.get("/tables")
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["success"] is True
    assert "truncated" not in body
    return {table["name"]: table for table in body["tables"] if table["schema"] == schema}


def test_all_kinds_of_relations_are_listed(shop: Sql, abilities: Abilities) -> None:
    """What has rows: sequences and indexes are not among them."""
    expected = {"t": "table", "v": "view"}
    shop("create table shop.t (id serial primary key)")
    shop("create view shop.v as select id from shop.t")
    if abilities.can("materialized_view"):
        shop("create materialized view shop.m as select id from shop.t")
        expected["m"] = "materialized view"
    if abilities.can("partition_range"):
        shop("create table shop.p (a int) partition by range (a)")
        shop("create table shop.p1 partition of shop.p for values from (0) to (9)")
        expected |= {"p": "partitioned table", "p1": "table"}
    if abilities.can("composite"):
        shop("create type shop.pair as (a int, b int)")
    assert {name: table["kind"] for name, table in tables(shop.client).items()} == expected


def test_columns_have_their_type_default_and_key(shop: Sql) -> None:
    """In their order; a dropped column is gone; a generated one has no default."""
    shop(
        "create table shop.t (b int4, gone int, a text default 'x', d int4 not null,"
        " e int4 generated always as (b + 1) stored, primary key (b, a))"
    )
    shop("alter table shop.t drop column gone")
    columns = tables(shop.client)["t"]["columns"]
    assert columns[1].pop("default") in ("'x'::text", "'x'::STRING")
    assert columns == [
        {"name": "b", "type": "int4", "nullable": False, "default": None, "primary_key": True},
        {"name": "a", "type": "text", "nullable": False, "primary_key": True},
        {"name": "d", "type": "int4", "nullable": False, "default": None, "primary_key": False},
        {"name": "e", "type": "int4", "nullable": True, "default": None, "primary_key": False},
    ]


@needs("domain")
def test_a_column_of_a_domain_has_what_the_domain_says(shop: Sql) -> None:
    """Its name is the type, and where it takes no null, the column does not."""
    shop("create domain shop.code as text not null")
    shop("create table shop.t (a shop.code)")
    assert tables(shop.client)["t"]["columns"] == [
        {"name": "a", "type": "shop.code", "nullable": False, "default": None, "primary_key": False}
    ]


_TYPES = ("int", "int[]", "shop.mood", "shop.mood[]", "timestamptz", "numeric(9, 2)", "varchar(3)", "char", '"char"')
_RARER_TYPES = ("point", "oidvector", "jsonb[]", "int4range", "shop.mood[][]")


@pytest.mark.parametrize("types", [_TYPES, pytest.param(_RARER_TYPES, marks=needs("column point"))])
def test_types_are_spelled_as_in_answers(shop: Sql, types: tuple[str, ...]) -> None:
    """Built-in, made by the tenant, and arrays of both."""
    shop("create type shop.mood as enum ('a')")
    shop(f"create table shop.t ({', '.join(f'c{place} {name}' for place, name in enumerate(types))})")
    answered = shop("select * from shop.t")["types"]
    assert [column["type"] for column in tables(shop.client)["t"]["columns"]] == answered


@needs("postgresql")
def test_estimates_are_null_until_the_table_was_analyzed(shop: Sql) -> None:
    """Sizes are always there; a view has none of its own."""
    shop("create table shop.t (a int primary key) with (autovacuum_enabled = false)")
    shop("create view shop.v as select * from shop.t")
    shop("insert into shop.t select generate_series(1, 1000)")
    before = tables(shop.client)
    assert before["t"]["row_estimate"] is None
    assert before["t"]["size_bytes"] == shop.value("select pg_total_relation_size('shop.t')") > 0
    shop("analyze shop.t")
    after = tables(shop.client)
    assert after["t"]["row_estimate"] == 1000
    assert (after["v"]["row_estimate"], after["v"]["size_bytes"]) == (None, 0)


def test_a_read_key_sees_what_it_may_read(shop: Sql, read_sql: Sql, abilities: Abilities) -> None:
    """Tables, columns and schemas that were taken from it are gone from its answer, and stay in the writer's."""
    shop("create table shop.open (a int)")
    shop("create table shop.closed (password text default 'hunter2')")
    shop("create table shop.part (a int, secret text default 'hunter3')")
    reader = read_sql.value("select current_user")
    shop(f"revoke all on shop.closed, shop.part from {reader}")
    assert set(tables(read_sql.client)) == {"open"}
    if abilities.can("column_rights"):
        shop(f"grant select (a) on shop.part to {reader}")
        seen = tables(read_sql.client)
        assert set(seen) == {"open", "part"}
        assert [column["name"] for column in seen["part"]["columns"]] == ["a"]
    assert set(tables(shop.client)) == {"open", "closed", "part"}
    shop(f"revoke usage on schema shop from {reader}")
    assert tables(read_sql.client) == {}
    answer = read_sql.client.get("/tables").text
    assert "hunter" not in answer
    assert "shop" not in answer


def test_the_engines_and_the_services_own_schemas_are_hidden(client: httpx.Client) -> None:
    """Also `tuplegate`, which the roles may use."""
    schemas = {table["schema"] for table in client.get("/tables").json()["tables"]}
    assert not schemas & {"pg_catalog", "information_schema", "tuplegate", "pg_toast"}


@needs("function_plpgsql")
def test_code_of_the_tenants_own_is_not_run(shop: Sql) -> None:
    """Names that the question uses mean the engine's own, whatever the tenant has made under them."""
    boom = "language plpgsql as $$ begin raise exception 'boom'; end $$"
    shop("create type shop.mood as enum ('a')")
    shop("create table shop.t (a shop.mood)")
    made = ["json_agg(json)", "has_schema_privilege(oid, text)", "pg_get_expr(pg_node_tree, oid)"]
    try:
        shop(f"create function public.boom(name, text) returns text {boom}")
        shop(f"create function public.boom(name, name) returns boolean {boom}")
        shop("create operator public.|| (leftarg = name, rightarg = text, function = public.boom)")
        shop("create operator public.= (leftarg = name, rightarg = name, function = public.boom)")
        shop(f"create function public.has_schema_privilege(oid, text) returns boolean {boom}")
        shop(f"create function public.json_agg(json) returns json {boom}")
        shop(f"create function public.pg_get_expr(pg_node_tree, oid) returns text {boom}")
        assert tables(shop.client)["t"]["columns"][0]["type"] == "shop.mood"
    finally:
        shop("drop function if exists public.boom(name, text), public.boom(name, name) cascade")
        for name in made:
            shop(f"drop function if exists public.{name}")


@needs("lock_table")
def test_a_locked_table_does_not_keep_the_others_waiting(service: Service, shop: Sql) -> None:
    """It is listed without what only a lock could tell; so is one whose index or whose turn is taken."""
    shop("create table shop.t (a int primary key default 5)")
    shop("create table shop.u (a int primary key default 5)")
    with owner(service) as other, other.transaction(force_rollback=True):
        other.execute("lock table shop.t in access exclusive mode")
        other.execute("reindex index shop.u_pkey")
        seen = tables(shop.client)
        for name in ("t", "u"):
            assert (seen[name]["locked"], seen[name]["size_bytes"]) == (True, None)
            assert seen[name]["columns"][0]["default"] is None
    seen = tables(shop.client)
    assert (seen["t"]["locked"], seen["t"]["columns"][0]["default"]) == (False, "5")


@needs("do_block")
def test_thousands_of_tables_are_listed_at_once(service: Service) -> None:
    """In one answer, each with its columns. They are in a database of their own: dropping them all takes longest."""
    control = new_organization(service).control
    control.post("/v1/databases", {"name": "wide"})
    with control.sql(database="wide").client as client:
        for part in range(6):
            Sql(client)(
                "do $$ begin for i in 1..500 loop execute format("
                f"'create table t%s_%s (id int, a int default 5, b timestamptz default now())', {part}, i);"
                " end loop; end $$"
            )
        seen = tables(client, "public")
    assert len(seen) == 3000
    assert all(len(table["columns"]) == 3 for table in seen.values())
    control.delete("/v1/databases/wide")


@pytest.fixture(scope="module")
def narrow() -> Iterator[Service]:
    """With small answers, and one connection to a database."""
    with running_service("--answer-bytes-max", "1024", "--connections-per-database", "1") as running:
        yield running


def test_an_answer_over_its_limit_is_cut_between_tables(narrow: Service) -> None:
    """With the sign that it was."""
    with narrow.client() as client:
        for number in range(20):
            Sql(client)(f"create table t{number} (a int)")
        body = client.get("/tables").json()
    assert body["truncated"] is True
    assert [table["name"] for table in body["tables"]] == ["t0", "t1", "t10", "t11", "t12"][: len(body["tables"])]
    assert 0 < len(body["tables"]) < 20


def test_a_parameter_is_refused(client: httpx.Client) -> None:
    """By its name."""
    answer = client.get("/tables?schema=shop")
    assert answer.status_code == 400
    assert "'schema'" in answer.json()["error"]["message"]


def test_a_key_is_needed(service: Service) -> None:
    """As everywhere."""
    assert httpx.get(f"{service.url}/tables", trust_env=False, verify=False).status_code == 401


def test_the_connection_is_clean_afterwards(single: Service) -> None:
    """The search path of the question is not that of the next request."""
    with single.client() as client:
        client.get("/tables")
        assert Sql(client).value("show search_path").replace(" ", "") == '"$user",public'
        assert Sql(client).value("show transaction_isolation") == "serializable"
