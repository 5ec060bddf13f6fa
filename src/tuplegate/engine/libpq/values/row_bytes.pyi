from collections.abc import Callable, Sequence
from enum import IntEnum

from psycopg.pq.abc import PGresult

def size_of(result: PGresult) -> int: ...

class Kind(IntEnum):
    TEXT = 0
    NUMBER = 1
    BOOLEAN = 2
    JSON = 3
    TIMESTAMP = 4
    TIMESTAMPTZ = 5
    BYTEA = 6

class RowWriter:
    def __init__(
        self, columns: Sequence[tuple[int, Kind, bytes]], end: bytes, odd: Callable[[int, str], bytes]
    ) -> None: ...
    def write(self, result: PGresult, end: int, between: bytes, last: bytes = b"", first: int = 0) -> bytes: ...
