"""The lock file of the console's packages: what `npm ci` needs on every machine, and no address."""

import json
import re
from pathlib import Path
from typing import Any

CONSOLE = Path(__file__).parent.parent.parent / "console"


def read_packages() -> dict[str, dict[str, Any]]:
    packages: dict[str, dict[str, Any]] = json.loads((CONSOLE / "package-lock.json").read_text())["packages"]
    del packages[""]
    return packages


def test_it_has_hashes_and_no_address() -> None:
    """Whoever installs it takes the packages from wherever npm is set to, and gets these or none."""
    packages = read_packages()
    assert len(packages) > 10
    for name, package in packages.items():
        assert re.match(r"sha512-", package.get("integrity", "")), name
        assert not re.match(r"https?:", str(package.get("resolved", ""))), name


def test_it_has_the_packages_of_every_platform() -> None:
    """Otherwise `npm ci` refuses it on all of them, except where the packages are installed already."""
    packages = read_packages()
    missing = {
        f"{name} wants {wanted}"
        for name, package in packages.items()
        for wanted in package.get("optionalDependencies", {})
        if f"node_modules/{wanted}" not in packages and f"{name}/node_modules/{wanted}" not in packages
    }
    assert missing == set()


def test_no_package_needs_a_script_when_it_is_installed() -> None:
    """The build runs none of them."""
    assert [name for name, package in read_packages().items() if package.get("hasInstallScript")] in (
        [],
        ["node_modules/fsevents"],  # of macOS; the bundler works without it
    )
