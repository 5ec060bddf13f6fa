"""A million rows in the console: they come without freezing the page, which stays small."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.console.conftest import browser as browser
from tests.console.console import Console, open_console
from tests.control import new_organization
from tests.service import Service, running_service

ROWS = 1_000_000
MEMORY_MAX = 300_000_000

WATCH = """
window.longest = 0;
let before = performance.now();
setInterval(() => { const now = performance.now(); longest = Math.max(longest, now - before); before = now; }, 10);
"""


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """A busy machine takes longer for a million rows than a statement has by default."""
    with running_service("--statement-timeout-ms", "600000") as running:
        yield running


@pytest.fixture
def console(browser: Browser, service: Service) -> Iterator[Console]:
    with open_console(browser, service) as opened:
        opened.sign_in(new_organization(service).key)
        yield opened


def _measure_memory(console: Console) -> int:
    """What the page holds: its objects, and the bytes of its rows beside them."""
    session = console.page.context.new_cdp_session(console.page)
    session.send("HeapProfiler.collectGarbage")
    heap = session.send("Runtime.getHeapUsage")
    return int(heap["usedSize"] + heap["embedderHeapUsedSize"] + heap["backingStorageSize"])


@pytest.mark.timeout(900)
def test_a_million_rows_are_streamed_sorted_filtered_and_walked(console: Console) -> None:
    page = console.page
    console.write(f"select n, md5(n::text) as hash, now() as at, n * 1.5 as more from generate_series(1, {ROWS}) n")
    page.evaluate(WATCH)
    page.keyboard.press("ControlOrMeta+Enter")
    expect(page.locator(".status.running")).to_contain_text("a second", timeout=60_000)
    expect(console.status).to_contain_text("1,000,000 rows", timeout=300_000)
    expect(page.locator(".status.running")).to_have_count(0, timeout=300_000)
    longest = page.evaluate("longest")
    memory = _measure_memory(console)
    print(f"memory {memory:,} bytes, longest pause {longest:.0f} ms")
    assert memory < MEMORY_MAX
    console.cell(0, 0).click()
    page.keyboard.press("ControlOrMeta+End")
    expect(console.cell(ROWS - 1, 0)).to_have_text(f"{ROWS}")
    page.keyboard.press("PageUp")
    expect(console.cell(ROWS - 21, 0)).to_have_text(f"{ROWS - 20}")
    page.get_by_role("columnheader", name="hash").get_by_role("button").click()
    expect(page.get_by_role("columnheader", name="hash")).to_have_attribute("aria-sort", "ascending")
    expect(page.locator(".rows-pane progress")).to_have_count(0, timeout=120_000)
    page.keyboard.press("ControlOrMeta+Home")
    expect(console.cell(0, 1)).to_contain_text("0000")
    page.get_by_label("Filter rows").fill("cafeb")
    expect(page.get_by_text("of these")).to_be_visible(timeout=120_000)
    assert _measure_memory(console) < MEMORY_MAX
