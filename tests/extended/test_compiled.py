"""The service with its hot path compiled: the tests of that path, run once more on it."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = (
    "query", "errors", "known_heads", "http_rules", "alias", "lanes", "transactions", "prepared", "values",
    "like_the_engine",
)  # fmt: skip

compiler = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0])
pytestmark = pytest.mark.skipif(compiler is None, reason="there is no C compiler")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which the compiled package is the one that is imported, by children too."""
    target = tmp_path_factory.mktemp("compiled") / "package"
    command = [sys.executable, str(ROOT / "tools" / "compile.py"), str(target), "0"]
    made = subprocess.run(command, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    yield {**environment, "PYTHONPATH": str(target)}
    shutil.rmtree(target)


@pytest.mark.timeout(1200)
def test_it_is_what_is_imported(compiled: dict[str, str]) -> None:
    code = "from tuplegate.http import connection; print(connection.__file__)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=compiled)
    assert found.stdout.strip().endswith(sysconfig.get_config_var("EXT_SUFFIX"))


@pytest.mark.timeout(1200)
def test_it_passes_the_same_tests_and_its_own(compiled: dict[str, str]) -> None:
    files = ["tests/compiled", *(f"tests/http/test_{part}.py" for part in PARTS)]
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", *files]
    run = subprocess.run(command, capture_output=True, text=True, env=compiled, cwd=ROOT)
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-5_000:]
