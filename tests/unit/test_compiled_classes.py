"""Classes that derive from a compiled one must be compiled too: an interpreted one cannot be made."""

import ast
import importlib
import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tuplegate"


def _find_hot() -> set[str]:
    spec = importlib.util.spec_from_file_location("compile", ROOT / "tools" / "compile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {f"tuplegate.{name.replace('/', '.')}" for name in module.HOT}


def _find_foreign_bases(path: Path, hot: set[str]) -> list[str]:
    """Return the classes of a file that derive from a class of a compiled module."""
    tree = ast.parse(path.read_text("utf-8"))
    origins = {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return [
        f"{path.relative_to(SOURCE)} {node.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for module, name in (_find_origin(base, origins) for base in node.bases)
        if module in hot and not _is_exception(module, name)
    ]


def _find_origin(base: ast.expr, origins: dict[str, str | None]) -> tuple[str, str]:
    """Return the module and the name of a base, which may have parameters, or its module before it."""
    if isinstance(base, ast.Subscript):
        base = base.value
    if isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name):
        return f"{origins.get(base.value.id)}.{base.value.id}", base.attr
    return (origins.get(base.id) or "", base.id) if isinstance(base, ast.Name) else ("", "")


def _is_exception(module: str, name: str) -> bool:
    """Return whether it is one of those that can be derived from all the same."""
    return issubclass(getattr(importlib.import_module(module), name), Exception)


def test_no_interpreted_class_derives_from_a_compiled_one() -> None:
    hot = _find_hot()
    assert hot
    found = [
        derived
        for path in SOURCE.rglob("*.py")
        if "tuplegate." + path.relative_to(SOURCE).with_suffix("").as_posix().replace("/", ".") not in hot
        for derived in _find_foreign_bases(path, hot)
    ]
    assert found == []
