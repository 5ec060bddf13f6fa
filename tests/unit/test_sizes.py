"""No function, file, class or folder outgrows its limit, except for a stated reason.

It stands in a comment `# size: …`: directly above a function or class and its decorators, or above the first import of
a file. For folders it stands in `LARGE_FOLDERS`.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "tuplegate"
FUNCTION_LINES, FILE_LINES, CLASS_LINES, CLASS_ATTRIBUTES = 70, 500, 300, 15
FOLDER_FILES = 15
REASON = "# size: "
LARGE_FOLDERS = {
    "client": "its modules are imported by users, and both halves of it share what neither does",
    "engine/cells": "files of cells, their servers and the line to the supervisor still lie side by side",
}

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _find_too_large(name: str, text: str) -> Iterator[str]:
    """Yield what is over its limit in a file and states no reason."""
    lines, tree = text.splitlines(), ast.parse(text)
    if len(lines) > FILE_LINES and not any(line.startswith(REASON) for line in lines[: _first_line_of_code(tree)]):
        yield name
    for node in ast.walk(tree):
        if isinstance(node, Definition) and _is_too_large(node):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if not _is_explained(lines[: first - 1]):
                yield f"{name} {node.name}"


def _first_line_of_code(tree: ast.Module) -> int:
    code = tree.body[1:] if ast.get_docstring(tree) else tree.body
    return code[0].lineno if code else 0


def _is_explained(above: list[str]) -> bool:
    """Return whether the comment at the end of these lines states a reason."""
    for line in reversed(above):
        if not line.lstrip().startswith("#"):
            return False
        if line.lstrip().startswith(REASON):
            return True
    return False


def _is_too_large(node: Definition) -> bool:
    assert node.end_lineno is not None
    count = node.end_lineno - node.lineno + 1
    if isinstance(node, ast.ClassDef):
        return count > CLASS_LINES or len(_attributes(node)) > CLASS_ATTRIBUTES
    return count > FUNCTION_LINES


def _attributes(node: ast.ClassDef) -> set[str]:
    """Return the names of its fields, and of all that its methods assign to `self`."""
    fields = {
        item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    assigned = {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute)
        and isinstance(part.ctx, ast.Store)
        and isinstance(part.value, ast.Name)
        and part.value.id == "self"
    }
    return fields | assigned


def test_nothing_outgrows_its_limit_without_a_stated_reason() -> None:
    found = {
        large
        for path in SOURCE.rglob("*.py")
        for large in _find_too_large(str(path.relative_to(SOURCE)), path.read_text("utf-8"))
    }
    assert found == set(), "make them smaller, or state the reason in a comment `# size: …`"


def _find_large_folders(files: Iterable[Path]) -> set[str]:
    """Return the folders with too many modules; `__init__.py` is not counted."""
    counts = Counter(str(path.parent) for path in files if path.name != "__init__.py")
    return {folder for folder, count in counts.items() if count > FOLDER_FILES}


def test_no_folder_outgrows_its_limit_without_a_stated_reason() -> None:
    found = _find_large_folders(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))
    assert found == LARGE_FOLDERS.keys(), "make rooms in them, or state the reason; and no reason where none is needed"


def test_the_limits_are_measured() -> None:
    """Each kind at its limit passes; one more does not, unless a reason stands above it."""
    function = "def f():\n" + "    pass\n" * (FUNCTION_LINES - 1)
    assert list(_find_too_large("m", function)) == []
    assert list(_find_too_large("m", function + "    pass\n")) == ["m f"]
    assert list(_find_too_large("m", f"{REASON}why\n# and more\n@x\n{function}    pass\n")) == []
    assert list(_find_too_large("m", f"{REASON}why\n\n{function}    pass\n")) == ["m f"]
    fields = "class C:\n" + "".join(f"    a{number}: int\n" for number in range(CLASS_ATTRIBUTES))
    assert list(_find_too_large("m", fields)) == []
    assert list(_find_too_large("m", fields + "    def f(self):\n        self.b = 1\n")) == ["m C"]
    long = "class C:\n" + "    pass\n" * CLASS_LINES
    assert list(_find_too_large("m", long)) == ["m C"]
    file = '"""A."""\n' + "x = 1\n" * (FILE_LINES - 1)
    assert list(_find_too_large("m", file)) == []
    assert list(_find_too_large("m", file + "x = 1\n")) == ["m"]
    assert list(_find_too_large("m", file.replace("x", f"{REASON}why\nx", 1))) == []
    folder = [Path("f/__init__.py"), *(Path(f"f/{number}.py") for number in range(FOLDER_FILES))]
    assert _find_large_folders(folder) == set()
    assert _find_large_folders([*folder, Path("f/one_more.py")]) == {"f"}
