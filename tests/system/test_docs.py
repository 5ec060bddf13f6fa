"""The documentation is true: its commands answer what it says, and its tables are whole."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.control import Control
from tests.service import Service, running_service
from tuplegate.access.states import LIVES
from tuplegate.protocol.errors import ERRORS
from tuplegate.settings import list_settings

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
RUN = ("README.md", "docs/api.md")
"""The pages whose commands are run."""

DATA, CONTROL = "http://127.0.0.1:8080", "http://127.0.0.1:8082"
"""The addresses that the pages name."""

_OWN = {
    "id",
    "code",
    "key",
    "hint",
    "token",
    "subject",
    "organization",
    "next_cursor",
    "at",
    "created_at",
    "expires_at",
    "last_used_at",
}
_MEASURED = {"exec_us", "steps_us", "latency_us", "seconds", "operations", "per_second", "retries", "size_bytes"} | {
    "connections",
    "running",
    "connections_max",
}
_WHERE = ("data_url", "control_url", "console", "url", "address")
VOLATILE = frozenset({"timings", "request_id", "transaction_id", "engine", "sha256", *_WHERE} | _MEASURED | _OWN)
"""Fields whose value differs from run to run, or with the engine's version."""

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_HEADER_READ = re.compile(r"headers\.get\(b\"([a-z-]+)\"")


@dataclass(frozen=True)
class Example:
    """A command, and the answer that the page shows for it."""

    command: str
    answer: str


def blocks(page: Path) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in _BLOCK.finditer(page.read_text("utf-8"))]


def is_command(kind: str, text: str) -> bool:
    return kind in ("sh", "console") and re.search(r"\bcurl ", text, re.MULTILINE) is not None


def examples(page: Path) -> list[Example]:
    found = blocks(page)
    assert all(is_command(kind, text) for kind, text in found if re.search(r"^\s*curl ", text, re.MULTILINE)), page
    followers = [*found[1:], ("", "")]
    made = []
    for (kind, text), (answer_kind, answer) in zip(found, followers, strict=True):
        if is_command(kind, text):
            assert answer_kind in ("json", "text"), f"{page.name} shows no answer to:\n{text}"
            made.append(Example(re.sub(r"^\$ ", "", text, flags=re.MULTILINE), answer))
    return made


def run(command: str, service: Service) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command.replace(DATA, service.url).replace(CONTROL, service.control_url)],
        env={**os.environ, "TUPLEGATE_API_KEY": service.key, "no_proxy": "*"},
        cwd=service.home,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done.stdout


def settled(value: Any) -> Any:
    """The value without what differs from run to run."""
    if isinstance(value, dict):
        return {key: "…" if key in VOLATILE else settled(part) for key, part in value.items()}
    return [settled(part) for part in value] if isinstance(value, list) else value


def parse(text: str) -> Any:
    """Numbers stay text, so that a digit too few is seen."""
    return settled(json.loads(text, parse_int=str, parse_float=str))


def read_answer(text: str) -> list[Any]:
    """The JSON of an answer: one value, or the events of a stream."""
    if text.startswith("event: "):
        events = [event.split("\n") for event in text.strip().split("\n\n")]
        assert all(len(event) == 2 and event[1].startswith("data: ") for event in events), text
        return [(kind, parse(data.removeprefix("data: "))) for kind, data in events]
    return [parse(line) for line in text.strip().split("\n")]


@pytest.fixture
def fresh_service() -> Iterator[Service]:
    """As a newcomer finds it: no tables, one key."""
    with running_service() as running:
        yield running


@pytest.mark.parametrize("name", RUN)
def test_every_curl_of_a_page_answers_what_the_page_shows(name: str, fresh_service: Service) -> None:
    """In the order of the page, as pasted, but for the address."""
    found = examples(ROOT / name)
    assert found, f"{name} has no examples"
    for example in found:
        assert DATA in example.command or CONTROL in example.command
        output = run(example.command, fresh_service)
        assert read_answer(output) == read_answer(example.answer), example.command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_page_with_a_curl_is_run(page: Path) -> None:
    """None is only to be looked at."""
    assert str(page.relative_to(ROOT)) in RUN or not any(re.search(r"\bcurl ", text) for _, text in blocks(page))


def test_every_route_is_asked_by_a_curl(service: Service) -> None:
    """In the reference, but for what is no JSON."""
    asked = {ask for _, text in blocks(ROOT / "docs/api.md") for ask in _asked(text)}
    for url in (service.url, service.control_url):
        with httpx.Client(base_url=url, trust_env=False, verify=False) as client:
            endpoints = set(client.get("/").json()["endpoints"]) - {"GET /metrics", "GET /docs"}
        for endpoint in endpoints:
            method, path = endpoint.split(" ")
            pattern = re.escape(method) + " " + re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))
            assert any(re.fullmatch(pattern, one) for one in asked), endpoint


def _asked(text: str) -> Iterator[str]:
    """Method and path of every request in a command."""
    for rest in re.split(r"\bcurl\b", text.replace("\\\n", " "))[1:]:
        command = rest.split("\n")[0]
        if place := re.search(r"127\.0\.0\.1:\d+(/[^\s'\"?]*)", command):
            method = re.search(r"-X (\w+)", command)
            yield f"{method[1] if method else 'POST' if ' -d ' in command else 'GET'} {place[1]}"


def test_every_route_has_its_heading_in_the_reference(service: Service) -> None:
    """The banner lists the routes that there are."""
    headings = set(_HEADING.findall((ROOT / "docs/api.md").read_text("utf-8")))
    with service.client() as client:
        endpoints = client.get("/").json()["endpoints"]
    assert {f"`{endpoint}`" for endpoint in endpoints} <= headings


def test_every_route_of_the_control_plane_has_its_row(service: Service) -> None:
    """As its banner lists them."""
    rows = (ROOT / "docs/api.md").read_text("utf-8").splitlines()
    for endpoint in Control(service, service.key).client.get("/").json()["endpoints"]:
        if endpoint not in ("GET /", "GET /health"):
            assert len([row for row in rows if row.startswith(f"| `{endpoint}` |")]) == 1, endpoint


def test_every_state_has_its_row() -> None:
    """Of every life."""
    text = (ROOT / "docs/states.md").read_text("utf-8")
    for life in LIVES:
        for (state, event), after in life.transitions.items():
            assert f"| `{state}` | {event} | `{after}` |" in text


def test_every_request_header_of_the_service_has_its_row() -> None:
    """Those that the planes look at, as their sources name them."""
    text = (ROOT / "docs/api.md").read_text("utf-8").lower()
    planes = ("admission", "data_plane", "control_plane")
    sources = [path.read_text("utf-8") for plane in planes for path in (ROOT / "src/tuplegate" / plane).glob("*.py")]
    names = {name for source in sources for name in _HEADER_READ.findall(source)}
    assert {"authorization", "idempotency-key", "tuplegate-transaction-id"} <= names, "the pattern finds nothing"
    assert {name for name in names if f"| `{name}` |" not in text} == set()


def test_the_generated_pages_are_what_their_tables_say() -> None:
    """As `make check` asks."""
    command = [sys.executable, str(ROOT / "docs/generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_setting_has_its_row() -> None:
    """With its name in the file, its flag, its variable and its bounds."""
    rows = (ROOT / "docs/settings.md").read_text("utf-8").splitlines()
    for entry in list_settings():
        start = f"| `{entry.name}` | `{entry.flag}` | `{entry.variable}` |"
        [row] = [row for row in rows if row.startswith(start)]
        takes = row.split(" | ")[4]
        assert entry.at_least is None or str(entry.at_least) in takes, row
        assert entry.at_most is None or str(entry.at_most) in takes, row


def test_every_error_has_its_row() -> None:
    """With its status."""
    text = (ROOT / "docs/errors.md").read_text("utf-8")
    for row in ERRORS.values():
        assert f"| `{row.code}` | {row.status} |" in text
