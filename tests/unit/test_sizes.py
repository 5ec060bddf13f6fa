"""No function, file, class, object or folder outgrows its limit, except for a stated reason.

An object has the attributes of its class and of all its bases: a reader has to hold them all. The reason stands in a
comment `# size: …`: directly above a function or class and its decorators, or above the first import of a file. For
folders it stands in `LARGE_FOLDERS`.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE = "tuplegate"
SOURCE = Path(__file__).parents[2] / "src" / PACKAGE
FUNCTION_LINES, FILE_LINES, CLASS_LINES, CLASS_ATTRIBUTES, OBJECT_ATTRIBUTES = 70, 500, 300, 15, 20
FOLDER_FILES = 15
REASON = "# size: "
LARGE_FOLDERS = {
    "client": "its modules are imported by users, and both halves of it share what neither does",
}

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Classes:
    """The classes of a package, by their modules, and what its modules import from each other.

    A frozen record is left out: it is a message, or a row of a table, which holds no state to follow.
    """

    def __init__(self, texts: dict[str, str]) -> None:
        self._defined: dict[tuple[str, str], ast.ClassDef] = {}
        self._imported: dict[tuple[str, str], tuple[str, str]] = {}
        for module, text in texts.items():
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef):
                    self._defined[module, node.name] = node
                elif isinstance(node, ast.ImportFrom) and node.module is not None:
                    for alias in node.names:
                        self._imported[module, alias.asname or alias.name] = node.module, alias.name

    def count_attributes(self, module: str, name: str) -> int:
        return len(self._list_attributes(module, name))

    def find_too_large(self) -> Iterator[tuple[str, ast.ClassDef]]:
        for (module, name), node in self._defined.items():
            if not _is_frozen(node) and self.count_attributes(module, name) > OBJECT_ATTRIBUTES:
                yield module, node

    def _list_attributes(self, module: str, name: str) -> set[str]:
        node = self._defined[module, name]
        bases = [base for each in node.bases if (base := self._find_base(module, each)) is not None]
        return _attributes(node).union(*(self._list_attributes(*base) for base in bases))

    def _find_base(self, module: str, base: ast.expr) -> tuple[str, str] | None:
        """Return the module and the name of a base, if it is of the package."""
        if isinstance(base, ast.Subscript):
            base = base.value
        if isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name):
            found = self._imported.get((module, base.value.id))
            place = None if found is None else (".".join(found), base.attr)
        else:
            place = (module, base.id) if isinstance(base, ast.Name) else None
        while place is not None and place not in self._defined:
            place = self._imported.get(place)
        return place


def _is_frozen(node: ast.ClassDef) -> bool:
    calls = [each for each in node.decorator_list if isinstance(each, ast.Call)]
    keywords = [*node.keywords, *(keyword for call in calls for keyword in call.keywords)]
    return any(keyword.arg == "frozen" for keyword in keywords)


def _name_module(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _find_too_large(name: str, text: str) -> Iterator[str]:
    """Yield what is over its limit in a file and states no reason."""
    lines, tree = text.splitlines(), ast.parse(text)
    if len(lines) > FILE_LINES and not any(line.startswith(REASON) for line in lines[: _first_line_of_code(tree)]):
        yield name
    for node in ast.walk(tree):
        if isinstance(node, Definition) and _is_too_large(node) and not _is_explained(_list_lines_above(lines, node)):
            yield f"{name} {node.name}"


def _list_lines_above(lines: list[str], node: Definition) -> list[str]:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return lines[: first - 1]


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


def test_no_object_outgrows_its_limit_without_a_stated_reason() -> None:
    texts = {_name_module(path): path.read_text("utf-8") for path in SOURCE.rglob("*.py")}
    classes = Classes(texts)
    assert classes.count_attributes("tuplegate.engine.libpq.pools.pool", "Member") > OBJECT_ATTRIBUTES, (
        "bases are found"
    )
    found = {
        f"{module} {node.name}"
        for module, node in classes.find_too_large()
        if not _is_explained(_list_lines_above(texts[module].splitlines(), node))
    }
    assert found == set(), "cut them into parts, or state the reason in a comment `# size: …`"


def test_attributes_of_bases_count() -> None:
    """Also those of a base that another module has imported, or that is generic; the same name counts once."""
    half = OBJECT_ATTRIBUTES // 2
    first = "class A(Generic[T]):\n" + "".join(f"    a{number}: int\n" for number in range(half))
    second = "from p import a\nclass B(a.A[int]):\n" + "".join(f"    b{number}: int\n" for number in range(half))
    third = "from p.b import B\nclass C(B):\n    a0 = 1\n    def f(self):\n        self.a1 = 1\n"
    assert list(Classes({"p.a": first, "p.b": second, "p.c": third}).find_too_large()) == []
    larger = Classes({"p.a": first, "p.b": second, "p.c": third + "        self.c = 1\n"})
    assert [(module, node.name) for module, node in larger.find_too_large()] == [("p.c", "C")]
    assert larger.count_attributes("p.c", "C") == OBJECT_ATTRIBUTES + 1
    record = "@dataclass(frozen=True)\nclass R:\n" + "".join(f"    a{n}: int\n" for n in range(2 * half + 1))
    assert list(Classes({"p": record}).find_too_large()) == []


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
