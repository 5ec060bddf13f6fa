"""The snippets that the page Connect shows, and how each is run."""

import os
import sys
from pathlib import Path

from playwright.sync_api import Browser

from tests.console.console import ROOT, open_console
from tests.control import Organization
from tests.service import Service
from tuplegate.engine.bundled.binaries import find_wheel_programs, find_wheel_site

PROGRAMS = find_wheel_programs(find_wheel_site())
PLACEHOLDER = "'svc_k_…'"


def read_snippets(browser: Browser, service: Service, own: Organization) -> dict[str, str]:
    """Return what the page shows, by the names of its tabs, with the key in place."""
    with open_console(browser, service) as console:
        console.sign_in(own.key, "#/connect")
        page = console.page
        tabs = page.get_by_role("tablist", name="Ways to connect").get_by_role("tab")
        tabs.first.wait_for()
        found = {}
        for title in tabs.all_inner_texts():
            page.get_by_role("tab", name=title, exact=True).click()
            code = page.get_by_label(f"{title} code", exact=True).inner_text()
            found[title] = code.replace(PLACEHOLDER, f"'{own.key}'")
        return found


def make_environment(own: Organization, folder: Path) -> dict[str, str]:
    """Return an environment in which `tuplegate` is a program and the key is in its variable."""
    program = folder / "tuplegate"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tuplegate "$@"\n')
    program.chmod(0o755)
    return {
        "TUPLEGATE_API_KEY": own.key,
        "PATH": os.pathsep.join([str(folder), os.environ.get("PATH", os.defpath), str(PROGRAMS)]),
        "PYTHONPATH": str(ROOT / "src"),
        "HOME": str(folder),
    }
