"""Managing, and the overview."""

import re
from pathlib import Path

from playwright.sync_api import expect

from tests.console.console import Console
from tests.control import Control, Organization
from tests.service import Service
from tests.waiting import eventually


def test_databases_are_made_copied_renamed_protected_and_deleted(signed_in: Console, own: Organization) -> None:
    page = signed_in.page
    own.control.sql()("create table t as select 1 as n")
    signed_in.go("Databases")
    page.get_by_role("button", name="New database").click()
    page.get_by_label("Name", exact=True).fill("fresh")
    page.keyboard.press("Enter")
    fresh = page.get_by_role("row").filter(has_text="fresh")
    expect(fresh).to_contain_text("active")
    assert own.control.sql(database="fresh").value("select 1") == 1
    own.control.delete("/v1/databases/fresh")
    page.reload()
    expect(fresh).to_have_count(0)
    page.get_by_role("button", name="Actions").click()
    page.get_by_role("menuitem", name="Copy as a new database").click()
    page.get_by_label("Name", exact=True).fill("copy")
    page.keyboard.press("Enter")
    row = page.get_by_role("row").filter(has_text="copy")
    expect(row).to_contain_text("active")
    assert own.control.sql(database="copy").value("select n from t") == 1
    row.get_by_role("button", name="Actions").click()
    page.get_by_role("menuitem", name="Protect").click()
    expect(row).to_contain_text("protected")
    row.get_by_role("button", name="Actions").click()
    expect(page.get_by_role("menuitem", name="Delete")).to_be_disabled()
    page.get_by_role("menuitem", name="Unprotect").click()
    expect(row).not_to_contain_text("protected")
    row.get_by_role("button", name="Actions").click()
    page.get_by_role("menuitem", name="Rename").click()
    page.get_by_label("Name", exact=True).fill("other")
    page.keyboard.press("Enter")
    row = page.get_by_role("row").filter(has_text="other")
    row.get_by_role("button", name="Actions").click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name="Download a dump").click()
    assert Path(download.value.path()).read_bytes().startswith(b"PGDMP")
    row.get_by_role("button", name="Actions").click()
    page.get_by_role("menuitem", name="Delete").click()
    delete = page.get_by_role("button", name="Delete the database")
    expect(delete).to_be_disabled()
    page.get_by_label("to confirm").fill("other")
    delete.click()
    expect(row).to_have_count(0)
    assert [one["name"] for one in own.control.all("/v1/databases")] == ["main"]


def test_a_key_is_shown_once_rotated_and_revoked(signed_in: Console, own: Organization) -> None:
    page = signed_in.page
    signed_in.go("Keys")
    page.get_by_role("button", name="New key").click()
    page.get_by_label("Name", exact=True).fill("reports")
    page.get_by_role("dialog").get_by_role("combobox", name="Database").select_option("main")
    page.get_by_label("Expires").select_option("in a day")
    page.get_by_label("Consistency").select_option("snapshot")
    page.get_by_role("button", name="Make the key").click()
    once = page.get_by_role("region", name="New key")
    key = once.locator("code").inner_text()
    assert own.control.sql(key).value("select 1") == 1
    page.get_by_role("button", name="I have it").click()
    row = page.get_by_role("row").filter(has_text="reports")
    expect(row).to_contain_text("main")
    expect(row).to_contain_text("snapshot")
    row.get_by_role("button", name="Actions").click()
    page.get_by_role("menuitem", name="Change").click()
    page.get_by_label("Consistency").select_option("serializable")
    page.get_by_role("button", name="Change it").click()
    expect(row).to_contain_text("serializable")
    row.get_by_role("button", name="Actions").click()
    page.get_by_role("menuitem", name="Rotate, at once").click()
    rotated = once.locator("code").inner_text()
    assert rotated != key
    own.control.with_token(key).refused(401, "unauthenticated", "GET", "/v1/organization")
    row.get_by_role("button", name="Actions").click()
    page.get_by_role("menuitem", name="Rotate, the old one works for an hour").click()
    expect(once.locator("code")).not_to_have_text(rotated)
    for one in (rotated, once.locator("code").inner_text()):
        assert own.control.sql(one).value("select 1") == 1
    eventually(lambda: all(one["last_used_at"] for one in own.control.all("/v1/keys") if one["name"] == "reports"))
    page.reload()
    expect(row.get_by_role("cell").nth(6)).to_have_text(re.compile("now|ago"))
    row.get_by_role("button", name="Actions").click()
    page.get_by_role("menuitem", name="Revoke").click()
    page.get_by_label("to confirm").fill("reports")
    page.get_by_role("button", name="Revoke the key").click()
    expect(row).to_have_count(0)
    page.get_by_label("also revoked and expired").check()
    expect(row).to_contain_text("revoked")
    signed_in.go("Audit")
    expect(page.get_by_text("key.revoke")).to_be_visible()


def test_sessions_are_listed_and_ended_and_settings_are_shown(signed_in: Console, own: Organization) -> None:
    signed_in.go("Sessions")
    expect(signed_in.page.get_by_text("this page", exact=True)).to_be_visible()
    other = own.control.post("/v1/keys", {"name": "for a robot", "scopes": ["read"]})
    opened = own.control.with_token(other["key"]).post("/v1/session")
    signed_in.page.reload()
    row = signed_in.page.get_by_role("row").filter(has_text=opened["session"]["id"])
    expect(row).to_contain_text("for a robot")
    row.get_by_role("button", name="End").click()
    signed_in.page.get_by_role("button", name="End the session").click()
    expect(row).to_have_count(0)
    own.control.with_token(opened["token"]).refused(401, "unauthenticated", "GET", "/v1/session")
    signed_in.go("Settings")
    expect(signed_in.page.get_by_role("cell", name="statement_timeout_ms").first).to_be_visible()
    expect(signed_in.page.get_by_role("cell", name="30,000 ms").first).to_be_visible()
    tier = signed_in.page.get_by_role("row").filter(has_text="tiers.free.requests_per_minute")
    expect(tier).to_contain_text("200")


def test_an_operator_makes_an_organization(console: Console, service: Service, operator: Control) -> None:
    page = console.page
    console.sign_in(service.key, "#/organizations")
    page.get_by_role("button", name="New organization").click()
    page.get_by_label("Name", exact=True).fill("made-in-console")
    page.get_by_label("Tier").select_option("pro")
    page.get_by_role("button", name="Make it").click()
    key = page.get_by_role("region", name="New key").locator("code").inner_text()
    assert operator.with_token(key).get("/v1/organization")["tier"] == "pro"
    row = page.get_by_role("row").filter(has_text="made-in-console")
    row.get_by_role("button", name="Actions").click()
    page.get_by_role("menuitem", name="Delete").click()
    page.get_by_label("to confirm").fill("made-in-console")
    page.get_by_role("button", name="Delete the organization").click()
    expect(row).to_have_count(0)


def test_the_overview_shows_health_latency_usage_and_the_matrix(
    console: Console, service: Service, own: Organization
) -> None:
    page = console.page
    console.sign_in(service.key, "#/overview")
    now = page.get_by_role("group", name="The installation while this page is open")
    expect(now).to_be_visible()
    sql = own.control.sql()
    for told in (
        r"Latency now: median \d.* [µm]?s, p95 \d.* [µm]?s",
        r"Requests now: requests [1-9].*, errors \d",
        r"Rows now: rows [1-9]",
    ):
        while now.get_by_role("img", name=re.compile(told)).count() == 0:
            sql("select n from generate_series(1, 50) n")
    console.picture("overview-operator")
    expect(page.get_by_text("engine: ok").first).to_be_visible()
    expect(page.get_by_role("img", name="Requests:")).to_be_visible()
    expect(page.get_by_text("Latency, median")).to_be_visible()
    page.get_by_role("button", name="INSERT … ON CONFLICT DO UPDATE").click()
    expect(page.get_by_role("dialog")).to_contain_text("on conflict (id) do update")
