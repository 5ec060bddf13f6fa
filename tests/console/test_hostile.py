"""Hostile names, values, errors and links: they are text, and nothing of them runs."""

from urllib.parse import quote

from playwright.sync_api import expect

from tests.console.console import Console
from tests.control import Organization

IMAGE = "<img src=x onerror=hacked=1>"
INVISIBLE = "select 1 -- \u202e\u2068\u200c drop"
NAMES = (
    IMAGE,
    '"><script>hacked=1</script>',
    "javascript:hacked=1",
    "\u202eevil\u2066",
    "a'b\"c\\d",
    "../..",
    "%00#?&",
)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _is_unharmed(console: Console) -> bool:
    return bool(console.page.evaluate("typeof window.hacked === 'undefined'"))


def test_names_and_values_are_text_everywhere(signed_in: Console, own: Organization) -> None:
    page, sql = signed_in.page, own.control.sql()
    for name in NAMES:
        column = _quote(name[:60])
        sql(f"create table {column} ({column} text primary key, doc jsonb)")
        sql(f"insert into {column} values ($1, $2)", [name, {name: name}])
    signed_in.command("Load the schema again")
    signed_in.go("Data")
    for name in NAMES:
        page.evaluate("hash => { location.hash = hash }", f"#/data/public/{quote(name[:60], safe='')}")
        expect(page.get_by_role("heading", level=1)).to_contain_text(name)
        expect(signed_in.cell(0, 0)).to_have_text(name)
        signed_in.cell(0, 1).click()
        page.get_by_role("button", name="Value", exact=True).click()
        expect(page.locator(".viewer")).to_contain_text(name)
        page.get_by_role("link", name="Structure").click()
        expect(page.get_by_label("CREATE statement")).to_contain_text("create table")
    page.evaluate("location.hash = '#/data?view=diagram'")
    expect(page.get_by_role("group", name="Tables and foreign keys")).to_contain_text("<img src=x")
    signed_in.command("<img")
    expect(page.get_by_role("heading", level=1)).to_contain_text(IMAGE)
    assert _is_unharmed(signed_in)


def test_errors_notices_results_and_links_are_text(signed_in: Console) -> None:
    page = signed_in.page
    signed_in.run(
        f"do $$ begin raise notice '%', '{IMAGE}'; raise exception using message = '{IMAGE}', hint = '{IMAGE}'; end $$"
    )
    expect(signed_in.alert).to_contain_text(IMAGE)
    signed_in.run(f"""select '{IMAGE}' as "{IMAGE}", '{{"{IMAGE}": 1}}'::jsonb as doc""")
    expect(signed_in.cell(0, 0)).to_have_text(IMAGE)
    signed_in.cell(0, 1).dblclick()
    expect(page.locator(".viewer")).to_contain_text(IMAGE)
    for link in (
        f"#/query?sql={quote(IMAGE)}",
        f"#/{quote(IMAGE)}",
        "#/data/%E0%A4%A/%",
        "#/data/public/x?where=[[1]]",
        "#code",
    ):
        page.evaluate("hash => { location.hash = hash }", link)
        expect(page.locator("main")).not_to_be_empty()
    page.evaluate("location.hash = '#/query'")
    expect(signed_in.editor).to_contain_text(IMAGE)
    page.evaluate("hash => { location.hash = hash }", f"#/query?sql={quote(INVISIBLE)}")
    expect(page.locator(".cm-specialChar")).to_have_count(3)
    page.get_by_role("button", name="History").click()
    expect(page.get_by_role("dialog", name="History")).to_contain_text(IMAGE)
    assert _is_unharmed(signed_in)


def test_a_cell_of_ten_megabytes_is_shown_in_part_and_edited_in_whole(signed_in: Console, own: Organization) -> None:
    page, sql = signed_in.page, own.control.sql()
    sql("create table long (id int primary key, body text, other text)")
    sql("insert into long select 1, repeat('x', 10000000) || 'end', repeat('y', 5000)")
    signed_in.run("select body from long")
    expect(signed_in.cell(0, 0)).to_contain_text("xxx…")
    signed_in.cell(0, 0).dblclick()
    expect(page.locator(".viewer")).to_contain_text("10,000,003 characters")
    expect(page.locator(".viewer")).to_contain_text("more characters")
    signed_in.command("Load the schema again")
    page.evaluate("location.hash = '#/data/public/long'")
    signed_in.cell(0, 2).dblclick()
    editor = page.get_by_role("textbox", name="New value of other")
    expect(editor).to_have_value("y" * 5000)
    editor.fill("z")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Apply", exact=True).click()
    expect(page.get_by_text("1 edit applied.")).to_be_visible()
    assert sql.value("select other from long") == "z"
    assert sql.value("select length(body) from long") == 10_000_003


def test_a_table_and_a_database_that_vanish_are_told(signed_in: Console, own: Organization) -> None:
    signed_in.expected = ["404"]
    page, sql = signed_in.page, own.control.sql()
    own.control.post("/v1/databases", {"name": "passing"})
    own.control.sql(database="passing")("create table t (n int primary key)")
    sql("create table gone (n int primary key)")
    signed_in.command("Load the schema again")
    page.evaluate("location.hash = '#/data/public/gone'")
    expect(page.get_by_text("No rows here")).to_be_visible()
    sql("drop table gone")
    page.get_by_role("button", name="Load again").click()
    expect(signed_in.alert).to_contain_text('relation "public.gone" does not exist')
    page.reload()
    page.get_by_label("Database").select_option("passing")
    expect(page.get_by_text("There is no table gone here")).to_be_visible()
    own.control.delete("/v1/databases/passing")
    page.get_by_role("button", name="Load the schema again").last.click()
    expect(signed_in.alert.or_(page.get_by_text("There is no table gone here")).first).to_be_visible()
    signed_in.go("Query")
    signed_in.run("select 1")
    expect(signed_in.alert).to_contain_text("passing")
