"""CSV with a line of names. It is read in blocks of whole lines; each block is a batch, parsed by column.

A block without quotes, which is most of them, is split at commas as one text. Any other goes through the CSV reader,
and grows where a quoted field goes on beyond its end.
"""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import IO

from tuplegate.cli.files import BadFile, Batch, Guessed, Texts, check_columns, digest_of, hashed
from tuplegate.cli.guesses import Guess

_BLOCK_BYTES = 2**20
"""As JSON of a request, where a byte can become six, a block is still smaller than a request may be."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_FIELD_MAX = 64 * 2**20


@dataclass(frozen=True)
class _Block:
    """Whole rows as text. `line` is the number of its first line, from 1."""

    text: str
    line: int
    share: float
    rows: list[list[str]] | None
    """Where the block had to be parsed to find its end."""


class CsvFile:
    def __init__(self, path: Path, null: str) -> None:
        csv.field_size_limit(_FIELD_MAX)
        self._path = path
        self.null: str | None = null
        self.digest = digest_of(path)
        with path.open(encoding="utf-8-sig", newline="") as text:
            first = _first_row(text)
        self.columns = check_columns(path, first, ": its first line names them")

    def guess(self) -> Guessed:
        guesses = [Guess() for _ in self.columns]
        count = 0
        for batch in self.batches(frozenset()):
            count += batch.rows
            for guess, texts in zip(guesses, batch.columns, strict=True):
                guess.see([text for text in texts if text is not None and text != self.null])
        return Guessed([guess.type for guess in guesses], count)

    def batches(self, documents: frozenset[str]) -> Iterator[Batch]:
        for number, block in enumerate(self._blocks()):
            columns = self._columns_of(block, skip=int(number == 0))
            if columns and columns[0]:
                yield Batch(number, columns, block.share, _Places(self, block, skip=int(number == 0)))

    # -- blocks ---------------------------------------------------------------------------------------------------

    def _blocks(self) -> Iterator[_Block]:
        line = 1
        with hashed(self._path, self.digest) as (raw, file):
            while part := file.read(_BLOCK_BYTES):
                if line == 1:
                    part = part.removeprefix(_BYTE_ORDER_MARK)
                block = self._whole(part + file.readline(_FIELD_MAX), line, file)
                yield _Block(block.text, line, raw.share, block.rows)
                line += _line_count(block.text)

    def _whole(self, part: bytes, line: int, rest: IO[bytes]) -> _Block:
        """The block, longer where a quoted field is not closed yet."""
        while True:
            text = _decoded(part, line)
            if '"' not in text:
                return _Block(text, line, 0, None)
            lines = csv.reader(io.StringIO(text, newline=""), strict=True)
            rows = []
            started = 1
            try:
                for row in lines:
                    rows.append(row)
                    started = lines.line_num + 1
                return _Block(text, line, 0, rows)
            except csv.Error as exc:
                # Read up to the end, it can be a field that goes on in the next block.
                open_ended = lines.line_num >= _line_count(text)
                more = rest.read(len(part)) + rest.readline() if open_ended and len(part) < _FIELD_MAX else b""
                if not more:
                    raise BadFile(f"line {line + started - 1}: {exc}") from exc
                part += more

    # -- rows of a block ------------------------------------------------------------------------------------------

    def _columns_of(self, block: _Block, skip: int) -> list[Texts]:
        width = len(self.columns)
        if block.rows is None and width > 1:
            text = block.text.replace("\r\n", "\n").removesuffix("\n")
            if "\r" not in text and set(map(str.count, text.split("\n"), repeat(","))) == {width - 1}:
                fields = text.replace("\n", ",").split(",")
                return [fields[skip * width + column :: width] for column in range(width)]
        rows = block.rows or list(csv.reader(io.StringIO(block.text, newline=""), strict=True))
        kept = [row for row in rows if row][skip:]  # an empty line is no row
        if set(map(len, kept)) - {width}:
            index = next(index for index, row in enumerate(kept) if len(row) != width)
            line = self._line_of(block, index + skip)
            raise BadFile(f"line {line} has {len(kept[index])} fields, not {width}")
        return list(zip(*kept, strict=True))

    def _line_of(self, block: _Block, index: int) -> int:
        """The line that a row of a block begins on."""
        lines = csv.reader(io.StringIO(block.text, newline=""), strict=True)
        while True:
            line = block.line + lines.line_num
            if next(lines):
                if not index:
                    return line
                index -= 1


class _Places:
    """Where the rows of a block are. It is asked for one only when that one is broken."""

    def __init__(self, file: CsvFile, block: _Block, skip: int) -> None:
        self._file = file
        self._block = block
        self._skip = skip

    def __call__(self, index: int) -> str:
        return f"line {self._file._line_of(self._block, index + self._skip)}"


def _first_row(text: IO[str]) -> list[str]:
    reader = csv.reader(text, strict=True)
    try:
        return next(reader, [])
    except (csv.Error, UnicodeDecodeError) as exc:
        raise BadFile(f"line 1: {exc}; is it a CSV file in UTF-8?") from exc


def _decoded(part: bytes, line: int) -> str:
    try:
        return part.decode()
    except UnicodeDecodeError as exc:
        line += part[: exc.start].count(b"\n")
        raise BadFile(f"line {line}: this is not UTF-8: {exc}") from exc


def _line_count(text: str) -> int:
    if "\r" not in text:
        return text.count("\n") + (not text.endswith("\n"))
    return sum(1 for _ in io.StringIO(text, newline=""))
