"""The port is cut by subject: none of its protocols is large, and a plane takes those that it uses.

A protocol that adds no member of its own only joins others. Those who join the planes, and adapters, take it whole.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "tuplegate"
PORT_MEMBERS = 8
WHOLE_IN = ("engine", "worker.py", "data_plane/routes.py", "control_plane/routes.py")
"""Where protocols that join others may be named. The last two make the handlers of a plane."""


class Port:
    """The protocols in the texts of modules, by name."""

    def __init__(self, texts: list[str]) -> None:
        classes = [node for text in texts for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
        named = {node.name: node for node in classes}
        self._protocols = {name: node for name, node in named.items() if "Protocol" in _list_bases(node)}

    def count_members(self, name: str) -> int:
        return len(self._members(name))

    def _members(self, name: str) -> set[str]:
        node = self._protocols[name]
        inherited = [self._members(base) for base in _list_bases(node) if base != "Protocol"]
        return set.union(_own_members(node), *inherited)

    @property
    def joining(self) -> set[str]:
        """Return the names of those that have no members of their own."""
        return {name for name, node in self._protocols.items() if not _own_members(node)}

    def find_too_large(self) -> list[str]:
        return [
            name for name in self._protocols if name not in self.joining and self.count_members(name) > PORT_MEMBERS
        ]


def _list_bases(node: ast.ClassDef) -> list[str]:
    return [base.id for base in node.bases if isinstance(base, ast.Name)]


def _own_members(node: ast.ClassDef) -> set[str]:
    methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)}
    fields = {
        item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    return methods | fields


PORT = Port([path.read_text("utf-8") for path in (SOURCE / "engine" / "port").glob("*.py")])


def _list_names(path: Path) -> Iterator[str]:
    """Yield the names that a module uses."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "port":
            yield node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tuplegate.engine.port"):
            yield from (alias.name for alias in node.names)


def test_no_protocol_of_the_port_is_large() -> None:
    assert PORT.find_too_large() == [], "cut it by subject"


def test_handlers_take_the_subjects_that_they_use() -> None:
    assert PORT.joining == {"Engine", "EngineDatabases", "OpenEngine"}
    found = {
        f"{path.relative_to(SOURCE)} {name}"
        for path in SOURCE.rglob("*.py")
        if not str(path.relative_to(SOURCE)).startswith(WHOLE_IN)
        for name in _list_names(path)
        if name in PORT.joining
    }
    assert found == set(), "name the subjects"


def test_the_bound_is_measured() -> None:
    """Inherited members count, and attributes do. A protocol that only joins others is not counted."""
    half = "class Half(Protocol):\n" + "".join(f"    def f{n}(self): ...\n" for n in range(PORT_MEMBERS - 1))
    rest = "class Whole(Half, Protocol):\n    a: int\n"
    assert Port([half, rest]).find_too_large() == []
    assert Port([half, rest + "    @property\n    def b(self): ...\n"]).find_too_large() == ["Whole"]
    other = "class Other(Protocol):\n    c: int\n    d: int\n"
    joined = Port([half, other, 'class Joined(Half, Other, Protocol):\n    """Both."""\n'])
    assert (joined.count_members("Joined"), joined.find_too_large()) == (PORT_MEMBERS + 1, [])
    assert joined.joining == {"Joined"}
