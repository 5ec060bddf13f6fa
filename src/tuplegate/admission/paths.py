"""Finds the value of a path in a tree of its parts: however many paths there are, each part is looked up once."""

from collections.abc import Iterable
from typing import Final, Generic, TypeVar
from urllib.parse import unquote

_PATH_MAX, _PARTS_MAX = 4096, 16
"""No route has a longer path, even with every character encoded, or more parts."""

T = TypeVar("T")


class _Node(Generic[T]):
    """`items` belong to the path that ends here, by method, each with the places and names of its parts in braces."""

    def __init__(self) -> None:
        self.literal: Final[dict[str, _Node[T]]] = {}
        self.any: _Node[T] | None = None
        self.items: Final[dict[str, tuple[list[tuple[int, str]], T]]] = {}


class PathTree(Generic[T]):
    """Paths, each with a value for each method. A part in braces matches any text but the empty one; a part that is
    written out takes precedence."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, method: str, path: str, item: T) -> None:
        node, names = self._root, []
        for place, part in enumerate(path.split("/")):
            if part.startswith("{"):
                names.append((place, part[1:-1]))
                node.any = node = node.any or _Node()
            else:
                node = node.literal.setdefault(part, _Node())
        node.items[method] = (names, item)

    def find(self, parts: list[str]) -> dict[str, tuple[list[tuple[int, str]], T]]:
        """Return the values of a path by method, with the places of its parts in braces; empty if there is no such
        path."""
        node = _find(self._root, parts, 0)
        return {} if node is None else node.items


def gather_paths(paths: Iterable[str]) -> PathTree[None]:
    """Return a tree of paths that only says whether it has one."""
    tree: PathTree[None] = PathTree()
    for path in paths:
        tree.add("", path, None)
    return tree


def _find(node: _Node[T], parts: list[str], place: int) -> _Node[T] | None:
    if place == len(parts):
        return node if node.items else None
    part = parts[place]
    literal = node.literal.get(part)
    found = None if literal is None else _find(literal, parts, place + 1)
    if found is None and node.any is not None and part:
        found = _find(node.any, parts, place + 1)
    return found


def split_path(path: str) -> list[str]:
    """Return the parts of a path between its slashes, decoded; none if no route can have such a path.

    The parts are decoded one by one: a percent-encoded slash separates nothing, as for a proxy in front of us that lets
    only some paths through. No name has a NUL, which would end it for the engine.
    """
    if len(path) > _PATH_MAX or path.count("/") > _PARTS_MAX:
        return []
    parts = path.split("/")
    if "%" not in path:
        return parts
    parts = [unquote(part) for part in parts]
    return [] if any("/" in part or "\0" in part for part in parts) else parts
