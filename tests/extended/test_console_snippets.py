"""The snippets of the console's page Connect for Neon's driver run as they are shown; tests/console has the others."""

import subprocess
from pathlib import Path

import pytest
from bench.peers.install import PATH
from playwright.sync_api import Browser

from tests.console.conftest import browser as browser
from tests.console.snippets import make_environment, read_snippets
from tests.control import Organization, new_organization
from tests.service import Service


@pytest.fixture(scope="module")
def reached(service: Service) -> Organization:
    return new_organization(service)


@pytest.fixture(scope="module")
def snippets(browser: Browser, service: Service, reached: Organization) -> dict[str, str]:
    return read_snippets(browser, service, reached)


@pytest.mark.parametrize("way", ["Neon's driver", "Neon's driver, WebSocket"])
def test_a_snippet_runs_as_it_is(
    way: str, snippets: dict[str, str], reached: Organization, javascript: Path, tmp_path: Path
) -> None:
    program = javascript / "snippet.mjs"
    program.write_text(snippets[way])
    # Node.js has WebSocket without being asked from 22 on.
    environment = {**make_environment(reached, tmp_path), "PATH": PATH, "NODE_OPTIONS": "--experimental-websocket"}
    made = subprocess.run(["node", str(program)], env=environment, capture_output=True, text=True, timeout=60)
    assert made.returncode == 0, made.stderr
    assert "42" in made.stdout
