"""Chooses the driver's loaders for the types of a result: integers, booleans and arrays of them; all else stays
text."""

from collections.abc import Iterable
from typing import Final

import psycopg
from psycopg import pq
from psycopg.abc import AdaptContext
from psycopg.adapt import AdaptersMap, Loader

from tuplegate.engine.libpq.values.types import ARRAYS_MAX, BOOL, INT4, INTEGERS, TEXT, TEXT_ARRAY, TypeRegistry

_TEXT: Final = pq.Format.TEXT


def _find_loader(oid: int) -> type[Loader]:
    loader = psycopg.adapters.get_loader(oid, _TEXT)
    assert loader is not None
    return loader  # type: ignore[return-value]  # the driver types its own loaders as a protocol


_TEXT_LOADER: Final = _find_loader(TEXT)
_INT_LOADER: Final = _find_loader(INT4)
_BOOL_LOADER: Final = _find_loader(BOOL)
# The driver's loader in C where it has one, which is twenty times as fast as the other.
_ArrayLoader: Final[type[Loader]] = _find_loader(TEXT_ARRAY).__base__  # type: ignore[assignment]  # of what the driver made for arrays of text


class Adaptation(AdaptContext):
    """The part of an adapter that the driver's transformer needs: a map of loaders, and no connection."""

    def __init__(self, adapters: AdaptersMap) -> None:
        self._adapters = adapters

    @property
    def adapters(self) -> AdaptersMap:
        return self._adapters

    @property
    def connection(self) -> None:
        return None


def make_adaptation(oids: Iterable[int], types: TypeRegistry, strings: frozenset[int]) -> Adaptation:
    adapters = AdaptersMap()
    for kind, loader in ((0, _TEXT_LOADER), (TEXT, _TEXT_LOADER), (INT4, _INT_LOADER), (BOOL, _BOOL_LOADER)):
        adapters.register_loader(kind, loader)
    for oid in oids:
        _register(adapters, oid, types, strings)
    return Adaptation(adapters)


def make_text_adaptation() -> Adaptation:
    """Load every value as text, whatever its type is."""
    adapters = AdaptersMap()
    for kind in (0, TEXT):
        adapters.register_loader(kind, _TEXT_LOADER)
    return Adaptation(adapters)


def _register(
    adapters: AdaptersMap, oid: int, types: TypeRegistry, strings: frozenset[int], arrays: int = ARRAYS_MAX
) -> int:
    """Register a loader and return the number of its kind. `arrays` bounds how deep array types may still nest."""
    info = types.strip_domains(oid)
    if info.element and arrays:
        element = _register(adapters, info.element, types, strings, arrays - 1)
        kind, loader = _make_array_loader(element, info.delimiter)
        adapters.register_loader(kind, loader)
    elif info.oid in INTEGERS and info.oid not in strings:
        kind, loader = INT4, _INT_LOADER
    elif info.oid == BOOL:
        kind, loader = BOOL, _BOOL_LOADER
    else:
        kind, loader = TEXT, _TEXT_LOADER
    adapters.register_loader(oid, loader)
    return kind


_array_loaders: dict[tuple[int, str], tuple[int, type[Loader]]] = {}
_FIRST_KIND: Final = 2**32 - 1000
"""Numbers for kinds of arrays, which no type has."""


def _make_array_loader(element: int, delimiter: str) -> tuple[int, type[Loader]]:
    """Return the loader of arrays with this kind of elements. Loaders are cached: a class derived from the driver's C
    class is never freed."""
    known = _array_loaders.get((element, delimiter))
    if known is None:
        attributes = {"base_oid": element, "delimiter": delimiter.encode()}
        loader: type[Loader] = type("ArrayOf", (_ArrayLoader,), attributes)
        known = _array_loaders[element, delimiter] = _FIRST_KIND + len(_array_loaders), loader
    return known
