"""Tenants create every extension that the bundle has, in schemas where they may create."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import psycopg
import pytest

from tests.directories import new_directory
from tests.servers import Open, ask, connect
from tuplegate.engine.bundled import extension_probe
from tuplegate.settings import Settings
from tuplegate.supervisor.engine_server import Bundled, open_bundled

EXTENSIONS = [
    "vector", "pg_trgm", "citext", "hstore", "ltree", "btree_gin", "btree_gist", "cube", "fuzzystrmatch", "intarray",
    "isn", "lo", "seg", "tablefunc", "tcn", "tsm_system_rows", "tsm_system_time", "unaccent", "dict_int",
]  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Bundled]:
    parent = new_directory()
    with ExitStack() as stack:
        # Only scripts run here, so that the tests are the same where the processor does not run pgvector.
        with mock.patch.object(extension_probe, "probe", return_value=True):
            server = stack.enter_context(open_bundled(Settings(data_dir=parent / "data")))
        with connect(server) as connection:
            connection.execute("create role tenant login password 'tenant'")
        yield server
    shutil.rmtree(parent)


@dataclass(frozen=True)
class Own:
    """A tenant's database."""

    tenant: psycopg.Connection

    def create(self, extension: str, tail: str = "") -> str | None:
        """Create an extension as the tenant; return the SQLSTATE of a refusal."""
        return self.refusal(f"create extension {extension} {tail}")

    def refusal(self, statement: str) -> str | None:
        try:
            self.tenant.execute(statement.encode())
        except psycopg.Error as exc:
            return exc.sqlstate
        return None


@pytest.fixture
def own(server: Bundled) -> Iterator[Own]:
    """The tenant is a plain role that may create objects in its database, as tenants may."""
    with connect(server) as admin:
        admin.execute("create database own")
        admin.execute("grant create, temporary on database own to tenant")
        with connect(server, "own") as inside:
            inside.execute("grant create, usage on schema public to tenant; create schema tuplegate")
        with connect(server, "own", user="tenant", password="tenant") as connection:
            yield Own(connection)
        admin.execute("drop database own with (force)")


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
    for extension, version in (("citext", "1.4"), ("cube", "1.2"), ("seg", "1.1"), ("lo", "1.1"), ("hstore", "1.4")):
        assert own.create(extension, f"version '{version}'") is None
        assert own.refusal(f"alter extension {extension} update") is None
        assert own.refusal(f"drop extension {extension}") is None


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


def test_every_extension_can_be_made(own: Own) -> None:
    """Also what another needs, and what PostgreSQL gives to superusers alone."""
    names = {str(name) for (name,) in own.tenant.execute("select name from pg_available_extensions").fetchall()}
    assert names > set(EXTENSIONS)
    for name in sorted(names - {"plpgsql"}):  # every database has that one
        assert own.create(f"if not exists {name}", "cascade") is None, name


def test_what_extensions_offer_reaches_nothing_outside(own: Own) -> None:
    for extension in ("file_fdw", "dblink", "pageinspect"):
        assert own.create(extension) is None
    assert own.refusal("create server files foreign data wrapper file_fdw") == "42501"
    assert own.refusal("select dblink_connect('host=/tmp dbname=postgres user=tuplegate')") is not None
    assert own.refusal("select get_raw_page('pg_authid', 0)") == "42501"


def test_a_library_that_crashes_is_not_trusted(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server process that dies would take all others with it, so this is found out once, by another process."""

    def is_trusted() -> object:
        with open_bundled(Settings(data_dir=data_dir)) as server:
            return ask(server, "select trusted from pg_available_extension_versions where name = 'vector'")

    # Stands for an instruction that the processor does not know.
    crash = ["copy (select 1) to program 'kill -ILL $PPID'"]
    monkeypatch.setattr(extension_probe, "statements", lambda: crash)
    assert is_trusted() is False
    monkeypatch.setattr(extension_probe, "statements", lambda: pytest.fail("the answer was not kept"))
    assert is_trusted() is False
    monkeypatch.setattr(extension_probe, "describe_machine", lambda library: "another")
    monkeypatch.setattr(extension_probe, "statements", lambda: ["select 1"])
    assert is_trusted() is True


def test_the_probe_uses_the_extension(started: Open) -> None:
    """Its statements are right: each runs, or the server dies of it."""
    server = started()
    with connect(server, "template1") as connection, connection.transaction():
        for statement in extension_probe.statements()[1:]:
            try:
                connection.execute(statement.encode())
            except psycopg.OperationalError:
                assert ask_verdict(server) is False
                return
    assert ask_verdict(server) is True


def ask_verdict(server: Bundled) -> bool:
    verdict = (server.directory.path / "extensions" / "processor").read_text().split()[1]
    return verdict == "works"
