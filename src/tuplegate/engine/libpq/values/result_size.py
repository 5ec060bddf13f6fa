"""The size of a result, measured without a look at its values."""

import ctypes
import sys
from collections.abc import Callable

from psycopg import pq
from psycopg.pq.abc import PGresult

_VALUE_BYTES = 16


def row_values(result: PGresult, row: int) -> list[bytes | None]:
    return [result.get_value(row, column) for column in range(result.nfields)]


def row_size(values: list[bytes | None]) -> int:
    return sum(map(len, filter(None, values))) + _VALUE_BYTES * len(values)


def _make() -> Callable[[PGresult], int]:
    try:
        from tuplegate.engine.libpq.values import row_bytes
    except (ImportError, OSError):  # it was not built; or the driver is not the one in C
        pass
    else:
        return row_bytes.size_of
    try:
        # The libpq that the driver was linked with. PyDLL keeps the interpreter's lock: the call takes no time.
        libpq = ctypes.PyDLL(sys.modules[pq.PGresult.__module__].__file__ or "")
        memory_size = libpq.PQresultMemorySize
    except (OSError, AttributeError):  # the driver is not the one in C
        return lambda result: sum(row_size(row_values(result, row)) for row in range(result.ntuples))
    memory_size.argtypes, memory_size.restype = [ctypes.c_void_p], ctypes.c_size_t
    return lambda result: memory_size(result.pgresult_ptr)  # type: ignore[attr-defined]  # the protocol leaves it out


size_of = _make()
"""The bytes that a result takes in memory: its values, and 16 for each of them."""
