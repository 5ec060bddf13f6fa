"""Two organizations in one browser: nothing of the one is shown, applied or offered in the beta."""

import json

import pytest
from playwright.sync_api import expect

from tests.console.console import Console
from tests.control import Organization, new_organization
from tests.service import Service

TABLE = "create table shared (id int primary key, name text, secret text)"


@pytest.fixture
def beta(service: Service) -> Organization:
    return new_organization(service)


def _make(organization: Organization, secret: str) -> None:
    organization.control.sql()(TABLE)
    organization.control.sql()("insert into shared values (1, 'same', $1)", [secret])


def _token(console: Console) -> str:
    token: str = json.loads(console.page.evaluate("sessionStorage['tuplegate.session']"))["token"]
    return token


def _end_session(console: Console, own: Organization) -> None:
    """End the session from outside, and let the page notice."""
    own.control.with_token(_token(console)).delete("/v1/session")
    console.page.get_by_role("button", name="Load again").dispatch_event("click")


def test_another_organization_sees_nothing_of_the_one_before(
    console: Console, own: Organization, beta: Organization
) -> None:
    console.expected = ["401"]
    page = console.page
    _make(own, "alpha's secret")
    _make(beta, "beta's row")
    console.sign_in(own.key)
    console.run("select secret from shared")
    expect(console.cell(0, 0)).to_have_text("alpha's secret")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_text("You are signed out.")).to_be_visible()
    page.get_by_label("API key").fill(beta.key)
    page.keyboard.press("Enter")
    expect(page.get_by_text(f"Signed in to {beta.name}")).to_be_visible()
    expect(page.get_by_text("Results appear here")).to_be_visible()
    expect(console.editor).not_to_contain_text("secret")
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("API key").fill(own.key)
    page.keyboard.press("Enter")
    expect(console.editor).to_contain_text("secret")
    page.evaluate("location.hash = '#/data/public/shared'")
    console.cell(0, 1).dblclick()
    page.get_by_role("textbox", name="New value of name").fill("typed for alpha")
    _end_session(console, own)
    dialog = page.get_by_role("dialog", name="Your session has ended")
    dialog.get_by_label("API key").fill(beta.key)
    page.keyboard.press("Enter")
    expect(page.get_by_text(f"Signed in to {beta.name}")).to_be_visible()
    expect(console.cell(0, 2)).to_have_text("beta's row")
    expect(page.get_by_role("textbox", name="New value of name")).to_have_count(0)
    expect(page.get_by_role("region", name="Staged edits")).to_have_count(0)
    kept = page.evaluate("JSON.stringify({...sessionStorage})")
    assert own.id in kept
    assert "typed for alpha" in kept
    assert f'\\"{beta.id}\\"' not in kept.replace(kept[kept.index("tuplegate.session") :], "")


def test_a_code_of_another_organization_asks_before_anything_of_it_is_shown(
    signed_in: Console, own: Organization, beta: Organization
) -> None:
    signed_in.expected = ["401"]
    signed_in.run("select 'my draft'")
    for choice in ("Do not sign in", f"Sign in to {beta.name}"):
        page = signed_in.page.context.new_page()
        page.goto(beta.control.post("/v1/console/codes")["url"])
        dialog = page.get_by_role("dialog", name="Sign in to another organization?")
        expect(dialog).to_contain_text(beta.name)
        expect(page.locator(".account")).to_have_count(0)
        dialog.get_by_role("button", name=choice).click()
        expect(page.get_by_label("API key").or_(page.get_by_text(f"Signed in to {beta.name}"))).to_be_visible()
        expect(page.get_by_text("my draft")).to_have_count(0)
        page.close()
    assert len(beta.control.all("/v1/sessions")) == 1
    page = signed_in.page.context.new_page()
    page.goto(beta.control.post("/v1/console/codes")["url"])
    expect(page.get_by_text(f"Signed in to {beta.name}")).to_be_visible()
    page.close()
    page = signed_in.page
    own.control.with_token(_token(signed_in)).delete("/v1/session")
    page.keyboard.press("ControlOrMeta+Enter")
    expect(page.get_by_role("dialog", name="Your session has ended")).to_be_visible()
    page.goto(beta.control.post("/v1/console/codes")["url"])
    page.get_by_role("button", name="Do not sign in").click()
    expect(page.get_by_role("dialog", name="Your session has ended")).to_be_visible()
    expect(signed_in.editor).to_contain_text("my draft")
    page = signed_in.page.context.new_page()
    page.goto(f"{signed_in.service.control_url}/console/#code=%")
    expect(page.get_by_role("alert")).to_contain_text("code")
    expect(page.get_by_role("alert")).not_to_contain_text("URI")
    page.route("**/config.json", lambda route: route.abort())
    page.goto("about:blank")
    page.goto(beta.control.post("/v1/console/codes")["url"])
    expect(page.get_by_role("alert")).to_be_visible()
    assert "svc_c_" not in page.url
    page.close()


def test_a_sign_out_that_does_not_reach_the_service_is_told(signed_in: Console, own: Organization) -> None:
    signed_in.expected = ["ERR_FAILED"]
    page = signed_in.page
    token = _token(signed_in)
    page.route("**/v1/session", lambda route: route.abort())
    page.get_by_role("button", name="Sign out").click()
    expect(signed_in.alert).to_contain_text("the service was not told")
    own.control.with_token(token).get("/v1/session")
    assert token not in page.evaluate("JSON.stringify({...sessionStorage})")
