"""Where the shell takes a statement to end."""

import pytest

from querygate.cli.splitting import split


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
