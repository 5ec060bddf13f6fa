"""What the compiler cannot do right, and the sources of the hot path must not ask of it."""

import ast
import runpy
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
HOT: tuple[str, ...] = runpy.run_path(str(ROOT / "tools" / "compile.py"))["HOT"]


@pytest.mark.parametrize("module", HOT)
def test_a_name_is_for_exceptions_of_one_kind(module: str) -> None:
    """In a coroutine a name has one type: what another clause catches under it would raise a TypeError instead."""
    tree = ast.parse((SOURCE / "tuplegate" / f"{module}.py").read_text())
    for function in ast.walk(tree):
        if not isinstance(function, ast.AsyncFunctionDef):
            continue
        kinds: dict[str, set[str]] = defaultdict(set)
        for clause in ast.walk(function):
            if isinstance(clause, ast.ExceptHandler) and clause.name and clause.type:
                kinds[clause.name].add(ast.unparse(clause.type))
        several = {name: found for name, found in kinds.items() if len(found) > 1}
        assert not several, f"{module}.{function.name}: {several}"
