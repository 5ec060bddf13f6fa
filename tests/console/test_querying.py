"""The query page: what is run, what is shown, and what can be done with it."""

import json
from pathlib import Path

from playwright.sync_api import expect

from tests.console.console import Console
from tests.control import Organization
from tests.service import Service

TABLE = "create table city (id int primary key, name text not null, size int, facts jsonb)"
ROWS = """insert into city values
    (1, 'Berlin', 3700000, '{"rivers": ["Spree"]}'), (2, 'Oslo', null, null), (3, '', 5, '[]')"""


def _make_cities(own: Organization) -> None:
    sql = own.control.sql()
    sql(TABLE)
    sql(ROWS)


def test_the_statement_at_the_cursor_the_selection_or_all_are_run(signed_in: Console) -> None:
    page = signed_in.page
    signed_in.write("create table t (n int);\ninsert into t values (1), (2);\nselect n as found from t;")
    signed_in.run_all()
    tabs = signed_in.results
    expect(tabs).to_have_count(3)
    # Of several results the first one with rows is shown.
    expect(tabs.nth(2)).to_have_attribute("aria-selected", "true")
    expect(signed_in.cell(1, 0)).to_have_text("2")
    tabs.first.click()
    expect(signed_in.status).to_contain_text("Committed in two phases")
    signed_in.editor.click()
    page.keyboard.press("ControlOrMeta+End")
    signed_in.run()
    expect(tabs).to_have_count(1)
    expect(signed_in.status).to_contain_text("2 rows")
    page.keyboard.press("ControlOrMeta+Home")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Shift+End")
    signed_in.run()
    expect(signed_in.status).to_contain_text("2 rows affected")


def test_a_transaction_that_fails_applies_nothing_and_names_the_statement(
    signed_in: Console, own: Organization
) -> None:
    signed_in.write("create table kept (n int); insert into kept values (1); select 1 / 0")
    signed_in.run_all()
    expect(signed_in.alert).to_contain_text("division by zero")
    signed_in.results.first.click()
    expect(signed_in.status).to_contain_text("Nothing was applied: statement 3 failed.")
    assert own.control.sql().value("select to_regclass('kept')") is None


def test_an_error_is_underlined_at_its_position_with_its_hint(signed_in: Console, own: Organization) -> None:
    _make_cities(own)
    signed_in.run("select '😀', id,\n  nam from city")
    expect(signed_in.alert).to_contain_text('column "nam" does not exist')
    expect(signed_in.alert).to_contain_text("Perhaps you meant to reference the column")
    expect(signed_in.page.locator(".cm-lintRange-error")).to_have_text("nam")


def test_notices_and_parameters(signed_in: Console) -> None:
    signed_in.run("do $$ begin raise notice 'look here'; end $$")
    expect(signed_in.page.get_by_role("list", name="Notices")).to_contain_text("look here")
    signed_in.write("select $1::int + 1 as next, $2::jsonb ->> 'a' as a, $3::text is null as none")
    signed_in.page.get_by_label("$1", exact=True).fill("41")
    signed_in.page.get_by_label("$2", exact=True).fill('{"a": "x"}')
    signed_in.page.get_by_label("$3 is NULL").check()
    signed_in.editor.click()
    signed_in.run()
    expect(signed_in.cell(0, 0)).to_have_text("42")
    expect(signed_in.cell(0, 1)).to_have_text("x")
    expect(signed_in.cell(0, 2)).to_have_text("true")


def test_a_running_statement_is_cancelled_in_the_engine(signed_in: Console, own: Organization) -> None:
    signed_in.write("select pg_sleep(60)")
    signed_in.page.keyboard.press("ControlOrMeta+Enter")
    expect(signed_in.page.locator(".status.running")).to_be_visible()
    signed_in.page.keyboard.press("Escape")
    expect(signed_in.status).to_contain_text("Cancelled")
    sql = own.control.sql()
    question = "select count(*)::int from pg_stat_activity where query like 'select pg_sleep%' and state = 'active'"
    while sql.value(question):
        pass


def test_values_are_shown_by_their_kind(signed_in: Console) -> None:
    big = 12345678901234567890
    signed_in.run(
        f"select null as nothing, '' as empty, {big}::numeric as big, 9007199254740993 as long, "
        """'{"a": {"b": [1, 2]}}'::jsonb as doc, array['x', null] as list, """
        "'\\x00ff41'::bytea as bytes, 'a\nb' as lines"
    )
    for column, text in enumerate(["NULL", "empty", str(big), "9007199254740993"]):
        expect(signed_in.cell(0, column)).to_have_text(text)
    expect(signed_in.cell(0, 7)).to_have_text("a↵b")
    signed_in.cell(0, 4).dblclick()
    viewer = signed_in.page.get_by_role("complementary", name="Value of doc")
    expect(viewer).to_contain_text("b: [2]")
    signed_in.page.keyboard.press("ArrowRight")
    signed_in.page.keyboard.press("ArrowRight")
    expect(signed_in.page.get_by_role("complementary", name="Value of bytes")).to_contain_text("00 ff 41")
    signed_in.page.keyboard.press("Escape")
    expect(signed_in.page.locator(".viewer")).to_have_count(0)


def test_the_null_of_json_is_not_taken_for_null(signed_in: Console, own: Organization) -> None:
    page, sql = signed_in.page, own.control.sql()
    sql("create table doc (id int primary key, body jsonb)")
    sql("insert into doc values (1, null), (2, 'null')")
    signed_in.run("select id, body, null::text as word from doc order by id")
    expect(signed_in.cell(1, 1)).to_have_text("NULL or null")
    expect(signed_in.cell(1, 2)).to_have_text("NULL")
    signed_in.cell(1, 1).dblclick()
    expect(page.get_by_role("complementary", name="Value of body")).to_contain_text("IS NULL tells them apart")
    signed_in.command("Load the schema again")
    page.evaluate("location.hash = '#/data/public/doc'")
    expect(signed_in.cell(0, 1)).to_have_text("NULL")
    expect(signed_in.cell(1, 1)).to_have_text("null")
    signed_in.edit(0, 1, "null")
    expect(signed_in.staged).to_contain_text("set body = 'null' where id = 1 and body is null")
    signed_in.cell(1, 1).click()
    page.get_by_role("button", name="Delete the row").click()
    expect(signed_in.staged).to_contain_text("where id = 2 and body::text = 'null'")
    signed_in.staged.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("2 edits applied.")).to_be_visible()
    assert sql.rows("select id, body is null from doc", row_mode="arrays") == [[1, False]]


def test_json_is_shown_copied_saved_and_sent_with_every_digit(signed_in: Console, tmp_path: Path) -> None:
    page = signed_in.page
    doc = '{"b": 12345678901234567890, "a": [1.10, 1e400, {"deep": 0.12345678901234567890123}], "1": "\\u00e9\\"]"}'
    signed_in.write(
        f"select '{doc}'::json as doc, array['9007199254740993'::jsonb, null] as list, '9007199254740993'::jsonb as n, "
        "$1::jsonb -> 'n' as sent"
    )
    page.get_by_label("$1", exact=True).fill('{"n": 12345678901234567891}')
    signed_in.editor.click()
    signed_in.run()
    shown = [doc, "[9007199254740993,null]", "9007199254740993", "12345678901234567891"]
    for column, text in enumerate(shown):
        expect(signed_in.cell(0, column)).to_have_text(text)
    signed_in.cell(0, 0).dblclick()
    viewer = page.locator(".viewer")
    for text in ("b: 12345678901234567890", "0: 1.10", "1: 1e400", "2: {1}", r'1: "\u00e9\"]"'):
        expect(viewer).to_contain_text(text)
    viewer.get_by_text("2: {1}").click()
    expect(viewer).to_contain_text("deep: 0.12345678901234567890123")
    page.get_by_role("button", name="Copy", exact=True).first.click()
    page.get_by_role("menuitem", name="Row as INSERT").click()
    expect(page.get_by_text("Row copied.")).to_be_visible()
    insert = signed_in.clipboard()
    for part in ("1.10, 1e400", "'{\"9007199254740993\",NULL}'::jsonb[]", "'12345678901234567891'::jsonb"):
        assert part in insert
    page.get_by_role("button", name="Download").click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name="NDJSON").click()
    line = Path(download.value.path()).read_text("utf-8")
    assert line == f'{{"doc":{doc},"list":{shown[1]},"n":{shown[2]},"sent":{shown[3]}}}\n'
    signed_in.write("select 1; select '{\"n\": 12345678901234567890}'::jsonb as doc")
    signed_in.run_all()
    signed_in.results.nth(1).click()
    expect(signed_in.cell(0, 0)).to_have_text('{"n": 12345678901234567890}')


def test_rows_are_sorted_filtered_and_copied(signed_in: Console, own: Organization) -> None:
    _make_cities(own)
    page = signed_in.page
    signed_in.run("select id, name, size from city order by id")
    page.get_by_role("columnheader", name="size").get_by_role("button").click()
    expect(signed_in.cell(0, 0)).to_have_text("3")
    expect(signed_in.cell(2, 2)).to_have_text("NULL")
    page.get_by_label("Filter rows").fill("berl")
    expect(signed_in.grid).to_have_attribute("aria-rowcount", "2")
    signed_in.cell(0, 1).click()
    page.keyboard.press("ControlOrMeta+c")
    expect(page.get_by_text("Cell copied.")).to_be_visible()
    assert signed_in.clipboard() == "Berlin"
    wanted = {
        "Row as CSV": "1,Berlin,3700000",
        "Row as JSON": json.dumps({"id": 1, "name": "Berlin", "size": 3700000}, indent=2),
        "Row as INSERT": "insert into city (id, name, size) values (1, 'Berlin', 3700000);",
        "All as CSV": "id,name,size\r\n1,Berlin,3700000\r\n",
        "Column": "Berlin",
    }
    for title, text in wanted.items():
        page.get_by_role("button", name="Copy", exact=True).click()
        page.get_by_role("menuitem", name=title, exact=True).click()
        page.wait_for_function("text => navigator.clipboard.readText().then(read => read === text)", arg=text)


def test_a_result_is_downloaded_as_a_file(signed_in: Console, own: Organization, tmp_path: Path) -> None:
    _make_cities(own)
    signed_in.run("select id, name, size from city order by id")
    wanted = {
        "CSV": 'id,name,size\r\n1,Berlin,3700000\r\n2,Oslo,\r\n3,"",5\r\n',
        "NDJSON": '{"id":1,"name":"Berlin","size":3700000}\n{"id":2,"name":"Oslo","size":null}\n'
        '{"id":3,"name":"","size":5}\n',
    }
    for name, text in wanted.items():
        signed_in.page.get_by_role("button", name="Download").click()
        with signed_in.page.expect_download() as download:
            signed_in.page.get_by_role("menuitem", name=name, exact=True).click()
        download.value.save_as(tmp_path / name)
        assert (tmp_path / name).read_bytes().decode() == text


def test_a_plan_is_a_tree_with_its_costliest_node_and_analyze_changes_nothing(
    signed_in: Console, own: Organization
) -> None:
    _make_cities(own)
    page = signed_in.page
    signed_in.write("delete from city where size is null or id > 0")
    page.get_by_role("button", name="Explain").click()
    page.get_by_role("menuitem", name="Explain and analyze").click()
    tree = page.get_by_role("tree", name="Plan")
    expect(tree).to_contain_text("Seq Scan")
    expect(tree).to_contain_text("3 actual")
    expect(tree.locator(".costly")).to_have_count(1)
    assert own.control.sql().value("select count(*) from city") == 3


def test_a_result_is_drawn_as_a_chart(signed_in: Console) -> None:
    signed_in.run("select n, n * n as square from generate_series(1, 20) n")
    signed_in.page.get_by_role("button", name="Chart").click()
    expect(signed_in.page.get_by_role("img", name="square across n")).to_be_visible()
    expect(signed_in.page.locator(".chart-host canvas")).to_be_visible()


def test_tables_columns_and_functions_are_completed_from_the_live_schema(signed_in: Console) -> None:
    signed_in.run("create table zebra (stripes int, owner_name text)")
    options = signed_in.page.get_by_role("option")
    for typed, wanted in {"select * from zeb": "zebra", "select z.owner from zebra z where z.str": "stripes"}.items():
        signed_in.write("")
        signed_in.page.keyboard.type(typed)
        expect(options.filter(has_text=wanted).first).to_be_visible()
        signed_in.page.keyboard.press("Escape")
    signed_in.write("")
    signed_in.page.keyboard.type("select jsonb_obj")
    expect(options.filter(has_text="jsonb_object_agg").first).to_be_visible()
    signed_in.page.keyboard.press("Escape")


def test_queries_are_formatted_saved_and_found_again(signed_in: Console) -> None:
    page = signed_in.page
    signed_in.write("SELECT a, b FROM (VALUES (1, 'FROM x')) t (a, b) WHERE a = 1 AND b IS NOT NULL ORDER BY a")
    page.keyboard.press("ControlOrMeta+Shift+F")
    expect(signed_in.editor.locator(".cm-line").nth(0)).to_have_text("select a, b")
    expect(signed_in.editor).to_contain_text("'FROM x'")
    page.keyboard.press("ControlOrMeta+s")
    page.get_by_label("Name").fill("the first")
    page.keyboard.press("Enter")
    signed_in.editor.click()
    signed_in.run()
    expect(signed_in.cell(0, 1)).to_have_text("FROM x")
    page.get_by_role("button", name="New query").click()
    page.get_by_role("button", name="Saved", exact=True).click()
    page.get_by_role("button", name="the first select").click()
    expect(page.get_by_role("tab", name="the first")).to_have_attribute("aria-selected", "true")
    page.get_by_role("button", name="History").click()
    expect(page.get_by_role("dialog", name="History")).to_contain_text("1 row")


def test_a_query_is_a_link_that_shows_it_and_does_not_run_it(
    signed_in: Console, own: Organization, service: Service
) -> None:
    page = signed_in.page
    signed_in.write("select 'shared' as word")
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_text("Link copied.")).to_be_visible()
    link = signed_in.clipboard()
    assert link == f"{service.control_url}/console/#/query?sql=select%20'shared'%20as%20word"
    assert "svc_" not in link
    page.goto("about:blank")
    page.goto(link.replace("word", "other"))
    expect(signed_in.editor).to_contain_text("select 'shared' as other")
    expect(signed_in.page.get_by_text("Results appear here")).to_be_visible()
    expect(page.get_by_role("tab", name="Query 1")).to_be_visible()


def test_rows_come_as_they_are_made_and_a_wide_result_can_be_walked(signed_in: Console) -> None:
    columns = ", ".join(f"{n} as c{n}" for n in range(1, 1601))
    signed_in.run(f"select {columns} from generate_series(1, 3)")
    signed_in.cell(0, 0).click()
    signed_in.page.keyboard.press("ControlOrMeta+End")
    expect(signed_in.cell(2, 1599)).to_have_text("1600")
    expect(signed_in.cell(2, 0)).to_have_count(0)
    signed_in.editor.click()
    signed_in.run("select n, repeat('x', 20) as x from generate_series(1, 100000) n")
    expect(signed_in.status).to_contain_text("100,000 rows")
    signed_in.cell(0, 0).click()
    signed_in.page.keyboard.press("ControlOrMeta+End")
    expect(signed_in.cell(99999, 0)).to_have_text("100000")


def test_a_lost_connection_is_told_and_what_came_is_kept(signed_in: Console) -> None:
    signed_in.expected = ["ERR_"]
    page = signed_in.page
    expect(signed_in.editor).to_be_visible()
    page.context.set_offline(True)
    signed_in.run("select 1")
    expect(signed_in.alert).to_contain_text("The service cannot be reached.")
    expect(signed_in.editor).to_contain_text("select 1")
    page.context.set_offline(False)
    signed_in.editor.click()
    signed_in.run()
    expect(signed_in.cell(0, 0)).to_have_text("1")


def test_on_a_slow_connection_rows_are_counted_as_they_come_and_can_be_cancelled(signed_in: Console) -> None:
    page = signed_in.page
    network = page.context.new_cdp_session(page)
    network.send("Network.enable")
    slow = {"offline": False, "latency": 50, "downloadThroughput": 60_000, "uploadThroughput": 60_000}
    network.send("Network.emulateNetworkConditions", slow)
    signed_in.write("select n, repeat('x', 100) as x from generate_series(1, 100000) n")
    page.keyboard.press("ControlOrMeta+Enter")
    expect(page.locator(".status.running")).to_contain_text("rows, ")
    expect(signed_in.cell(0, 0)).to_have_text("1")
    page.keyboard.insert_text(" -- still typing")
    expect(signed_in.editor).to_contain_text("still typing")
    page.get_by_role("button", name="Cancel").first.click()
    expect(signed_in.status).to_contain_text("Cancelled")
    expect(signed_in.cell(0, 0)).to_have_text("1")


def test_a_text_that_goes_on_in_the_next_line_is_one(signed_in: Console) -> None:
    page = signed_in.page
    signed_in.write("select E'a' -- and\n  'b\\';c' as found; select 'd'\n'e;' as other")
    page.keyboard.press("ControlOrMeta+Shift+F")
    signed_in.run_all()
    tabs = signed_in.results
    expect(tabs).to_have_count(2)
    expect(signed_in.cell(0, 0)).to_have_text("ab';c")
    tabs.nth(1).click()
    expect(signed_in.cell(0, 0)).to_have_text("de;")


def test_dates_that_no_calendar_of_the_browser_has_are_shown_as_they_are(signed_in: Console) -> None:
    signed_in.run(
        "select 'infinity'::timestamptz, '-infinity'::date, '0044-03-15 BC'::date, '0044-03-15 10:00 BC'::timestamp, "
        "'294276-12-31 23:59:59Z'::timestamptz, '10000-01-01'::date, '4713-01-01 BC'::timestamptz"
    )
    wanted = [
        "infinity", "-infinity", "0044-03-15 BC", "0044-03-15T10:00:00 BC", "294276-12-31T23:59:59Z", "10000-01-01",
        "4713-01-01T00:00:00+00 BC",
    ]  # fmt: skip
    signed_in.cell(0, 0).dblclick()
    viewer = signed_in.page.locator(".viewer")
    for column, text in enumerate(wanted):
        signed_in.cell(0, column).click()
        expect(signed_in.cell(0, column)).to_have_text(text)
        expect(viewer.locator("pre")).to_have_text(text)
        # Neither nonsense nor a moment of another age.
        expect(viewer).not_to_contain_text("Invalid")
        expect(viewer).not_to_contain_text("NaN")
        expect(viewer).not_to_contain_text("ago")
        expect(viewer).not_to_contain_text("zone")


def test_sql_is_coloured_and_keywords_are_completed(signed_in: Console) -> None:
    signed_in.write("select 'text' -- remark")
    pieces = {"select": "", "'text'": "", "-- remark": ""}
    for piece in pieces:
        span = signed_in.editor.locator("span", has_text=piece).first
        pieces[piece] = span.evaluate("one => getComputedStyle(one).color")
    assert len(set(pieces.values())) == 3
    signed_in.write("")
    signed_in.page.keyboard.type("sele")
    options = signed_in.page.locator(".cm-tooltip-autocomplete li")
    expect(options.filter(has_text="select").first).to_be_visible()
    signed_in.page.keyboard.press("Escape")


def test_an_error_has_its_detail_and_a_result_that_is_kept_stays(signed_in: Console, own: Organization) -> None:
    _make_cities(own)
    page = signed_in.page
    signed_in.run("select 'kept' as word")
    page.get_by_role("button", name="Keep", exact=True).click()
    own.control.sql()("create unique index on city (name)")
    signed_in.editor.click()
    signed_in.run("insert into city (id, name) values (99, 'Oslo')")
    expect(signed_in.alert).to_contain_text("duplicate key value")
    expect(signed_in.alert).to_contain_text("Key (name)=(Oslo) already exists.")
    expect(signed_in.results).to_have_count(2)
    signed_in.results.first.click()
    expect(signed_in.cell(0, 0)).to_have_text("kept")
    signed_in.write("select * from city where id = 1")
    page.get_by_role("button", name="Explain").click()
    page.get_by_role("menuitem", name="Explain", exact=True).click()
    tree = page.get_by_role("tree", name="Plan")
    expect(tree).to_contain_text("rows")
    expect(tree).not_to_contain_text("actual")
