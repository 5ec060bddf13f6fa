"""A docstring begins with a verb or the name of a thing, and not with a question or a noun clause."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tuplegate"

_CLAUSE = re.compile(r"((Return|Yield) )?(what|how|who|whoever|that|whether)\b", re.IGNORECASE)

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | Function


def _find_clauses(text: str) -> Iterator[str]:
    """Yield line and text of each docstring that begins with a clause. A function that returns a bool may say
    "Return whether …"."""
    for node in ast.walk(ast.parse(text)):
        first = (ast.get_docstring(node) or "").partition("\n")[0] if isinstance(node, Documented) else ""
        if _CLAUSE.match(first) and not (first.startswith("Return whether ") and _returns_bool(node)):
            yield f"{getattr(node, 'lineno', 1)}: {first}"


def _returns_bool(node: ast.AST) -> bool:
    return isinstance(node, Function) and node.returns is not None and ast.unparse(node.returns) == "bool"


def test_no_docstring_begins_with_a_clause() -> None:
    """In the package and its tools."""
    files = sorted([*SOURCE.rglob("*.py"), *(ROOT / "tools").glob("*.py")])
    found = [f"{path.relative_to(ROOT)}:{line}" for path in files for line in _find_clauses(path.read_text("utf-8"))]
    assert found == [], "name the thing that it is, does or returns"


def test_such_docstrings_are_found() -> None:
    """Of a module, a class, a function and a method; a predicate is told from others by what it returns."""
    text = '"""What it is."""\nclass C:\n  """Who."""\n  def f(self) -> str:\n    """Return how."""\n'
    assert sorted(_find_clauses(text)) == ["1: What it is.", "2: Who.", "4: Return how."]
    predicate = 'async def f() -> {}:\n  """Return whether it is."""\n'
    assert list(_find_clauses(predicate.format("int"))) == ["1: Return whether it is."]
    assert list(_find_clauses(predicate.format("bool"))) == []
    assert list(_find_clauses('def f():\n  """Return the thing."""\n  """How."""\n')) == []
