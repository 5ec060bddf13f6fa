"""What the shell offers at the cursor, which is the bar in each text."""

import pytest

from tuplegate.cli.shell.completion.completion import suggest, suggest_relations
from tuplegate.cli.shell.completion.names import Names

NAMES = Names(
    frozenset({"public", "sales", "pg_catalog"}),
    {
        ("public", "users"): ("id", "email", "Full Name"),
        ("public", "orders"): ("id", "user_id", "total"),
        ("sales", "region"): ("code", "label"),
        ("pg_catalog", "pg_class"): ("oid", "relname"),
    },
    frozenset({("pg_catalog", "lower"), ("public", "my_function")}),
)


def offered(text: str) -> list[str]:
    before, after = text.split("|")
    return [candidate.text for candidate in suggest(before, after, NAMES)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("sel|", ["select"]),
        ("SEL|", ["SELECT"]),
        ("select u.| from users u", ["id", "email", '"Full Name"']),
        ("select u.em| from users as u", ["email"]),
        ("select users.e| from users", ["email"]),
        ("select * from orders o join users u on u.id = o.us|", ["user_id"]),
        ("select * from users, orders o where o.to|", ["total"]),
        ("update orders set to|", ["to", "total"]),
        ("insert into orders (us|", ["user_id", "using"]),
        ("select ema| from users", ["email"]),
        ('select "F| from users', ['"Full Name"']),
        ("select * from us|", ["users"]),
        ("select * from users, or|", ["orders"]),
        ("select * from sales.|", ["region"]),
        ("select * from sales.region r where r.co|", ["code"]),
        ("select sales.region.la| from sales.region", ["label"]),
        ("select * from pg_cl|", ["pg_class"]),
        ("select my_f|", ["my_function"]),
        ("select low|", ["lower"]),
        ("with recent as (select 1) select * from rec|", ["recent"]),
        ("select 1; select u.em| from users u; select 2", ["email"]),
        ("select 1 as na|", []),
        ("select 'us|", []),
        ("select 1 -- us|", []),
        ("select /* us|", []),
        ("select $$us|", []),
        ("select nothing.|", []),
        ("\\d us|", []),
    ],
)
def test_what_fits_at_the_cursor_is_offered(text: str, wanted: list[str]) -> None:
    """Names are quoted where they need it; nothing in strings and comments."""
    found = offered(text)
    assert [name for name in found if name in wanted] == sorted(wanted, key=found.index), found
    assert len(found) == len(wanted), found


def test_columns_come_before_keywords() -> None:
    """And what is offered replaces only the word behind the dot."""
    assert offered("select | from users u")[:4] == ["id", "email", '"Full Name"', "u"]
    [candidate] = suggest("select users.em", " from users", NAMES)
    assert (candidate.text, candidate.typed) == ("email", 2)


def test_a_command_that_takes_a_relation_is_offered_relations() -> None:
    """With and without a schema."""
    assert [c.text for c in suggest_relations("\\d us", NAMES)] == ["users"]
    assert [c.text for c in suggest_relations("\\d sales.", NAMES)] == ["region"]
