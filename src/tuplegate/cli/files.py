"""What all kinds of files have in common: their name, their digest, and that their rows come in batches."""

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
"""The values of a column as the engine reads them; None is NULL."""


@contextmanager
def whole_or_not(file: Path) -> Iterator[Path]:
    """A file beside it to write; it gets the name, and replaces what had it, once that is done without a failure."""
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
    """Rows that are sent together, by column. A file is always cut into the same batches, numbered in its order."""

    number: int
    columns: Sequence[Texts]
    share: float
    """How much of the file was read with it, from 0 to 1."""
    name_of: Callable[[int], str]
    """Where a row of it is in the file, for a person."""
    null: str | None = None
    """A text that stands for NULL; without one, None does."""

    @property
    def rows(self) -> int:
        return len(self.columns[0])


@dataclass(frozen=True)
class Guessed:
    """What reading a file to its end tells."""

    types: list[str]
    rows: int


class Source(Protocol):
    """A file of rows."""

    columns: list[str]
    named: bool
    """Whether the file names its columns; if not, they get the names of the table's."""
    form: str
    """What was said of how to read it, which makes other rows of the same bytes."""
    digest: str
    """Of all bytes of the file, when it was opened."""
    about_empty: str
    """What to say where an empty text does not fit a column."""

    def doubt(self, known: Collection[str]) -> str:
        """Say what may be wrong with names that are not `known`, and what to do; empty where they look right."""
        ...

    def guess(self) -> Guessed:
        """Reads the file to its end, in constant memory."""
        ...

    def batches(self, documents: frozenset[str]) -> Iterator[Batch]:
        """All rows. `documents` are columns of JSON. At the end it must still be the same file."""
        ...


class Named:
    """A file of a format in which columns always have names, and NULL is no text."""

    named = True
    form = ""
    about_empty = ""

    def doubt(self, known: Collection[str]) -> str:
        return ""


def format_of(path: Path, format: str | None) -> str:
    if format is not None:
        return format
    found = _BY_ENDING.get(path.suffix.lower())
    if found is None:
        raise BadFile(f"{path.name} does not end in {', '.join(_BY_ENDING)}: say --format")
    return found


def digest_of(path: Path) -> str:
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


class Hashed(io.RawIOBase):
    """Bytes of a file, hashed as they are read."""

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
def hashed(path: Path, digest: str) -> Iterator[tuple[Hashed, IO[bytes]]]:
    """The bytes of a file. Whoever reads them to the end learns whether it was changed since its digest was taken."""
    try:
        file = path.open("rb", buffering=0)
    except OSError as exc:
        raise BadFile(f"{path} cannot be read: {exc.strerror}") from exc
    with file:
        raw = Hashed(file, path.stat().st_size)
        bytes_ = io.BufferedReader(raw, 2**20)
        yield raw, bytes_
        if not bytes_.read(1) and raw.digest != digest:
            raise BadFile(f"{path} was changed while it was read; start it again")
