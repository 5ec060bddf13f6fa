"""Signing in and out, and what a session that ends does to the page."""

import json

from playwright.sync_api import expect

from tests.console.console import Console
from tests.control import Organization


def test_a_key_is_exchanged_for_a_session_and_kept_nowhere(console: Console, own: Organization) -> None:
    console.sign_in(own.key)
    expect(console.editor).to_be_visible()
    kept = console.page.evaluate("JSON.stringify([{...sessionStorage}, {...localStorage}, document.cookie])")
    assert own.key not in kept
    assert "svc_s_" in kept
    assert own.key not in console.page.content()


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
