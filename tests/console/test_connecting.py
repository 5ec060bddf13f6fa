"""The snippets of the page Connect run as they are shown. tests/extended has those of Neon's driver."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.console.console import require
from tests.console.snippets import make_environment, read_snippets
from tests.control import Organization, new_organization
from tests.external import free_port
from tests.service import Service


@pytest.fixture(scope="module")
def reached(service: Service) -> Organization:
    return new_organization(service)


@pytest.fixture(scope="module")
def snippets(browser: Browser, service: Service, reached: Organization) -> dict[str, str]:
    return read_snippets(browser, service, reached)


def test_every_way_to_connect_has_a_test(snippets: dict[str, str]) -> None:
    neon = ["Neon's driver", "Neon's driver, WebSocket"]
    assert sorted(snippets) == sorted([*COMMANDS, "Tunnel", *neon])


COMMANDS = {
    "curl": ["sh"],
    "Python": [sys.executable],
    "JavaScript": ["node", "--input-type=module", "-"],
    "psql": ["sh"],
    "SQLAlchemy": [sys.executable],
}


@pytest.mark.parametrize("way", COMMANDS)
def test_a_snippet_runs_as_it_is(way: str, snippets: dict[str, str], reached: Organization, tmp_path: Path) -> None:
    command, typed = list(COMMANDS[way]), ""
    require(shutil.which(command[0]) is not None, f"{command[0]} is missing")
    if command[-1] == "-":
        typed = snippets[way]
    else:
        file = tmp_path / "snippet"
        file.write_text(snippets[way])
        command.append(str(file))
        typed = "select 41 + 1 as next;"
    environment = make_environment(reached, tmp_path)
    made = subprocess.run(command, env=environment, input=typed, capture_output=True, text=True, timeout=60)
    assert made.returncode == 0, made.stderr
    assert "42" in made.stdout, made.stderr


def test_the_tunnel_carries_psql(snippets: dict[str, str], reached: Organization, tmp_path: Path) -> None:
    environment = make_environment(reached, tmp_path)
    code = snippets["Tunnel"].replace("6432", str(free_port()))
    first, second = code.split("# In another terminal:")
    # exec: what is started is then the tunnel itself, and not a shell that waits for it.
    opened = subprocess.Popen(
        ["sh", "-c", first.replace("\ntuplegate", "\nexec tuplegate")],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    with opened:
        assert opened.stdout is not None
        assert opened.stdout.readline().startswith("psql postgresql://127.0.0.1:")
        made = subprocess.run(["sh", "-c", second], env=environment, capture_output=True, text=True, timeout=60)
        opened.terminate()
    assert "42" in made.stdout, made.stderr
