"""Shared by files of all formats: format by name, digest, and rows in batches."""

import hashlib
import io
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

FORMATS = ("csv", "ndjson", "parquet")
_BY_ENDING = {".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson", ".parquet": "parquet"}

Texts = Sequence[str | None]
"""The values of a column as text for the engine; None is NULL."""


@contextmanager
def write_whole(file: Path) -> Iterator[Path]:
    """Yield a temporary file beside it. On success it takes the name, and replaces the file that had it."""
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


class BadFile(Exception):
    """The file cannot be read as rows; the message says where."""


@dataclass(frozen=True)
class Batch:
    """Rows that are sent together, by column. A file is always split into the same batches, numbered in order."""

    number: int
    columns: Sequence[Texts]
    share: float
    """The part of the file that was read up to here, from 0 to 1."""
    name_of: Callable[[int], str]
    """Returns where a row of the batch is in the file, for people."""
    null: str | None = None
    """A text that stands for NULL; if there is none, None does."""

    @property
    def rows(self) -> int:
        return len(self.columns[0])


@dataclass(frozen=True)
class Guessed:
    """Types and number of rows, found by reading a file to its end."""

    types: list[str]
    rows: int


class RowSource(Protocol):
    """A file of rows."""

    columns: list[str]
    named: bool
    """True if the file names its columns; otherwise they get the names of the table's columns."""
    form: str
    """How the file is read, as text: another form makes other rows of the same bytes."""
    digest: str
    """Digest of all bytes when the file was opened."""
    about_empty: str
    """Hint for an empty text that does not fit a column."""

    def doubt(self, known: Collection[str]) -> str:
        """Say what may be wrong with names that are not `known`, and what to do; return an empty text if they look
        right."""

    def guess(self) -> Guessed:
        """Read the file to its end in constant memory, and guess the types."""

    def batches(self, documents: frozenset[str]) -> Iterator[Batch]:
        """Yield all rows. `documents` are columns of JSON. Raise BadFile if the file has changed at the end."""


class NamedColumns:
    """A file whose format always names its columns and has a NULL of its own."""

    named = True
    form = ""
    about_empty = ""

    def doubt(self, known: Collection[str]) -> str:
        return ""


def find_format(path: Path, format: str | None) -> str:
    if format is not None:
        return format
    found = _BY_ENDING.get(path.suffix.lower())
    if found is None:
        raise BadFile(f"{path.name} does not end in {', '.join(_BY_ENDING)}: say --format")
    return found


def compute_digest(path: Path) -> str:
    try:
        with path.open("rb", buffering=0) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as exc:
        raise BadFile(f"{path} cannot be read: {exc.strerror}") from exc


def check_columns(path: Path, columns: Sequence[str], hint: str = "") -> list[str]:
    if not columns:
        raise BadFile(f"{path.name} has no columns{hint}")
    if len(set(columns)) < len(columns) or "" in columns:
        raise BadFile(f"{path.name}: two columns have one name, or one has none: {', '.join(columns)}{hint}")
    return list(columns)


class HashedFile(io.RawIOBase):
    """The bytes of a file, hashed while they are read."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._digest = hashlib.sha256()
        self._file = file
        self._size = size
        self._read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = int(self._file.readinto(buffer))  # type: ignore[attr-defined]  # a file has it
        self._digest.update(memoryview(buffer)[:count])
        self._read += count
        return count

    @property
    def share(self) -> float:
        return min(self._read / self._size, 1.0) if self._size else 1.0

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()


@contextmanager
def open_hashed(path: Path, digest: str) -> Iterator[tuple[HashedFile, IO[bytes]]]:
    """Open a file. If it is read to its end, raise BadFile unless it still has this digest."""
    try:
        file = path.open("rb", buffering=0)
    except OSError as exc:
        raise BadFile(f"{path} cannot be read: {exc.strerror}") from exc
    with file:
        raw = HashedFile(file, path.stat().st_size)
        bytes_ = io.BufferedReader(raw, 2**20)
        yield raw, bytes_
        if not bytes_.read(1) and raw.digest != digest:
            raise BadFile(f"{path} was changed while it was read; start it again")
