"""The console in a real browser, against the real service. The pages are built once, where Node.js is there."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.console.console import Console, build_pages, find_chromium, open_console, require
from tests.control import Organization, new_organization
from tests.service import Service


# While it is open, asyncio.run fails in this thread: so it lives no longer than the tests of a file, and the service is
# started before it. tests/conftest.py holds this.
@pytest.fixture(scope="module")
def browser(service: Service) -> Iterator[Browser]:
    chromium = find_chromium()
    require(chromium is not None, "Chromium is missing: apt-get install chromium")
    build_pages()
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=chromium,
            args=[
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
            ],
        )
        yield opened
        opened.close()


@pytest.fixture
def own(service: Service) -> Organization:
    """An organization of the test's own, with an empty database."""
    return new_organization(service)


@pytest.fixture
def console(browser: Browser, service: Service) -> Iterator[Console]:
    """The console, not signed in. What goes wrong in the page fails the test."""
    with open_console(browser, service) as opened:
        yield opened


@pytest.fixture
def signed_in(console: Console, own: Organization) -> Console:
    """The console, signed in with the first key of the test's own organization."""
    console.sign_in(own.key)
    return console
