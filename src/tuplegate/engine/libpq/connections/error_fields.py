"""Reads fields of an error or a notice, cut before they are copied: a tenant's code can make them as long as it
likes."""

import ctypes
import sys
from collections.abc import Callable

from psycopg import pq
from psycopg.pq.abc import PGresult

from tuplegate.engine.libpq.values.result_size import size_of

_SHORT_BYTES = 16 * 1024
"""Results up to this size are small enough to copy their fields whole."""


def copy_field(result: PGresult, name: pq.DiagnosticField, bytes_max: int) -> bytes | None:
    """Return the field. One that is longer than `bytes_max` may be cut anywhere beyond that."""
    if _read_start is None or size_of(result) <= _SHORT_BYTES:
        return result.error_field(name)
    return _read_start(result, name, bytes_max + 1)


def _make() -> Callable[[PGresult, pq.DiagnosticField, int], bytes | None] | None:
    try:
        # As in `result_size`: the libpq that the driver was linked with.
        find = ctypes.PyDLL(sys.modules[pq.PGresult.__module__].__file__ or "").PQresultErrorField
        measure = ctypes.PyDLL(None).strnlen
    except (OSError, AttributeError):  # the driver is not the one in C, or the system has no such function
        return None
    find.argtypes, find.restype = [ctypes.c_void_p, ctypes.c_int], ctypes.c_void_p
    measure.argtypes, measure.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_size_t

    def read_start(result: PGresult, name: pq.DiagnosticField, bytes_max: int) -> bytes | None:
        place = find(result.pgresult_ptr, int(name))  # type: ignore[attr-defined]  # the protocol leaves it out
        return None if place is None else ctypes.string_at(place, measure(place, bytes_max))

    return read_start


_read_start = _make()
