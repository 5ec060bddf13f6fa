"""Which scripts of extensions are taken to be harmless."""

from pathlib import Path

import pytest

from tuplegate.engine.bundled.extension_scripts import find_hazard, split_script
from tuplegate.engine.bundled.extensions import ASK_FOR_SCHEMA, choose_files

HARMLESS = [
    "",
    '-- only this\n\\echo Use "CREATE EXTENSION x" to load this file. \\quit\n',
    "CREATE TYPE v; CREATE FUNCTION v_in(cstring) RETURNS v AS 'MODULE_PATHNAME' LANGUAGE C STRICT;",
    "CREATE FUNCTION f(int, flag boolean DEFAULT false, t text = 'a;b') RETURNS int AS 'f', 'f' LANGUAGE c;",
    "CREATE FUNCTION v_in(cstring) RETURNS v AS 'x' LANGUAGE C; CREATE TYPE v (INPUT = v_in, OUTPUT = v_out);",
    "CREATE FUNCTION f(text) RETURNS text AS $x$ SELECT do_it($1); $x$ LANGUAGE sql;",
    "CREATE OPERATOR CLASS v_ops DEFAULT FOR TYPE v USING gist AS OPERATOR 1 <-> (v, v) FOR ORDER BY float_ops;",
    "CREATE AGGREGATE sum(v) (SFUNC = v_add, STYPE = v, PARALLEL = SAFE);",
    "ALTER OPERATOR FAMILY v_ops USING gist ADD FUNCTION 11 (v, v) v_sort(internal);",
    "ALTER FUNCTION replace(v, v, v) PARALLEL SAFE; /* a /* nested */ ; comment */ COMMENT ON TYPE v IS 'a';",
    "CREATE DOMAIN l AS pg_catalog.oid;",
]

HOSTILE = [
    ("SELECT f()", "a kind of statement"),
    ("DO $$ BEGIN PERFORM f(); END $$", "a kind of statement"),
    ("UPDATE pg_catalog.pg_proc SET prosrc = ''", "a kind of statement"),
    ("INSERT INTO t VALUES (1)", "a kind of statement"),
    ("CREATE TABLE t (a int DEFAULT f())", "a kind of statement"),
    ("CREATE VIEW v AS SELECT 1", "a kind of statement"),
    ("CREATE INDEX ON t (f(a))", "a kind of statement"),
    ("SET search_path = x", "a kind of statement"),
    ("GRANT ALL ON FUNCTION f() TO PUBLIC", "a kind of statement"),
    ("CREATE OR REPLACE FUNCTION f() RETURNS int AS 'x' LANGUAGE C", "a kind of statement"),
    ("CREATE TYPE v; CREATE /* type */ OR REPLACE FUNCTION f() RETURNS v AS 'x' LANGUAGE C", "a kind of statement"),
    ("COMMENT ON TYPE v IS 'a'; SELECT f()", "a kind of statement"),
    ("COMMENT ON TYPE v IS 'a;' ; /* ; */ SELECT f()", "a kind of statement"),
    ("CREATE FUNCTION f() RETURNS int LANGUAGE sql RETURN g()", "a body"),
    ("CREATE FUNCTION f() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT g(); END", "a body"),
    ("CREATE FUNCTION f() RETURNS int AS 'begin end' LANGUAGE plpgsql", "a language"),
    ("CREATE FUNCTION f() RETURNS int AS 'x' LANGUAGE 'plpgsql'", "a language"),
    ("CREATE FUNCTION f() RETURNS int AS 'x' LANGUAGE \"plperl\"", "a language"),
    ("CREATE FUNCTION f() RETURNS int AS 'x'", "a language"),
    ("CREATE FUNCTION f(language c) RETURNS int AS 'x' LANGUAGE plpgsql", "a language"),
    ("CREATE FUNCTION f() RETURNS int AS 'x' LANGUAGE C SECURITY DEFINER", "rights of its owner"),
    ("ALTER FUNCTION f() SECURITY DEFINER", "rights of its owner"),
    ("CREATE FUNCTION f(a int DEFAULT g()) RETURNS int AS 'x' LANGUAGE C", "an expression"),
    ("CREATE FUNCTION f(a int = 1 + 1) RETURNS int AS 'x' LANGUAGE C", "an expression"),
    ("CREATE FUNCTION f(a v DEFAULT '1'::v) RETURNS int AS 'x' LANGUAGE C", "an expression"),
    ("CREATE DOMAIN d AS text CHECK (f(VALUE))", "an expression"),
    ("CREATE DOMAIN d AS text DEFAULT f()", "an expression"),
    ("ALTER TYPE v OWNER TO somebody", "a change of owner"),
    ("DROP FUNCTION f() CASCADE", "a change of what depends"),
    ("DROP FUNCTION IF EXISTS f()", "may be there already"),
    ("CREATE FUNCTION f(v) RETURNS int AS 'x' LANGUAGE C; CREATE TYPE v AS (a int)", "before it is made"),
    ("CREATE FUNCTION f(v) RETURNS int AS 'x' LANGUAGE C; CREATE TYPE v", "before it is made"),
    ("COMMENT ON TYPE v IS 'a\\'; SELECT f(); --'", "not understood"),
    ("COMMENT ON TYPE v IS E'a\\'; SELECT f(); --'", "not understood"),
    ("COMMENT ON TYPE v IS U&'a'", "not understood"),
    ("COMMENT ON TYPE v IS E'a'", "escapes"),
    ("CREATE TYPE v; $x$ SELECT f()", "a body without end"),
    ("CREATE TYPE v; /* /* */ SELECT f()", "a comment without end"),
    ("CREATE TYPE v \x00", "not understood"),
    ("COMMENT ON TYPE v IS 'a' \\gexec", "not understood"),
]


@pytest.mark.parametrize("script", HARMLESS)
def test_statements_that_run_nothing(script: str) -> None:
    """Declarations, with names in them and literals at most."""
    assert find_hazard(script.encode()) is None


@pytest.mark.parametrize(("script", "reason"), HOSTILE)
def test_statements_that_could_run_something(script: str, reason: str) -> None:
    """What evaluates, replaces, or cannot be read with certainty is named with its reason."""
    found = find_hazard(script.encode())
    assert found is not None
    assert reason in found


def test_bytes_that_are_no_text() -> None:
    """A script that is not UTF-8 is not read."""
    assert find_hazard(b"-- \xff") is not None


def test_where_statements_end() -> None:
    """Semicolons in strings, bodies, names and comments end nothing."""
    script = """create type a; comment on type a is 'x;''y'; -- ;
    create function "f;"() returns a as $b$ ; $$ ; $b$ language c /* ; */;;"""
    assert [[text for _, text in each][:3] for each in split_script(script)] == [
        ["create", "type", "a"],
        ["comment", "on", "type"],
        ["create", "function", '"f;"'],
    ]


def test_an_extension_is_trusted_with_its_harmless_scripts(tmp_path: Path) -> None:
    """Its control file says so, only these scripts are there, and each that makes it begins with our question."""
    (tmp_path / "a.control").write_text("default_version = '1.1'\ntrusted = true\n")
    (tmp_path / "a--1.0.sql").write_text("CREATE TYPE a;")
    (tmp_path / "a--1.0--1.1.sql").write_text("COMMENT ON TYPE a IS 'b';")
    (tmp_path / "a--0.9--1.0.sql").write_text("SELECT 1;")
    files = choose_files(tmp_path)
    assert files == {
        "a.control": b"default_version = '1.1'\ntrusted = true\n",
        "a--1.0.sql": ASK_FOR_SCHEMA + b"CREATE TYPE a;",
        "a--1.0--1.1.sql": b"COMMENT ON TYPE a IS 'b';",
    }


def test_an_extension_without_proof_is_not_trusted(tmp_path: Path) -> None:
    """One hostile script on the way to the default version is enough. What nobody trusts is left alone."""
    (tmp_path / "a.control").write_text("default_version = '1.1'\ntrusted = true # it is\n")
    (tmp_path / "a--1.0.sql").write_text("CREATE TYPE a;")
    (tmp_path / "a--1.0--1.1.sql").write_text("SELECT 1;")
    (tmp_path / "b.control").write_text("default_version = '1.0'\n")
    (tmp_path / "b--1.0.sql").write_text("CREATE TYPE b;")
    files = choose_files(tmp_path)
    assert files.keys() == {"a.control"}
    assert b"trusted = false" in files["a.control"]
    assert b"trusted = true" not in files["a.control"]
