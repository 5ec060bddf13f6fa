"""The data page: the tree, rows by pages, filters, foreign keys, edits, structure, import and diagram."""

import re
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.console.console import Console, open_console
from tests.control import Organization, new_organization
from tests.service import Service

STATEMENTS = (
    "create table country (code text primary key, name text not null)",
    "create table city (id int primary key, name text not null, country text references country, size int, "
    "facts jsonb)",
    "create table event (id bigint generated always as identity primary key, city_id int references city, note text)",
    "create view large as select * from city where size > 1000",
    "insert into country values ('de', 'Germany'), ('no', 'Norway')",
    "insert into city select n, 'City ' || n, case n % 2 when 0 then 'de' else 'no' end, nullif(n % 7, 0), "
    "jsonb_build_object('n', n) from generate_series(1, 250) n",
    "insert into event (city_id, note) select 2, 'event ' || n from generate_series(1, 3) n",
)


def _make(own: Organization) -> None:
    for statement in STATEMENTS:
        own.control.sql()(statement)


def _open(console: Console, own: Organization, table: str = "city", key: str | None = None) -> None:
    _make(own)
    console.sign_in(key or own.key, f"#/data/public/{table}")
    expect(console.cell(0, 0)).to_be_visible()


def test_pages_follow_the_key_in_both_directions_and_any_order(console: Console, own: Organization) -> None:
    _open(console, own)
    page = console.page
    expect(console.cell(1, 0)).to_have_text("2")
    page.get_by_role("button", name="Next page").click()
    expect(console.cell(0, 0)).to_have_text("101")
    page.get_by_role("button", name="Next page").click()
    expect(page.get_by_text("Page 3, 50 rows")).to_be_visible()
    expect(page.get_by_role("button", name="Next page")).to_be_disabled()
    page.get_by_role("button", name="Page before").click()
    expect(console.cell(0, 0)).to_have_text("101")
    page.get_by_role("columnheader", name="size").get_by_role("button").click()
    expect(console.cell(0, 3)).to_have_text("1")
    seen = _walk(console)
    assert len(seen) == len(set(seen)) == 250


def _walk(console: Console) -> list[str]:
    """The keys of all rows, page by page, as they are seen when somebody pages through with the keyboard."""
    page = console.page
    seen: list[str] = []
    for number, count in ((1, 100), (2, 100), (3, 50)):
        expect(page.get_by_text(f"Page {number}, {count} rows")).to_be_visible()
        console.cell(0, 0).click()
        found: dict[str, str] = {}
        for row in (*range(0, count, 20), count - 1):
            expect(console.cell(row, 0)).to_have_attribute("aria-selected", "true")
            found.update(
                console.grid.locator("[role=gridcell][aria-colindex='2']").evaluate_all(
                    "cells => cells.map(cell => [cell.parentElement.ariaRowIndex, cell.textContent])"
                )
            )
            page.keyboard.press("PageDown")
        assert len(found) == count
        seen += found.values()
        if number < 3:
            last = console.cell(count - 1, 0).inner_text()
            page.get_by_role("button", name="Next page").click()
            expect(console.cell(0, 0)).not_to_have_text(last)
    return seen


def test_rows_are_filtered_and_foreign_keys_followed(console: Console, own: Organization) -> None:
    _open(console, own)
    page = console.page
    page.get_by_role("button", name="+ Filter").click()
    page.get_by_label("Column", exact=True).select_option("name")
    page.get_by_label("Comparison").select_option("contains")
    page.get_by_label("Value", exact=True).fill("ty 20")
    page.get_by_role("button", name="Apply filters").click()
    expect(page.get_by_text("Page 1, 11 rows")).to_be_visible()
    console.cell(0, 2).get_by_role("link", name="Row of country").click()
    expect(page.get_by_role("heading", name="country")).to_be_visible()
    expect(console.cell(0, 1)).to_have_text("Germany")
    expect(page.get_by_text("Page 1, 1 row")).to_be_visible()
    console.cell(0, 0).click()
    page.get_by_role("button", name="← city.country").click()
    expect(page.get_by_text("Page 1, 100 rows")).to_be_visible()
    expect(console.cell(0, 0)).to_have_text("2")


def test_edits_are_staged_shown_as_sql_and_applied_together(console: Console, own: Organization) -> None:
    _open(console, own)
    page, sql = console.page, own.control.sql()
    console.edit(0, 1, "It's new")
    console.edit(1, 4, '{"n": 12345678901234567890}')
    console.cell(2, 0).click()
    page.get_by_role("button", name="Delete the row").click()
    page.get_by_role("button", name="New row").click()
    page.get_by_role("dialog").get_by_label("id").first.fill("999")
    page.get_by_role("dialog").get_by_label("name").first.fill("Added")
    page.get_by_role("button", name="Stage the row").click()
    staged = console.staged
    expect(staged).to_contain_text("update public.city set name = 'It''s new' where id = 1 and name = 'City 1';")
    expect(staged).to_contain_text("4 staged edits")
    assert sql.value("select name from city where id = 1") == "City 1"
    staged.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("4 edits applied.")).to_be_visible()
    expect(console.cell(0, 1)).to_have_text("It's new")
    rows = sql.rows(
        "select id, name, facts ->> 'n' from city where id in (1, 2, 3, 999) order by id", row_mode="arrays"
    )
    assert rows == [[1, "It's new", "1"], [2, "City 2", "12345678901234567890"], [999, "Added", None]]


def test_of_two_people_who_edit_one_row_the_second_is_asked(
    console: Console, own: Organization, browser: Browser, service: Service
) -> None:
    _open(console, own)
    sql = own.control.sql()
    with open_console(browser, service) as other:
        other.sign_in(own.key, "#/data/public/city")
        for person, name in ((console, "Mine"), (other, "Theirs")):
            expect(person.cell(0, 1)).to_have_text("City 1")
            person.edit(0, 1, name)
        console.edit(1, 1, "Also mine")
        other.staged.get_by_role("button", name="Apply").click()
        expect(other.page.get_by_text("1 edit applied.")).to_be_visible()
        console.staged.get_by_role("button", name="Apply").click()
        expect(console.alert).to_contain_text("Somebody has changed a row that you edited. Nothing was applied.")
        expect(console.staged).to_contain_text("you saw City 1, it is now Theirs, yours is Mine")
        assert sql.value("select name from city where id = 2") == "City 2"
        console.page.get_by_role("button", name="Keep my change").click()
        console.staged.get_by_role("button", name="Apply").click()
        expect(console.page.get_by_text("2 edits applied.")).to_be_visible()
        assert sql.value("select name from city where id = 1") == "Mine"


def test_an_edit_that_the_engine_refuses_is_kept_with_the_others(console: Console, own: Organization) -> None:
    _open(console, own)
    console.edit(0, 1, "Good")
    console.edit(1, 2, "xx")
    console.staged.get_by_role("button", name="Apply").click()
    expect(console.alert).to_contain_text("Edit 2 of 2")
    expect(console.alert).to_contain_text("violates foreign key constraint")
    expect(console.staged).to_contain_text("2 staged edits")
    assert own.control.sql().value("select name from city where id = 1") == "City 1"
    console.staged.get_by_role("button", name="Drop all").click()
    console.page.get_by_role("button", name="Undo").click()
    expect(console.staged).to_contain_text("2 staged edits")
    console.staged.get_by_role("button", name="Drop all").click()


def test_a_read_key_and_a_view_may_not_be_edited(console: Console, own: Organization) -> None:
    key = own.control.post("/v1/keys", {"name": "reader", "scopes": ["read"]})["key"]
    _open(console, own, key=key)
    expect(console.page.get_by_text("Your key may only read.")).to_be_visible()
    console.cell(0, 1).dblclick()
    expect(console.page.get_by_role("complementary", name="Value of name")).to_be_visible()
    expect(console.page.get_by_role("button", name="New row")).to_have_count(0)
    expect(console.page.get_by_role("link", name="Keys")).to_have_count(0)


def test_a_session_that_ends_in_the_middle_of_edits_keeps_them(console: Console, own: Organization) -> None:
    console.expected = ["401"]
    made = own.control.post("/v1/keys", {"name": "short", "scopes": ["write"]})
    _open(console, own, key=made["key"])
    console.edit(0, 1, "Survives")
    console.cell(1, 1).dblclick()
    editor = console.page.get_by_role("textbox", name="New value of name")
    editor.fill("Half typed")
    own.control.delete(f"/v1/keys/{made['id']}")
    dialog = console.page.get_by_role("dialog", name="Your session has ended")
    while not dialog.is_visible():
        console.page.get_by_role("button", name="Load again").click(timeout=2000, force=True)
        console.page.wait_for_timeout(100)
    dialog.get_by_label("API key").fill(own.key)
    console.page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    expect(console.staged).to_contain_text("set name = 'Survives'")
    expect(editor).to_have_value("Half typed")
    editor.press("Escape")
    console.staged.get_by_role("button", name="Apply").click()
    expect(console.page.get_by_text("1 edit applied.")).to_be_visible()


def test_edits_survive_a_reload_for_their_table_alone_and_go_at_sign_out(
    console: Console, own: Organization, service: Service
) -> None:
    _open(console, own)
    other = new_organization(service)
    other.control.sql()(STATEMENTS[0])
    other.control.sql()(STATEMENTS[1])
    page = console.page
    page.on("dialog", lambda dialog: dialog.accept())
    console.edit(0, 1, "Staged")
    console.cell(1, 1).dblclick()
    page.get_by_role("textbox", name="New value of").fill("Half typed")
    page.reload()
    for name in ("Staged", "Half typed"):
        expect(console.staged).to_contain_text(f"set name = '{name}'")
    page.evaluate("location.hash = '#/data/public/country'")
    expect(console.cell(0, 1)).to_have_text("Germany")
    expect(console.staged).to_have_count(0)
    page.get_by_role("button", name="New row").click()
    page.get_by_role("dialog").get_by_label("name").first.fill("Atlantis")
    page.reload()
    expect(page.get_by_role("dialog").get_by_label("name").first).to_have_value("Atlantis")
    page.get_by_role("button", name="Cancel").click()
    page.evaluate("location.hash = '#/data/public/city'")
    console.cell(2, 1).dblclick()
    page.get_by_role("textbox", name="New value of").fill("Left behind")
    page.evaluate("location.hash = '#/data/public/country'")
    expect(console.cell(0, 1)).to_have_text("Germany")
    page.goto(other.control.post("/v1/console/codes")["url"])
    page.get_by_role("button", name="Use the code").click()
    expect(page.get_by_text(f"Signed in to {other.name}")).to_be_visible()
    page.evaluate("location.hash = '#/data/public/city'")
    expect(page.get_by_text("No rows here")).to_be_visible()
    expect(console.staged).to_have_count(0)
    page.goto(own.control.post("/v1/console/codes")["url"])
    page.get_by_role("button", name="Use the code").click()
    expect(page.get_by_text(f"Signed in to {own.name}")).to_be_visible()
    page.evaluate("location.hash = '#/data/public/city'")
    expect(console.staged).to_contain_text("3 staged edits")
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("button", name="Drop them and sign out").click()
    expect(page.get_by_label("API key")).to_be_visible()
    assert "Staged" not in page.evaluate("JSON.stringify({...sessionStorage})")
    console.sign_in(own.key, "#/data/public/city")
    expect(console.cell(0, 1)).to_have_text("City 1")
    expect(console.staged).to_have_count(0)


def test_the_structure_shows_a_statement_that_makes_the_table(console: Console, own: Organization) -> None:
    _make(own)
    console.sign_in(own.key, "#/data/public/city/structure")
    page = console.page
    expect(page.get_by_text("FOREIGN KEY (country) REFERENCES country(code)").first).to_be_visible()
    expect(page.get_by_role("link", name="public.event")).to_be_visible()
    create = page.get_by_label("CREATE statement").inner_text()
    sql = own.control.sql()
    sql("drop table event, city cascade")
    sql(create.rstrip().rstrip(";"))
    assert sql.value("select count(*) from city") == 0
    console.go("Data")
    page.get_by_role("link", name="Diagram").click()
    diagram = page.get_by_role("group", name="Tables and foreign keys")
    expect(diagram.get_by_role("link", name="country code")).to_be_visible()


def test_the_tree_shows_indexes_constraints_and_sizes(console: Console, own: Organization) -> None:
    sql = own.control.sql()
    for statement in (
        *STATEMENTS[:2],
        "create index by_size on city (size) where size > 0",
        "alter table city add constraint positive check (size >= 0), add constraint one_name unique (name)",
    ):
        sql(statement)
    console.sign_in(own.key, "#/data/public/city")
    tree = console.page.get_by_role("complementary", name="Schema")
    indexes = tree.get_by_role("list", name="Indexes of city").get_by_role("listitem")
    expect(indexes).to_have_text(
        [re.compile(r"^city_pkey \(id\).* \d.* kB$"), re.compile("^by_size .*WHERE"), re.compile("^one_name .*unique")]
    )
    constraints = tree.get_by_role("list", name="Constraints of city").get_by_role("listitem")
    expect(constraints).to_have_text(
        [
            "city_pkey primary key (id)",
            "one_name unique (name)",
            "city_country_fkey foreign key (country) REFERENCES country(code)",
            re.compile(r"^positive check \(\(?size >= 0\)?\)$"),
        ]
    )
    expect(tree.get_by_role("listitem").filter(has_text="country").first).to_contain_text("→ country")
    expect(tree.get_by_role("link", name="city")).to_contain_text("kB")
    sql("create index later on city (country)")
    tree.get_by_role("button", name="Load the schema again").click()
    expect(indexes.filter(has_text="later")).to_have_count(1)


def test_a_csv_file_is_previewed_with_types_and_imported_whole(
    signed_in: Console, own: Organization, tmp_path: Path
) -> None:
    file = tmp_path / "My cities.csv"
    file.write_text(
        'Id;Name;Founded;Zip\r\n1;"a;b";1237-01-01;01234\r\n2;"say ""hi""\n\nthen go";;00001\n3;"";1999-12-31;\n'
    )
    page = signed_in.page
    signed_in.go("Data")
    page.get_by_role("link", name="Import a CSV file").click()
    page.get_by_label("CSV file").set_input_files(file)
    expect(page.get_by_label("Type of id")).to_have_value("integer")
    expect(page.get_by_label("Type of founded")).to_have_value("date")
    expect(page.get_by_label("Type of zip")).to_have_value("text")
    expect(page.get_by_role("cell", name='say "hi"↵↵then go')).to_be_visible()
    page.get_by_role("button", name="Import 3 rows").click()
    expect(page.get_by_role("heading", name="my_cities")).to_be_visible()
    rows = own.control.sql().rows("select * from my_cities order by id", row_mode="arrays")
    assert rows == [
        [1, "a;b", "1237-01-01", "01234"],
        [2, 'say "hi"\n\nthen go', None, "00001"],
        [3, "", "1999-12-31", None],
    ]


def test_a_row_that_cannot_be_imported_is_named_and_leaves_nothing(
    signed_in: Console, own: Organization, tmp_path: Path
) -> None:
    own.control.sql()("create table small (n int check (n <> 13), born date, note text unique)")
    good = [f'{n},2000-01-01,"a\nnote {n}"' for n in range(100, 5000)]
    page = signed_in.page
    signed_in.command("Load the schema again")
    signed_in.go("Data")
    page.get_by_role("link", name="Import a CSV file").click()
    # Each of the rows before takes two lines of the file.
    wanted = {  # by the row that is wrong
        "7,1999-02-30,x": "Line 9802, column born: date/time field value out of range",
        "13,,x": 'Line 9802: new row for relation "small" violates check constraint',
        '7,,"a\nnote 2222"': 'Line 9802: duplicate key value violates unique constraint "small_note_key"',
        "7,x": "Line 9802 has 2 fields, and the first line has 3.",
        '7,"x': "Line 9802, field 2: a quote is opened and never closed.",
    }
    for number, (row, told) in enumerate(wanted.items(), 1):
        file = tmp_path / "small.csv"
        more = [] if '"x' in row else [f"8,,last {n}" for n in range(number)]
        file.write_text("\n".join(["n,born,note", *good, row, *more, ""]))
        page.get_by_label("CSV file").set_input_files(file)
        # The count tells this file from the one before.
        button = page.get_by_role("button", name=f"Import {4901 + len(more):,} rows")
        expect(button).to_be_visible()
        if button.is_enabled():
            expect(page.get_by_text("The rows are added to the table public.small.")).to_be_visible()
            button.click()
            expect(signed_in.alert).to_contain_text("Nothing was imported.")
        expect(signed_in.alert.filter(has_text=told)).to_be_visible()
        assert own.control.sql().value("select count(*) from small") == 0
        file.unlink()
    (tmp_path / "latin.csv").write_bytes("n,note\n1,Zürich\n".encode("latin-1"))
    page.get_by_label("CSV file").set_input_files(tmp_path / "latin.csv")
    expect(signed_in.alert.filter(has_text="The file is not UTF-8.")).to_be_visible()


def test_types_of_any_name_are_imported(signed_in: Console, own: Organization, tmp_path: Path) -> None:
    sql = own.control.sql()
    hostile = "text) from pg_class -- "
    sql("""create type "My Mood" as enum ('Ok', 'Sad')""")
    sql(f"""create type "{hostile}" as enum ('q')""")
    sql(f'create table feeling (id int, m "My Mood", z "{hostile}", b bit(3), c char(3), v varchar(3))')
    page = signed_in.page
    signed_in.command("Load the schema again")
    page.evaluate("location.hash = '#/data?view=import'")
    file = tmp_path / "feeling.csv"
    file.write_text("id,m,z,b,c,v\n1,Ok,q,101,abc,abc\n2,Sad,,010,a,\n")
    page.get_by_label("CSV file").set_input_files(file)
    page.get_by_role("button", name="Import 2 rows").click()
    expect(page.get_by_role("heading", name="feeling")).to_be_visible()
    rows = sql.rows("select id, m::text, z::text, b, c::text, v from feeling order by id", row_mode="arrays")
    assert rows == [[1, "Ok", "q", "101", "abc", "abc"], [2, "Sad", None, "010", "a", None]]
    page.evaluate("location.hash = '#/data?view=import'")
    file.write_text("id,m,z,b,c,v\n3,Ok,q,101,abc,abc\n4,Ok,q,101,abc,abcd\n5,Ok,q,101,abc,abc\n")
    page.get_by_label("CSV file").set_input_files(file)
    page.get_by_role("button", name="Import 3 rows").click()
    expect(signed_in.alert).to_contain_text("Line 3: value too long for type character varying(3)")
    file.write_text("id,m,z,b,c,v\n3,Ok,q,101,abc,abc\n4,Bad,q,101,abc,abc\n")
    page.get_by_label("CSV file").set_input_files(file)
    page.get_by_role("button", name="Import 2 rows").click()
    expect(signed_in.alert).to_contain_text("Line 3, column m: invalid input value for enum")
