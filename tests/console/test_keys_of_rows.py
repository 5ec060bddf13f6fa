"""Edits reach the row that was shown, whatever happens to the table meanwhile, and values arrive as they were typed."""

from pathlib import Path

from playwright.sync_api import Route, expect

from tests.console.console import Console
from tests.control import Organization


def _apply(console: Console) -> None:
    console.staged.get_by_role("button", name="Apply").click()


def _show(console: Console, table: str, schema: str = "public") -> None:
    console.page.evaluate("hash => { location.hash = hash }", f"#/data/{schema}/{table}")
    expect(console.page.get_by_role("heading", level=1)).to_contain_text(table)


def _make(own: Organization, *statements: str) -> None:
    for statement in statements:
        own.control.sql()(statement)


def test_rows_are_read_again_where_the_columns_have_changed(console: Console, own: Organization) -> None:
    _make(
        own,
        "create table shifted (a int, id int primary key, x int, y int)",
        "insert into shifted values (20, 10, 1, 1), (10, 20, 1, 1)",
    )
    console.sign_in(own.key, "#/data/public/shifted")
    expect(console.cell(0, 1)).to_have_text("10")
    _make(own, "alter table shifted drop column a")
    held: list[Route] = []

    def hold(route: Route) -> None:
        if "shifted" in (route.request.post_data or ""):
            held.append(route)
        else:
            route.continue_()

    console.page.route("**/v1/query", hold)
    console.page.get_by_role("button", name="Load the schema again").click()
    expect(console.page.get_by_role("columnheader", name="a int4")).to_have_count(0)
    expect(console.grid.get_by_text("20")).to_have_count(0)
    for route in held:
        route.continue_()
    console.page.unroute("**/v1/query")
    expect(console.cell(0, 0)).to_have_text("10")
    console.edit(0, 1, "5")
    _apply(console)
    expect(console.page.get_by_text("1 edit applied.")).to_be_visible()
    assert own.control.sql().rows("select * from shifted order by id", row_mode="arrays") == [[10, 5, 1], [20, 1, 1]]


def test_an_edit_names_its_key_by_its_columns(console: Console, own: Organization) -> None:
    _make(
        own,
        "create table moved (a int primary key, b int not null unique, v text)",
        "insert into moved values (1, 2, 'one'), (2, 1, 'two')",
    )
    console.sign_in(own.key, "#/data/public/moved")
    console.edit(0, 2, "changed")
    console.cell(1, 0).click()
    console.page.get_by_role("button", name="Delete the row").click()
    _make(
        own, "alter table moved drop constraint moved_pkey, add primary key (b), drop v", "alter table moved add v text"
    )
    _make(own, "update moved set v = case a when 1 then 'one' else 'two' end")
    console.page.get_by_role("button", name="Load the schema again").click()
    expect(console.page.get_by_role("columnheader", name="key int4")).to_contain_text("b")
    expect(console.staged).to_contain_text("where a = 1 and")
    _apply(console)
    expect(console.alert).to_contain_text("primary key")
    assert own.control.sql().rows("select a, b, v from moved order by a", row_mode="arrays") == [
        [1, 2, "one"],
        [2, 1, "two"],
    ]


def test_rows_with_long_keys_are_told_apart_and_those_of_parents_are_not_edited(
    console: Console, own: Organization
) -> None:
    _make(
        own,
        "create table long (k text primary key, v text)",
        "insert into long select repeat('k', 5000) || n, 'old' from unnest(array['a', 'b']) n",
        "create table parent (id int primary key, v text)",
        "create table child () inherits (parent)",
        "insert into parent values (1, 'parent')",
        "insert into child values (1, 'child')",
    )
    console.sign_in(own.key, "#/data/public/long")
    console.edit(0, 1, "first")
    console.edit(1, 1, "second")
    _apply(console)
    expect(console.page.get_by_text("2 edits applied.")).to_be_visible()
    assert own.control.sql().rows("select right(k, 1), v from long order by k", row_mode="arrays") == [
        ["a", "first"],
        ["b", "second"],
    ]
    _show(console, "parent")
    expect(console.page.get_by_text("Rows cannot be edited: other tables inherit from this one")).to_be_visible()
    expect(console.page.get_by_role("button", name="New row")).to_have_count(0)
    _show(console, "child")
    expect(console.page.get_by_text("no primary key")).to_be_visible()


def test_a_file_goes_into_the_table_of_its_name_in_public(console: Console, own: Organization, tmp_path: Path) -> None:
    _make(own, "create schema app", "create table app.orders (v text)", "create table public.orders (v text)")
    file = tmp_path / "orders.csv"
    file.write_text("v\none\n\ntwo\n")
    console.sign_in(own.key, "#/data?view=import")
    page = console.page
    page.get_by_label("CSV file").set_input_files(file)
    expect(page.get_by_text("The rows are added to the table public.orders.")).to_be_visible()
    page.get_by_role("textbox", name="Table").fill("app.orders")
    expect(page.get_by_text("The rows are added to the table app.orders.")).to_be_visible()
    page.get_by_role("textbox", name="Table").fill("orders")
    page.get_by_role("button", name="Import 3 rows").click()
    expect(page.get_by_text("3 rows imported into public.orders.")).to_be_visible()
    sql = own.control.sql()
    assert sql.rows("select v from public.orders order by v", row_mode="arrays") == [["one"], ["two"], [None]]
    assert sql.value("select count(*) from app.orders") == 0


def test_values_are_kept_as_they_were_typed(console: Console, own: Organization) -> None:
    _make(
        own,
        "create table typed (id int primary key, lines text, n int, body text, up text unique)",
        "insert into typed values (1, E'a\\r\\nb', 1, repeat('x', 5000), null)",
        "create table below (id int primary key, up text references typed (up))",
        "create table public.pg_am (id int primary key, own text)",
        "insert into public.pg_am values (1, 'my own')",
        "create table document (k jsonb primary key, body text)",
        "insert into document select to_jsonb(n), repeat('y', 5000) from generate_series(1, 150) n",
    )
    console.sign_in(own.key, "#/data/public/typed")
    page, sql = console.page, own.control.sql()
    console.edit(0, 1, "a\nb\nc")
    console.edit(0, 2, "19.99")
    _apply(console)
    expect(console.alert).to_contain_text("invalid input syntax")
    console.edit(0, 2, "20")
    console.edit(0, 3, "z" * 4500)
    console.cell(0, 3).dblclick()
    expect(page.get_by_role("textbox", name="New value of")).to_have_value("z" * 4500)
    page.keyboard.press("Enter")
    _apply(console)
    expect(page.get_by_text("1 edit applied.")).to_be_visible()
    row = sql.rows("select lines, n, length(body), left(body, 1) from typed", row_mode="arrays")
    assert row == [["a\r\nb\r\nc", 20, 4500, "z"]]
    console.cell(0, 4).click()
    expect(page.get_by_role("button", name="← below.up")).to_have_count(0)
    page.get_by_role("button", name="Delete the row").click()
    sql("update typed set n = 21")
    _apply(console)
    expect(console.staged).to_contain_text("n: you saw 20, it is now 21")
    console.staged.get_by_role("button", name="Drop my change").click()
    _show(console, "pg_am")
    expect(console.cell(0, 1)).to_have_text("my own")
    _show(console, "document")
    console.cell(0, 1).dblclick()
    expect(page.get_by_role("textbox", name="New value of body")).to_have_value("y" * 5000)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Next page").click()
    expect(console.cell(0, 0)).to_have_text("101")
