"""The JavaScript client in other runtimes than Node, and its types as TypeScript's compiler sees them."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from bench.peers.install import NotInstalled, install

from tests.control import Organization
from tests.extended.test_generated_clients import GENERATORS, INSTALLED
from tests.javascript.package import HERE, SCENARIOS, SOURCE, make_package, run_program, run_scenarios
from tests.service import Service

RUNTIMES = {
    "deno": ("@deno/*/deno", ["run", "--allow-all", "--no-lock", "--node-modules-dir=manual"]),
    "bun": ("@oven/bun-*/bin/bun", ["run"]),
}
"""Where each is installed, and how it runs a program."""

STRICT = {
    "strict": True,
    "noUncheckedIndexedAccess": True,
    "exactOptionalPropertyTypes": True,
    "noEmit": True,
    "target": "es2022",
    "types": [],
}


def installed(name: str, folder: Path, packages: Path) -> Path:
    try:
        return install(name, folder, packages)
    except NotInstalled as exc:
        pytest.skip(f"{name} cannot be had: {exc}")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("javascript")
    make_package(folder)
    return folder


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_in_other_runtimes(runtime: str, packed: Path, service: Service, organization: Organization) -> None:
    """The same scenarios as in Node."""
    place, arguments = RUNTIMES[runtime]
    found = _find_program(installed("runtimes", INSTALLED.parent, HERE.parent), place)
    told = run_scenarios(packed, service, organization.key, [found, *arguments])
    assert told == dict.fromkeys(SCENARIOS)


def _find_program(folder: Path, place: str) -> Path:
    """Return the program that runs here: there may be one for each C library."""
    for found in sorted((folder / "node_modules").glob(place)):
        if subprocess.run([found, "--version"], capture_output=True).returncode == 0:
            return found
    pytest.skip(f"there is no {place} for this machine")


def compiler() -> Path:
    if shutil.which("node") is None:
        pytest.skip("there is no Node.js")
    return installed("typescript", INSTALLED, GENERATORS) / "node_modules/.bin/tsc"


@pytest.mark.parametrize(
    "options",
    [
        {"module": "nodenext", "moduleResolution": "nodenext", "lib": ["es2022", "dom"]},
        {"module": "esnext", "moduleResolution": "bundler", "lib": ["esnext", "dom"], "skipLibCheck": True},
    ],
)
def test_a_typescript_program_uses_all_that_is_declared(packed: Path, options: dict[str, object]) -> None:
    """As strict as the compiler can be, the declarations too, with the ways in which packages are found."""
    shutil.copy(HERE / "types" / "program.ts", packed)
    (packed / "tsconfig.json").write_text(json.dumps({"compilerOptions": STRICT | options, "files": ["program.ts"]}))
    run_program([compiler(), "--project", "."], packed)


def test_the_sources_are_what_the_declarations_say(tmp_path: Path) -> None:
    """The comments in the sources give their types, and these fit the declarations."""
    for folder in ("src", "types"):
        shutil.copytree(SOURCE / folder, tmp_path / folder)
    shutil.copy(HERE / "types" / "sources.ts", tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    options = STRICT | {"module": "nodenext", "moduleResolution": "nodenext", "lib": ["esnext", "dom", "dom.iterable"]}
    options |= {"allowJs": True, "checkJs": True, "exactOptionalPropertyTypes": False}
    (tmp_path / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "files": ["sources.ts"]}))
    run_program([compiler(), "--project", "."], tmp_path)
