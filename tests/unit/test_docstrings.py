"""Docstrings say what a thing does or is: none begins with "What" or "Whether"."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tuplegate"

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _find_questions(text: str) -> Iterator[str]:
    """Yield the docstrings that begin as a question."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Documented):
            docstring = ast.get_docstring(node) or ""
            if docstring.startswith(("What ", "Whether ")):
                yield docstring.partition("\n")[0]


def test_no_docstring_begins_with_what_or_whether() -> None:
    """In the package and its tools."""
    files = [*SOURCE.rglob("*.py"), *(ROOT / "tools").glob("*.py")]
    found = [f"{path.name}: {first}" for path in files for first in _find_questions(path.read_text("utf-8"))]
    assert found == [], "say what it returns, does or is"


def test_such_docstrings_are_found() -> None:
    """Of a module, a class, a function and a method."""
    text = '"""What it is."""\nclass C:\n  """Whether."""\n  def f(self):\n    """Whether it is."""\n'
    assert list(_find_questions(text)) == ["What it is.", "Whether it is."]
    assert list(_find_questions('async def f():\n  """What."""\n  """Return what it is."""\n')) == []
