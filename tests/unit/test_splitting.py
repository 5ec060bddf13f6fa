"""Where the shell takes a statement to end."""

import pytest

from querygate.cli.splitting import Splitter, split


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
        ("select 'a\\'; x", ["select 'a\\'"], " x"),
        ("select 1 -- no; end\n; x", ["select 1 -- no; end"], " x"),
        ("select /* ; /* ; */ ; */ 1; x", ["select /* ; /* ; */ ; */ 1"], " x"),
        ("do $$ begin; end; $$; x", ["do $$ begin; end; $$"], " x"),
        ("do $a$ ; $$ ; $a$; x", ["do $a$ ; $$ ; $a$"], " x"),
        ("select 'open;", [], "select 'open;"),
        ("select $$open;", [], "select $$open;"),
        ("select /* open;", [], "select /* open;"),
    ],
)
def test_a_statement_ends_at_a_semicolon_of_its_own(text: str, statements: list[str], rest: str) -> None:
    """Not at one in a string, a name, a comment or a body."""
    assert split(text) == (statements, rest)


_FUNCTION = """create or replace function f(x int) returns int
begin atomic
  select case when x > 1 then 2 else case x when 0 then ';' end end;
  select x + 1;
end"""


@pytest.mark.parametrize(
    "statement",
    [
        _FUNCTION,
        "create rule r as on insert to t do also (insert into a values (1); delete from b)",
        "create function public.begin() returns int language sql as 'select 1'",
        "create function f() returns int language sql as $_$ select ';\n$$ $_$",
        'create table "a;\nb" (c text default \'x;\ny\'\'z\', "d""e" int)',
        "select E'a\\'\n;'",
        "select 1 /* ;\n /* ; */ \n */ + 1",
        "select 1 -- it's ;\n + 1",
    ],
)
def test_a_statement_is_one_however_its_lines_come(statement: str) -> None:
    """Line by line or all at once, and another one behind it."""
    text = f"{statement};\nselect 2;\n"
    assert split(text) == ([statement, "select 2"], "\n")
    splitter = Splitter()
    found = [one for line in text.splitlines(keepends=True) for one in splitter.feed(line)]
    assert found == [statement, "select 2"]
