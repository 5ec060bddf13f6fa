"""The console as its tests use it: keys, clicks, and what is seen. Also how its pages are built."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Response, expect

from tests.service import Service

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "build" / "pictures"
WAIT_MS = 30_000
"""How long a test waits for what must come by itself."""

expect.set_options(timeout=WAIT_MS)


def require(is_there: bool, reason: str) -> None:
    """Skip the test where something is missing; fail it where CI is set, which must have everything."""
    if is_there:
        return
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def find_chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


def build_pages() -> None:
    """Build the pages where their sources have changed."""
    built = subprocess.run([sys.executable, "tools/console.py"], cwd=ROOT, capture_output=True, text=True)
    require(built.returncode == 0, f"the console's pages cannot be built: {built.stderr[-500:]}")


class Console:
    """A page of the console. `problems` are errors that the browser told of."""

    def __init__(self, page: Page, service: Service) -> None:
        self.page = page
        self.service = service
        self.problems: list[str] = []
        self.expected: list[str] = []
        """Parts of problems that the test brings about."""
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda said: self.problems.append(said.text) if said.type == "error" else None)
        self._refusals: list[Response] = []
        """What the service answered where it could not serve: the browser tells of the status alone."""
        page.on("response", lambda answer: self._refusals.append(answer) if answer.status >= 500 else None)

    def check(self) -> None:
        unexpected = [one for one in self.problems if not any(part in one for part in self.expected)]
        assert not unexpected, (
            unexpected,
            [(answer.url, answer.text()) for answer in self._refusals],
            self.service.log[-2000:],
        )

    def open(self, address: str = "") -> None:
        self.page.goto(f"{self.service.control_url}/console/{address}")

    def sign_in(self, key: str, address: str = "") -> None:
        self.open(address)
        self.page.get_by_label("API key").fill(key)
        self.page.get_by_role("button", name="Sign in").click()
        expect(self.page.locator("#main")).to_be_visible()

    @property
    def editor(self) -> Locator:
        return self.page.get_by_role("textbox", name="SQL")

    def write(self, sql: str) -> None:
        """Replace what is in the editor, as somebody who pastes."""
        self.editor.click()
        self.page.keyboard.press("ControlOrMeta+a")
        self.page.keyboard.press("Delete")
        self.page.keyboard.insert_text(sql)

    def run(self, sql: str | None = None) -> None:
        """Run with the keyboard and wait for the end."""
        if sql is not None:
            self.write(sql)
        self._run_by("ControlOrMeta+Enter")

    def run_all(self) -> None:
        """Run everything as one transaction, with the keyboard, and wait for the end."""
        self._run_by("ControlOrMeta+Shift+Enter")

    def _run_by(self, keys: str) -> None:
        before = self._newest_result()
        self.page.keyboard.press(keys)
        self._wait_for_end(before)

    def _newest_result(self) -> int:
        """Return the number of the newest result that is there, or 0."""
        numbers = "tabs => tabs.map(tab => Number(tab.dataset.tab))"
        return max(self.results.evaluate_all(numbers), default=0)

    def _wait_for_end(self, before: int = 0) -> None:
        """Wait until a result is there that is newer than another, and nothing runs: the one before has ended, too."""
        for _ in range(WAIT_MS // 50):
            if self._newest_result() > before:
                expect(self.page.locator('.results [role=tab][data-state="running"]')).to_have_count(0)
                return
            self.page.wait_for_timeout(50)
        raise AssertionError("nothing was begun")

    @property
    def results(self) -> Locator:
        return self.page.get_by_role("tablist", name="Results").get_by_role("tab")

    @property
    def grid(self) -> Locator:
        return self.page.get_by_role("grid")

    def cell(self, row: int, column: int) -> Locator:
        """A cell by its place, both counted from 0."""
        return self.grid.locator(f'[role=row][aria-rowindex="{row + 2}"] [role=gridcell][aria-colindex="{column + 2}"]')

    def edit(self, row: int, column: int, value: str) -> None:
        """Type a new value of a cell, and stage it."""
        self.cell(row, column).dblclick()
        editor = self.page.get_by_role("textbox", name="New value of")
        expect(editor).to_be_focused()
        editor.fill(value)
        self.page.keyboard.press("Enter")
        expect(editor).to_have_count(0)

    @property
    def staged(self) -> Locator:
        return self.page.get_by_role("region", name="Staged edits")

    @property
    def status(self) -> Locator:
        return self.page.locator(".results .status")

    @property
    def alert(self) -> Locator:
        return self.page.get_by_role("alert")

    def command(self, name: str) -> None:
        """Do something by the command palette."""
        self.page.keyboard.press("ControlOrMeta+k")
        self.page.get_by_role("combobox", name="Search commands").fill(name)
        self.page.keyboard.press("Enter")

    def go(self, page: str) -> None:
        self.page.get_by_role("navigation", name="Pages").get_by_role("link", name=page, exact=True).click()

    def clipboard(self) -> str:
        text: str = self.page.evaluate("navigator.clipboard.readText()")
        return text

    def picture(self, name: str) -> None:
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}.png")


def _new_context(browser: Browser, service: Service, **options: Any) -> BrowserContext:
    size = options.pop("viewport", {"width": 1280, "height": 800})
    context = browser.new_context(viewport=size, **options)
    context.set_default_timeout(WAIT_MS)
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=service.control_url)
    return context


@contextmanager
def open_console(browser: Browser, service: Service, **options: Any) -> Iterator[Console]:
    """Give a console in a context of its own, with nothing kept from before."""
    context = _new_context(browser, service, **options)
    console = Console(context.new_page(), service)
    yield console
    console.check()
    context.close()
