"""`tuplegate console`: a browser that is signed in without ever seeing the key."""

import re
import stat
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.command import Command
from tests.service import Service


def exchange(service: Service, url: str) -> dict[str, Any]:
    """Sign in as the page does that the address leads to."""
    place, _, code = url.partition("#code=")
    assert place == f"{service.control_url}/console/"
    answer = httpx.post(f"{service.control_url}/v1/console/sessions", json={"code": code}, trust_env=False)
    assert answer.status_code == 201, answer.text
    session: dict[str, Any] = answer.json()["session"]
    return session


@pytest.fixture
def browser(tmp_path: Path) -> Path:
    """A browser that only notes what it was started with."""
    program = tmp_path / "browser"
    program.write_text(f'#!/bin/sh\nprintf "%s" "$*" > {tmp_path}/seen\n')
    program.chmod(0o755)
    return program


def test_it_opens_the_browser_signed_in(service: Service, tmp_path: Path, browser: Path) -> None:
    """The browser is started with a file that nobody else can read, since the list of processes shows what it is
    started with; it leads to the console."""
    command = Command(service, tmp_path, BROWSER=f"{browser} %s", XDG_CACHE_HOME=str(tmp_path / "cache"))
    for _ in range(2):
        done = command("console")
        assert (done.code, done.out) == (0, ""), done
        assert f"{service.control_url}/console/" in done.err
        page = Path((tmp_path / "seen").read_text().removeprefix("file://"))
        assert stat.S_IMODE(page.stat().st_mode) == 0o600
        assert stat.S_IMODE(page.parent.stat().st_mode) == 0o700
        [url] = re.findall(r'<a href="([^"]+)"', page.read_text())
        assert f"0;url={url}" in page.read_text()
        assert "operator" in exchange(service, url)["scopes"]
        assert "svc_" not in done.err
    assert len(list(page.parent.iterdir())) == 1, "the second page takes the place of the first"


def test_the_address_can_be_printed(service: Service, tmp_path: Path, browser: Path) -> None:
    """By request, where there is no browser, and where the browser cannot be started."""
    seen = tmp_path / "seen"
    for given, arguments in (
        ({"BROWSER": f"{browser} %s"}, ["--print"]),
        ({"BROWSER": "", "DISPLAY": "", "WAYLAND_DISPLAY": ""}, []),
        ({"BROWSER": "/nowhere/browser %s"}, []),
    ):
        done = Command(service, tmp_path, **given)("console", *arguments)
        assert done.code == 0, done
        assert "once" in done.err
        exchange(service, done.out.strip())
        assert not seen.exists()


def test_the_session_can_be_narrower_than_the_key(command: Command, service: Service) -> None:
    """And the address has a form for programs, too."""
    done = command("console", "--scope", "read", "--database", "main", "-o", "ndjson")
    [made] = done.lines
    assert set(made) == {"url", "expires_at"}
    session = exchange(service, made["url"])
    assert (session["scopes"], session["database"]) == (["read"], "main")


def test_a_refusal_is_told(command: Command, service: Service, tmp_path: Path) -> None:
    """With the exit code that such a failure has in every command."""
    assert command("console", "--database", "nowhere", "--print").code == 6
    refused = Command(service, tmp_path, TUPLEGATE_API_KEY="svc_k_wrong")("console", "--print")
    assert (refused.code, refused.out) == (4, "")
