"""The JavaScript client against a real service, in Node, from the package that npm makes; and its page."""

import json
import os
import re
import runpy
import shutil
import tarfile
from pathlib import Path

import httpx
import pytest

from tests.control import Organization
from tests.javascript.package import LOST, SCENARIOS, SOURCE, run_program, run_scenarios
from tests.service import Service
from tuplegate import __version__

ROOT = Path(__file__).parent.parent.parent
PAGE = (SOURCE / "README.md").read_text("utf-8")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NODE = shutil.which("node") or "node"
BOUNDED = "--max-old-space-size=32"
"""Node ends a program that holds more MB than this, so that no stream can be collected."""


@pytest.fixture(scope="module")
def told(packed: Path, service: Service, organization: Organization) -> dict[str, str | None]:
    return run_scenarios(packed, service, organization.key, [NODE, BOUNDED])


@pytest.mark.parametrize("name", SCENARIOS)
def test_in_node(name: str, told: dict[str, str | None]) -> None:
    assert told[name] is None, told[name]


def test_every_lost_answer_belongs_to_a_scenario() -> None:
    assert set(LOST) <= set(SCENARIOS)


def test_every_example_prints_what_the_page_shows(packed: Path, service: Service, organization: Organization) -> None:
    """In the order of the page, as one program."""
    blocks = [(match[1], match[2]) for match in BLOCK.finditer(PAGE)]
    examples = [
        (code, shown) for (kind, code), (_, shown) in zip(blocks, [*blocks[1:], ("", "")], strict=True) if kind == "js"
    ]
    assert len(examples) > 5
    (packed / "page.mjs").write_text("console.log('---');\n".join(code for code, _ in examples), "utf-8")
    environment = {**os.environ, "TUPLEGATE_URL": service.url, "TUPLEGATE_API_KEY": organization.key}
    printed = run_program([NODE, "page.mjs"], packed, environment)
    assert printed.split("---\n") == [shown for _, shown in examples]


def test_the_types_are_made_of_what_the_service_describes(service: Service) -> None:
    """The tool that makes them asks no service, and knows the same schemas."""
    tool = runpy.run_path(str(ROOT / "tools" / "javascript_types.py"))
    documents = [httpx.get(f"{url}/openapi.json", trust_env=False).json() for url in (service.url, service.control_url)]
    made = [document["components"]["schemas"] for document in tool["make_documents"]()]
    assert made == [document["components"]["schemas"] for document in documents]
    assert tool["TARGET"].read_text("utf-8") == tool["make_page"](documents)


def test_the_package_has_what_it_needs_and_no_more(packed: Path) -> None:
    """Its sources as they are, its types, its page and its licence; and the version of the service."""
    manifest = json.loads((SOURCE / "package.json").read_text("utf-8"))
    assert manifest["version"] == __version__
    assert not {"dependencies", "devDependencies", "scripts"} & set(manifest)
    assert (SOURCE / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    [made] = packed.glob("*.tgz")
    with tarfile.open(made) as archive:
        names = {name.removeprefix("package/") for name in archive.getnames()}
    sources = {str(path.relative_to(SOURCE)) for top in ("src", "types") for path in (SOURCE / top).iterdir()}
    assert names == sources | {"package.json", "README.md", "LICENSE"}
