"""Tenants create extensions whose scripts run as superuser: nothing that they have defined before takes part in it.

tests/extended/test_all_extensions.py tries to take part in every one of them.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
import pytest

from tests.directories import new_directory
from tests.servers import Open, ask, connect
from tuplegate.engine.bundled import extension_probe
from tuplegate.engine.bundled.server import BundledServer, BundledSettings

EXTENSIONS = [
    "vector", "pg_trgm", "citext", "hstore", "ltree", "btree_gin", "btree_gist", "cube", "fuzzystrmatch", "intarray",
    "isn", "lo", "seg", "tablefunc", "tcn", "tsm_system_rows", "tsm_system_time", "unaccent", "dict_int",
]  # fmt: skip
SOME = ("citext", "hstore", "seg")
"""With casts, operators, and functions that their scripts call."""

# What a tenant's code leaves when it runs. A sequence keeps its value when the transaction is rolled back.
RECORDER = """
create schema proof;
create sequence proof.ran;
create table proof.who (name text, what text);
create function proof.note(what text) returns boolean language plpgsql as
  $$ begin perform nextval('proof.ran'); insert into proof.who values (current_user, what); return true; end $$;
"""

# Names and types of what an extension has.
TYPES = "select typname from pg_type where typcategory <> 'A' and oid in (select objid from member)"
FUNCTIONS = """
select proname, array(select t::regtype::text from unnest(proargtypes) t) from pg_proc
 where oid in (select objid from member)"""
OPERATORS = """
select oprname, case when oprleft <> 0 then oprleft::regtype::text end, oprright::regtype::text from pg_operator
 where oid in (select objid from member)"""
MEMBERS = """
with member as (
  select d.objid from pg_depend d join pg_extension e on e.oid = d.refobjid
   where d.refclassid = 'pg_extension'::regclass and d.deptype = 'e' and e.extname = %s)
"""

# Objects of an extension, or parts of these, that use something which a role owns.
BOUND = """
with recursive part as (
  select d.classid, d.objid from pg_depend d join pg_extension e on e.oid = d.refobjid
   where d.refclassid = 'pg_extension'::regclass and d.deptype = 'e' and e.extname = %(extension)s
  union
  select d.classid, d.objid from pg_depend d join part p on d.refclassid = p.classid and d.refobjid = p.objid
   where d.deptype in ('i', 'a')
), owned as (
  select 'pg_proc'::regclass as classid, oid from pg_proc where proowner = %(role)s::regrole
  union all select 'pg_type'::regclass, oid from pg_type where typowner = %(role)s::regrole
  union all select 'pg_operator'::regclass, oid from pg_operator where oprowner = %(role)s::regrole
  union all select 'pg_class'::regclass, oid from pg_class where relowner = %(role)s::regrole
)
select pg_describe_object(d.classid, d.objid, d.objsubid), pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid)
  from part join pg_depend d using (classid, objid) join owned o on o.classid = d.refclassid and o.oid = d.refobjid
"""

SERVER_TYPES = (
    "text", "name", "oid", "bool", "int2", "int4", "int8", "float4", "float8", "numeric", "regclass", "regprocedure",
    "internal", "cstring", "bytea", "trigger",
)  # fmt: skip
COMPARED = (
    "text", "name", "integer", "bigint", "oid", "double precision", '"char"', "regclass", "integer[]", "text[]",
    "boolean",
)  # fmt: skip
COMPARISONS = ("=", "<>", "<", ">", "<=", ">=", "||", "+", "-")


CALLED = ("current_schema", "current_setting", "quote_ident", "set_config", "has_schema_privilege", "concat")
"""Functions that scripts call."""

# Types, functions or operators that do not fit or exist already, and members that the extension does not own.
REFUSALS = {"42704", "42710", "42723", "42725", "42804", "42809", "42883", "42P13", "55000"}


@pytest.fixture(scope="module")
def server() -> Iterator[BundledServer]:
    parent = new_directory()
    server = BundledServer(BundledSettings(data_dir=parent / "data"))
    # Only scripts run here, so that the tests are the same where the processor does not know pgvector's instructions.
    with mock.patch.object(extension_probe, "probe", return_value=True):
        server.prepare()
    server.start()
    with connect(server) as connection:
        connection.execute("create role tenant login")
    yield server
    server.stop()
    server.release()
    shutil.rmtree(parent)


@dataclass(frozen=True)
class Own:
    """A tenant's database. `inspector` is a superuser that resolves no name of the tenant's."""

    tenant: psycopg.Connection
    inspector: psycopg.Connection

    def create(self, extension: str, tail: str = "") -> str | None:
        """Create an extension as the tenant; return the SQLSTATE of a refusal."""
        return self.refusal(f"create extension {extension} {tail}")

    def refusal(self, statement: str) -> str | None:
        try:
            self.tenant.execute(statement.encode())
        except psycopg.Error as exc:
            return exc.sqlstate
        return None

    def assert_untouched(self, extension: str) -> None:
        """Nothing of the tenant's has run, and nothing of it is part of the extension."""
        ran = self.inspector.execute("select is_called from proof.ran").fetchone()
        assert ran == (False,), self.inspector.execute("select distinct * from proof.who").fetchall()
        assert self.inspector.execute(BOUND, {"extension": extension, "role": "tenant"}).fetchall() == []


@pytest.fixture
def own(server: BundledServer) -> Iterator[Own]:
    """The tenant is a plain role that may create objects in its database, as tenants may."""
    with connect(server) as admin:
        admin.execute("create database own")
        admin.execute("grant create, temporary on database own to tenant")
        with connect(server, "own") as inside:
            inside.execute("grant create, usage on schema public to tenant; create schema tuplegate")
            inside.execute("set search_path = pg_catalog")
            where = f"{server.conninfo} dbname=own".replace("user=tuplegate", "user=tenant")
            with psycopg.connect(where, autocommit=True) as connection:
                connection.execute(RECORDER)
                yield Own(connection, inside)
        admin.execute("drop database own with (force)")


def function(name: str, arguments: list[str]) -> str:
    return (
        f"create function {name}({', '.join(arguments)}) returns text language plpgsql as"
        " $$ begin perform proof.note('function'); return null; end $$"
    )


def operator(schema: str, name: str, left: str | None, right: str) -> list[str]:
    arguments = ", ".join(part for part in (left, right) if part)
    sides = f"leftarg = {left}, rightarg = {right}" if left else f"rightarg = {right}"
    return [
        f"create or replace function proof.twin({arguments}) returns boolean language plpgsql as"
        " $$ begin return proof.note('operator'); end $$",
        f"create operator {schema}.{name} (function = proof.twin, {sides})",
    ]


class Names:
    """What an extension has, read where it was made with nothing else there."""

    def __init__(self, connection: psycopg.Connection, extension: str) -> None:
        def select(query: str) -> list[Any]:
            return connection.execute((MEMBERS + query).encode(), (extension,)).fetchall()

        self.types = [name for (name,) in select(TYPES)]
        self.functions = select(FUNCTIONS)
        self.operators = select(OPERATORS)

    def similar(self, schema: str) -> list[str]:
        """Statements for twins that stand beside the extension's objects: the same names with other types that fit."""
        made = []
        for name, arguments in self.functions:
            for of in (["anyelement"] * len(arguments), ["anycompatible"] * len(arguments), ["variadic anyarray"]):
                if arguments and of != arguments:
                    made.append(function(f'{schema}."{name}"', of))
        for name in {name for name, _, _ in self.operators} | set(COMPARISONS):
            pairs = [
                ("anyelement", "anyelement"),
                ("anycompatible", "anynonarray"),
                *((each, each) for each in COMPARED),
            ]
            for pair in pairs:
                if (name, *pair) not in self.operators:
                    made += operator(schema, name, *pair)
        for name in CALLED:
            for of in ([], ["text"], ["text", "text", "boolean"], ["name", "text", "text"], ["variadic anyarray"]):
                made.append(function(f"{schema}.{name}", of))
        return list(dict.fromkeys(made))

    def temporary(self) -> list[str]:
        """Statements for types in pg_temp, of the extension's names and of the server's, whose values run a check."""
        check = "as pg_catalog.text check (proof.note('type'))"
        return [f'create domain pg_temp."{name}" {check}' for name in (*self.types, *SERVER_TYPES)]

    def exact(self) -> list[tuple[list[str], str]]:
        """Statements for objects with the extension's own names and types, one at a time, and how each is dropped."""
        made = []
        for name in self.types:
            for form in ("", "as (a int)", "as enum ('a')", "as range (subtype = text)"):
                made.append(([f'create type public."{name}" {form}'], f'type public."{name}"'))
        for name, of in self.functions:
            made.append(([function(f'public."{name}"', of)], f'function public."{name}"({", ".join(of)})'))
        for name, left, right in self.operators:
            made.append((operator("public", name, left, right), f"operator public.{name} ({left or 'none'}, {right})"))
            if left:
                # An operator whose commutator does not exist makes a shell of it.
                first, second = operator("public", "<<<>>>", right, left)
                made.append(
                    ([first, f"{second[:-1]}, commutator = {name})"], f"operator public.{name} ({left}, {right})")
                )
        return made


@pytest.fixture
def names(server: BundledServer, extension: str) -> Names:
    with connect(server) as admin:
        admin.execute(f"create extension {extension}".encode())
        try:
            return Names(admin, extension)
        finally:
            admin.execute(f"drop extension {extension}".encode())


@pytest.mark.parametrize("schema", ["public", "chosen"])
@pytest.mark.parametrize("extension", SOME)
def test_similar_objects_take_no_part(own: Own, names: Names, extension: str, schema: str) -> None:
    """Functions, operators and types of the same names, in the schema and in pg_temp, are not taken for others."""
    assert_similar_take_no_part(own, names, extension, schema)


def assert_similar_take_no_part(own: Own, names: Names, extension: str, schema: str) -> None:
    own.tenant.execute("create schema chosen")
    made = [own.refusal(statement) for statement in names.similar(schema)]
    assert made.count(None) > len(made) / 2, made
    assert own.create(extension, f"with schema {schema}") is None
    own.assert_untouched(extension)
    own.tenant.execute(f"drop extension {extension}".encode())
    made = [own.refusal(statement) for statement in (*names.similar("pg_temp"), *names.temporary())]
    assert made.count(None) > len(made) / 2, made
    # Some scripts mention a base type before they make it. The one in pg_temp is taken for it, and the script fails.
    assert own.create(extension, f"with schema {schema}") in {None, *REFUSALS}
    own.assert_untouched(extension)


@pytest.mark.parametrize("extension", SOME)
def test_no_object_is_replaced(own: Own, names: Names, extension: str) -> None:
    """Where one object has just the name and types of the extension's, or is a shell of it, the script is refused."""
    assert_none_is_replaced(own, names, extension)


def assert_none_is_replaced(own: Own, names: Names, extension: str) -> None:
    for statements, made in names.exact():
        if own.refusal(statements[0]) or (statements[1:] and own.refusal(statements[1])):
            continue  # Its types do not exist before the extension does.
        assert own.create(extension) in REFUSALS, statements
        own.assert_untouched(extension)
        own.tenant.execute(f"drop {made} cascade".encode())
        own.tenant.execute("drop function if exists proof.twin cascade") if "operator" in made else None
    assert own.create(extension) is None
    own.assert_untouched(extension)


def test_an_extension_goes_where_its_creator_may_create(own: Own) -> None:
    """PostgreSQL itself would put one anywhere, such as into pg_catalog or into the service's own schema."""
    own.tenant.execute("create schema chosen")
    for schema in ("pg_catalog", "tuplegate", "information_schema", "pg_toast"):
        for extension in EXTENSIONS:
            assert own.create(extension, f"with schema {schema}") == "42501", (extension, schema)
    own.tenant.execute("create extension if not exists vector with schema chosen")
    own.tenant.execute("create extension if not exists vector with schema public")
    # Its objects are not the tenant's, so it cannot be moved at all.
    for schema in ("tuplegate", "pg_catalog", "public"):
        assert own.refusal(f"alter extension vector set schema {schema}") == "42501"


def test_older_versions_are_made_and_updated(own: Own) -> None:
    """A tenant's function that was made a member of the extension before does not run in an update."""
    for extension, version in (("citext", "1.4"), ("cube", "1.2"), ("seg", "1.1"), ("lo", "1.1"), ("hstore", "1.4")):
        assert own.create(extension, f"version '{version}'") is None
        for statement in ("function public.mine()", "operator public.=== (int, int)"):
            own.refusal(function("public.mine", []))
            own.refusal(operator("public", "===", "int", "int")[0])
            own.refusal(operator("public", "===", "int", "int")[1])
            own.tenant.execute(f"alter extension {extension} add {statement}".encode())
        own.tenant.execute(f"alter extension {extension} update".encode())
        ran = own.inspector.execute("select is_called from proof.ran").fetchone()
        assert ran == (False,)
        own.tenant.execute(f"drop extension {extension}".encode())


def test_members_cannot_be_taken_out(own: Own) -> None:
    """An extension belongs to the tenant, what it made does not."""
    assert own.create("vector") is None
    for statement in (
        "alter extension vector drop function vector_in(cstring, oid, integer)",
        "alter function vector_in(cstring, oid, integer) owner to tenant",
        "create or replace function vector_dims(vector) returns int language sql as 'select 1'",
        "create cast (vector as int) without function",
        "alter type vector rename to other",
    ):
        assert own.refusal(statement) == "42501", statement


def test_what_is_not_proved_harmless_is_not_trusted(own: Own) -> None:
    """Others need a superuser, also as what another needs."""
    for extension in ("plpgsql", "earthdistance cascade", "postgres_fdw", "bloom", "file_fdw", "pageinspect"):
        assert own.create(extension) in ("42501", "42710"), extension
    trusted = own.inspector.execute(
        "select name from pg_available_extension_versions where trusted and superuser group by name"
    ).fetchall()
    assert sorted(name for (name,) in trusted) == sorted(EXTENSIONS)


def test_a_library_that_crashes_is_not_trusted(started: Open, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server process that dies would take all others with it, so this is found out once, by another process."""
    # Stands for an instruction that the processor does not know.
    crash = ["copy (select 1) to program 'kill -ILL $PPID'"]
    monkeypatch.setattr(extension_probe, "statements", lambda: crash)
    server = started()
    assert ask(server, "select trusted from pg_available_extension_versions where name = 'vector'") is False
    server.stop()
    server.release()
    monkeypatch.setattr(extension_probe, "statements", lambda: pytest.fail("the answer was not kept"))
    server = started()
    assert ask(server, "select trusted from pg_available_extension_versions where name = 'vector'") is False
    server.stop()
    server.release()
    monkeypatch.setattr(extension_probe, "describe_machine", lambda library: "another")
    monkeypatch.setattr(extension_probe, "statements", lambda: ["select 1"])
    assert ask(started(), "select trusted from pg_available_extension_versions where name = 'vector'") is True


def test_the_probe_uses_the_extension(started: Open) -> None:
    """Its statements are right: each runs, or the server dies of it."""
    server = started()
    with psycopg.connect(f"{server.conninfo} dbname=template1") as connection:
        for statement in extension_probe.statements()[1:]:
            try:
                connection.execute(statement.encode())
            except psycopg.OperationalError:
                assert ask_verdict(server) is False
                return
    assert ask_verdict(server) is True


def ask_verdict(server: BundledServer) -> bool:
    verdict = (Path(server.socket_dir).parent / "extensions" / "processor").read_text().split()[1]
    return verdict == "works"
