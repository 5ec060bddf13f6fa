"""Where the shell takes a statement to end, and a command to begin."""

import pytest

from tuplegate.cli.splitting import CommandLine, Reader, Splitter, SqlStatement, is_complete


def read(*texts: str) -> tuple[list[str], str]:
    """Statements and commands, and what is left."""
    reader = Reader()
    found = [part for text in texts for part in reader.feed(text)]
    return [part.sql if isinstance(part, SqlStatement) else part.text for part in found], reader.pending


@pytest.mark.parametrize(
    ("text", "statements", "rest"),
    [
        ("select 1;", ["select 1"], ""),
        ("select 1; select 2 ;", ["select 1", "select 2"], ""),
        ("select 1", [], "select 1"),
        (";;", [], ""),
        ("select ';'; x", ["select ';'"], " x"),
        ("select 'it''s;'; x", ["select 'it''s;'"], " x"),
        ('select 1 as "a;b"; x', ['select 1 as "a;b"'], " x"),
        ("select E'a\\';'; x", ["select E'a\\';'"], " x"),
        ("select e'it''s \\';'; x", ["select e'it''s \\';'"], " x"),
        ("select 'a\\'; x", ["select 'a\\'"], " x"),
        ("select 1 -- no; end\n; x", ["select 1 -- no; end"], " x"),
        ("select /* ; /* ; */ ; */ 1; x", ["select /* ; /* ; */ ; */ 1"], " x"),
        ("do $$ begin; end; $$; x", ["do $$ begin; end; $$"], " x"),
        ("do $a$ ; $$ ; $a$; x", ["do $a$ ; $$ ; $a$"], " x"),
        ("select a$b$ from t; x", ["select a$b$ from t"], " x"),
        ("select 'open;", [], "select 'open;"),
        ("select $$open;", [], "select $$open;"),
        ("select /* open;", [], "select /* open;"),
        ("create rule r as on insert to t do (notify a; notify b); x",
         ["create rule r as on insert to t do (notify a; notify b)"], " x"),
        ("create function f() returns int begin atomic select case when true then 1 end; select 2; end; x",
         ["create function f() returns int begin atomic select case when true then 1 end; select 2; end"], " x"),
        ("create or replace procedure p() begin atomic select 1; end; x",
         ["create or replace procedure p() begin atomic select 1; end"], " x"),
        ("begin; select 1; end; x", ["begin", "select 1", "end"], " x"),
    ],
)  # fmt: skip
def test_a_statement_ends_at_a_semicolon_of_its_own(text: str, statements: list[str], rest: str) -> None:
    """Not at one in a string, a name, a comment or a body; the same, however the text is cut into lines."""
    assert read(text) == (statements, rest)
    assert read(*text.splitlines(keepends=True)) == (statements, rest)
    script = Splitter()
    assert (script.feed(text), script.rest) == (statements, rest)


@pytest.mark.parametrize(
    ("text", "parts", "rest"),
    [
        ("\\d t\nselect 1;", ["\\d t", "select 1"], ""),
        ("select 1; \\x", ["select 1", "\\x"], ""),
        ("select 1 \\g\n", ["\\g"], "select 1 \n"),
        ("select '\\d'; x", ["select '\\d'"], " x"),
        ("select $$\n\\d\n$$;", ["select $$\n\\d\n$$"], ""),
        ("select 1 -- \\d\n;", ["select 1 -- \\d"], ""),
    ],
)
def test_a_command_begins_at_a_backslash_and_ends_with_its_line(text: str, parts: list[str], rest: str) -> None:
    """Outside of quotes and comments."""
    found, left = read(text)
    assert (found, left.strip()) == (parts, rest.strip())


def test_in_a_script_a_backslash_is_a_character() -> None:
    """The engine is the one to complain."""
    assert Splitter().feed("select 1 \\d;\n") == ["select 1 \\d"]


def test_what_is_pending_can_be_cleared_between_two_parts() -> None:
    """As a command does that takes it."""
    reader = Reader()
    seen = []
    for part in reader.feed("select 1\n\\g\nselect 2;"):
        seen.append(part)
        if isinstance(part, CommandLine):
            assert reader.pending.strip() == "select 1"
            reader.clear()
    assert seen == [CommandLine("\\g"), SqlStatement("select 2")]


@pytest.mark.parametrize(
    ("text", "inside"),
    [("select 'a\n", "'"), ('select "a', '"'), ("$x$", "$x$"), ("/* a", "/*"), ("select (1", "("), ("select 1", "")],
)
def test_what_is_open_is_told(text: str, inside: str) -> None:
    """So that a person sees why nothing happens."""
    reader = Reader()
    assert list(reader.feed(text)) == []
    assert reader.inside == inside


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("", True),
        ("select 1", False),
        ("select 1;", True),
        ("select 1; select", False),
        ("\\d", True),
        ("select 1 \\g", True),
        ("select 1 \\p\nand", False),
        ("select ';", False),
        ("select 1; -- done", True),
    ],
)
def test_it_is_known_when_nothing_is_missing(text: str, complete: bool) -> None:
    """Then Enter runs it, else it begins another line."""
    assert is_complete("", text) is complete
