"""An edit is applied only to what was seen: the whole of each value, to the letter."""

import pytest
from playwright.sync_api import expect

from tests.console.console import Console
from tests.control import Organization

CHANGED = "Somebody has changed a row that you edited. Nothing was applied."


def _make(own: Organization, *statements: str) -> None:
    for statement in statements:
        own.control.sql()(statement)


def _apply_in_vain(console: Console, told: str) -> None:
    """Apply, and be told that something has changed."""
    console.staged.get_by_role("button", name="Apply").click()
    expect(console.alert).to_contain_text(CHANGED)
    expect(console.staged).to_contain_text(told)


def _settle(console: Console, how: str) -> None:
    console.staged.get_by_role("button", name=how).click()
    expect(console.alert).to_have_count(0)


def test_a_change_behind_the_part_that_is_shown_stops_a_delete(console: Console, own: Organization) -> None:
    _make(
        own,
        "create table long (id int primary key, body text, plain text)",
        "insert into long values (1, repeat('x', 5000) || 'seen', 'p')",
    )
    console.sign_in(own.key, "#/data/public/long")
    console.cell(0, 2).click()
    console.page.get_by_role("button", name="Delete the row").click()
    for end in ("first", "next"):
        _make(own, f"update long set body = repeat('x', 5000) || '{end}'")
        _apply_in_vain(console, "body: it has changed behind the part that is shown")
        expect(console.staged).not_to_contain_text("plain:")
        _settle(console, "Keep my change")
    console.staged.get_by_role("button", name="Apply").click()
    expect(console.page.get_by_text("1 edit applied.")).to_be_visible()
    assert own.control.sql().value("select count(*) from long") == 0


def test_a_change_behind_the_part_that_is_shown_stops_an_edit(console: Console, own: Organization) -> None:
    _make(
        own,
        "create table long (id int primary key, body text)",
        "insert into long values (1, repeat('x', 5000) || 'seen')",
    )
    console.sign_in(own.key, "#/data/public/long")
    console.edit(0, 1, "mine")
    for end in ("first", "next"):
        _make(own, f"update long set body = repeat('x', 5000) || '{end}'")
        _apply_in_vain(console, "body: it has changed behind the part that is shown, yours is mine")
        _settle(console, "Keep my change")
    console.staged.get_by_role("button", name="Apply").click()
    expect(console.page.get_by_text("1 edit applied.")).to_be_visible()
    assert own.control.sql().value("select body from long") == "mine"


@pytest.mark.parametrize(
    ("kind", "seen", "meanwhile"),
    [
        ("numeric", "1.10", "1.1"),
        ("interval", "1 day", "24:00:00"),
        ("float8", "0", "-0"),
        ("citext", "a", "A"),
    ],
)
def test_a_value_that_is_equal_and_written_otherwise_is_a_change(
    console: Console, own: Organization, kind: str, seen: str, meanwhile: str
) -> None:
    _make(
        own,
        "create extension citext",
        f"create table t (id int primary key, v {kind})",
        f"insert into t values (1, '{seen}')",
    )
    console.sign_in(own.key, "#/data/public/t")
    expect(console.cell(0, 1)).to_have_text(seen)
    console.edit(0, 1, "7")
    _make(own, f"update t set v = '{meanwhile}'")
    _apply_in_vain(console, f"v: you saw {seen}, it is now {meanwhile}, yours is 7")
    _settle(console, "Drop my change")
    console.cell(0, 1).click()
    console.page.get_by_role("button", name="Delete the row").click()
    _make(own, f"update t set v = '{seen}'")
    _apply_in_vain(console, f"v: you saw {meanwhile}, it is now {seen}")
