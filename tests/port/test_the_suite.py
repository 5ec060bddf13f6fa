"""The suite itself: written against the port alone, and nothing of it left out on the bundled engine."""

import ast
from pathlib import Path

import pytest

from tests.port.capabilities import CAPABILITIES
from tests.service import needs_bundled

HERE = Path(__file__).parent
ALLOWED = ("tuplegate.engine.port", "tuplegate.engine.opening", "tuplegate.protocol.statements")
"""What the suite knows of the product: the port, what chooses an adapter, and a statement's first keyword."""


def _imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def test_no_test_knows_an_adapter_or_a_driver() -> None:
    """Only conftest.py does, which starts the server."""
    for path in HERE.glob("*.py"):
        if path.name == "conftest.py":
            continue
        imported = _imported(path)
        assert {name for name in imported if name.startswith("tuplegate")} <= set(ALLOWED), path.name
        assert not {name for name in imported if name.split(".")[0] == "psycopg"}, path.name


@needs_bundled
def test_the_bundled_engine_can_do_everything(request: pytest.FixtureRequest, capabilities: frozenset[str]) -> None:
    """So that no test is skipped there because something is broken. Only the tenants of one server have neighbours."""
    lacking = {"neighbours"} if "cells" in request.node.name else set()
    assert capabilities == CAPABILITIES.keys() - lacking
