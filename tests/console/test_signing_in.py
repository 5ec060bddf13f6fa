"""Signing in and out, and what a session that ends does to the page."""

import json

import httpx
from playwright.sync_api import Browser, expect

from tests.console.console import Console, open_console
from tests.control import Organization
from tests.service import running_service


def test_a_key_is_exchanged_for_a_session_and_kept_nowhere(console: Console, own: Organization) -> None:
    console.sign_in(own.key)
    expect(console.editor).to_be_visible()
    kept = console.page.evaluate("JSON.stringify([{...sessionStorage}, {...localStorage}, document.cookie])")
    assert own.key not in kept
    assert "svc_s_" in kept
    assert own.key not in console.page.content()


def test_the_first_view_takes_at_most_300_kilobytes(console: Console, own: Organization) -> None:
    console.sign_in(own.key)
    expect(console.editor).to_be_visible()
    loaded = console.page.evaluate(
        "performance.getEntriesByType('resource').map(one => new URL(one.name).pathname)"
        ".filter(path => /^.console.*[.](js|css|svg)$/.test(path))"
    )
    assert len(loaded) > 3
    # The browser takes Brotli, which is smaller; what is promised is gzip.
    sizes = {path: _measure_gzipped(console, path) for path in {*loaded, "/console/"}}
    print(f"{sum(sizes.values()):,} bytes")
    assert sum(sizes.values()) < 300_000, sizes


def _measure_gzipped(console: Console, path: str) -> int:
    """Return how many bytes a file has as gzip."""
    answer = httpx.get(console.service.control_url + path, headers={"Accept-Encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    return int(answer.headers["content-length"])


def test_a_page_that_is_loaded_again_is_still_signed_in(signed_in: Console) -> None:
    signed_in.page.reload()
    signed_in.run("select 42 as answer")
    expect(signed_in.cell(0, 0)).to_have_text("42")


def test_a_wrong_key_is_told_so(console: Console) -> None:
    console.expected = ["401"]
    console.open()
    console.page.get_by_label("API key").fill("svc_k_nonsense")
    console.page.keyboard.press("Enter")
    expect(console.alert).to_contain_text("key")


def test_signing_out_ends_the_session_in_the_service(signed_in: Console, own: Organization) -> None:
    signed_in.expected = ["401"]  # of what the page was just asking for
    page = signed_in.page
    token = json.loads(page.evaluate("sessionStorage['tuplegate.session']"))["token"]
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("API key")).to_be_visible()
    own.control.with_token(token).refused(401, "unauthenticated", "GET", "/v1/session")
    assert page.evaluate("sessionStorage.length") <= 1


def test_a_session_that_ends_in_the_middle_loses_nothing_that_was_typed(signed_in: Console, own: Organization) -> None:
    signed_in.expected = ["401"]
    page = signed_in.page
    signed_in.write("select 'kept' as word")
    token = json.loads(page.evaluate("sessionStorage['tuplegate.session']"))["token"]
    own.control.with_token(token).delete("/v1/session")
    page.keyboard.press("ControlOrMeta+Enter")
    dialog = page.get_by_role("dialog", name="Your session has ended")
    expect(dialog).to_be_visible()
    dialog.get_by_label("API key").fill(own.key)
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    expect(signed_in.editor).to_contain_text("select 'kept' as word")
    signed_in.editor.click()
    signed_in.run()
    expect(signed_in.cell(0, 0)).to_have_text("kept")


def test_the_palette_finds_pages_and_the_theme_can_be_chosen(signed_in: Console) -> None:
    page = signed_in.page
    signed_in.command("Theme: dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    signed_in.command("Connect")
    expect(page).to_have_url(f"{signed_in.service.control_url}/console/#/connect")
    page.keyboard.press("Escape")
    page.locator("main").focus()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()


def test_a_one_time_code_signs_in_once_and_leaves_the_address(console: Console, own: Organization) -> None:
    console.expected = ["401"]
    url = own.control.post("/v1/console/codes")["url"]
    console.page.goto(url)
    console.run("select 1 as one")
    expect(console.cell(0, 0)).to_have_text("1")
    assert "svc_c_" not in console.page.url
    console.page.evaluate("sessionStorage.clear()")
    console.page.goto("about:blank")
    console.page.goto(url)
    expect(console.alert).to_contain_text("code")
    expect(console.page.get_by_label("API key")).to_be_visible()


def test_a_code_of_somebody_else_does_not_replace_a_session_unasked(
    signed_in: Console, own: Organization, other: Organization
) -> None:
    page = signed_in.page
    expect(page.get_by_text(f"Signed in to {own.name}")).to_be_visible()
    url = other.control.post("/v1/console/codes")["url"]
    for choice, name in (("Stay signed in", own.name), ("Use the code", other.name)):
        page.goto(url)
        dialog = page.get_by_role("dialog", name="Sign in as another?")
        expect(dialog).to_contain_text(f"You are signed in to {own.name}.")
        assert "svc_c_" not in page.url
        dialog.get_by_role("button", name=choice).click()
        expect(dialog).to_have_count(0)
        expect(page.get_by_text(f"Signed in to {name}")).to_be_visible()


def test_a_key_without_admin_chooses_among_its_databases(console: Console, own: Organization) -> None:
    own.control.post("/v1/databases", {"name": "second"})
    own.control.sql(database="second")("create table only_here as select 7 as n")
    key = own.control.post("/v1/keys", {"name": "reader", "scopes": ["read"]})["key"]
    console.sign_in(key)
    console.page.get_by_label("Database").select_option("second")
    console.editor.click()
    console.run("select n from only_here")
    expect(console.cell(0, 0)).to_have_text("7")


def test_a_session_in_use_is_extended_and_an_idle_one_ends(browser: Browser) -> None:
    with running_service("--session-lifetime-s", "4") as service, open_console(browser, service) as console:
        console.expected = ["401"]
        console.sign_in(service.key)
        kept = "JSON.parse(sessionStorage['tuplegate.session']).session.expires_at"
        first = console.page.evaluate(kept)
        console.page.wait_for_function(f"first => {kept} > first", arg=first)
        console.page.evaluate("Date.now = (now => () => now() + 20 * 60_000)(Date.now)")
        expect(console.page.get_by_role("dialog", name="Your session has ended")).to_be_visible()
