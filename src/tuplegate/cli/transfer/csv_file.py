"""Reads CSV files in blocks of whole rows. Each block is a batch, split into columns as COPY would split it."""

import codecs
import io
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any

from tuplegate.cli.transfer.csv_form import CsvForm
from tuplegate.cli.transfer.csv_syntax import FIRST_LINE, CsvFault, CsvSyntax, count_lines, find_column, unquote
from tuplegate.cli.transfer.files import (
    BadFile,
    Batch,
    Guessed,
    HashedFile,
    Texts,
    check_columns,
    compute_digest,
    open_hashed,
)
from tuplegate.cli.transfer.guesses import Guess

_BLOCK_BYTES = 2**20
"""Small enough that a block fits into a request even if every byte becomes six in JSON."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ROW_MAX = 64 * 2**20
_OTHER_DELIMITERS = {";": "';'", "\t": "'\\t'", "|": "'|'"}
"""Other common delimiters, as typed after --delimiter."""
_UTF_16 = "it looks like UTF-16: give --encoding utf-16"


@dataclass(frozen=True)
class _CsvBlock:
    """Whole rows as text. `line` is the number of the first line, from 1."""

    text: str
    line: int
    share: float


class CsvFile:
    about_empty = '"" with quotes is an empty text; NULL is an empty field without quotes'

    def __init__(self, path: Path, form: CsvForm) -> None:
        self._path = path
        self._form = form
        self._null = form.null or ""
        self._encoding = codecs.lookup(form.encoding or "utf-8").name.removesuffix("-sig")
        delimiter = form.delimiter or ","
        self.form = repr((self._null, delimiter, form.header is not False, self._encoding))
        self.digest = compute_digest(path)
        self.named = form.header is not False
        line, self._line_end = self._read_first_line()
        self._syntax = CsvSyntax(delimiter, self._null, self._line_end)
        first = self._split_line(line, self._syntax)
        if form.delimiter is None:
            self._check_delimiter(line, len(first))
        if self.named:
            self.columns = check_columns(path, first, "; the first line names them: give --no-header if it is a row")
        else:
            self.columns = [f"column{number}" for number in range(1, len(first) + 1)]
            check_columns(path, self.columns)

    def doubt(self, known: Collection[str]) -> str:
        if self._form.header is not None:
            return ""
        odd = [name for name in self.columns if name not in known and _is_value(name)]
        if odd:
            shown = ", ".join(odd[:3])
            return (
                f"line 1 looks like a row ({shown}), not like names: give --no-header, or --header if these are names"
            )
        is_strange = bool(known) and not set(self.columns) & set(known)
        return "if line 1 is a row, and not names, give --no-header" if is_strange else ""

    def guess(self) -> Guessed:
        guesses = [Guess() for _ in self.columns]
        count = 0
        for batch in self.batches(frozenset()):
            count += batch.rows
            for guess, texts in zip(guesses, batch.columns, strict=True):
                guess.see([text for text in texts if text is not None and text != batch.null])
        return Guessed([guess.type for guess in guesses], count)

    def batches(self, documents: frozenset[str]) -> Iterator[Batch]:
        for number, block in enumerate(self._read_blocks()):
            skip = int(number == 0 and self.named)
            columns = [texts[skip:] for texts in self._columns_of(block)]
            if columns[0]:
                null = None if '"' in block.text else self._null
                yield Batch(number, columns, block.share, partial(self._name_row, block, skip), null)

    # -- the first line -------------------------------------------------------------------------------------------

    def _read_first_line(self) -> tuple[str, str]:
        """Return the first line without its end, and the end of every line."""
        with self._open() as (_, source):
            part, more = b"", source.read(_BLOCK_BYTES)
            while more and not ((found := FIRST_LINE.match(part)) and found.end() < len(part)):
                part += more
                more = source.read(max(len(part), 1)) if len(part) < _ROW_MAX else b""
        found = FIRST_LINE.match(part)
        end = found[1].decode() if found else "\n"
        line = self._decode(part[: found.end()] if found else part, 1).removesuffix(end)
        if "\0" in line:
            raise BadFile(f"line 1 has characters that no text has; {_UTF_16}, or it is no CSV file")
        return line, end

    def _check_delimiter(self, line: str, count: int) -> None:
        """Refuse a file that seems to have another delimiter."""
        for delimiter, typed in _OTHER_DELIMITERS.items():
            by_other = len(self._split_line(line, CsvSyntax(delimiter, self._null, self._line_end)))
            if by_other > max(count, 1):
                raise BadFile(
                    f"{self._path.name} looks separated by {typed}: its first line has {by_other} fields by it, and "
                    f"{count} by a comma; give --delimiter {typed}, or --delimiter , if it is not"
                )

    def _split_line(self, line: str, syntax: CsvSyntax) -> list[str]:
        if not line and not self._path.stat().st_size:
            return []
        try:
            return [unquote(field) for _, field in next(syntax.rows(line))]
        except CsvFault as fault:
            raise self._explain(fault, line, 1) from fault

    # -- blocks ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _open(self) -> Iterator[tuple[HashedFile, IO[bytes]]]:
        """Yield the file, and its text as UTF-8 without a byte order mark."""
        with open_hashed(self._path, self.digest) as (raw, file):
            source: IO[bytes] = file
            if self._encoding != "utf-8":
                source = io.BufferedReader(_Recoder(file, self._encoding, self._explain_undecodable), _BLOCK_BYTES)
            if source.peek(3)[:3] == _BYTE_ORDER_MARK:  # type: ignore[attr-defined]  # it is buffered
                source.read(3)
            yield raw, source

    def _read_blocks(self) -> Iterator[_CsvBlock]:
        line, size = 1, _BLOCK_BYTES
        part, is_done = b"", False
        with self._open() as (raw, source):
            while not is_done or part:
                while len(part) < size and not is_done:
                    more = source.read(size - len(part))
                    is_done = not more
                    part += more
                end = len(part) if is_done else self._syntax.find_end(part)
                if end:
                    text = self._decode(part[:end], line)
                    yield _CsvBlock(text, line, raw.share)
                    line += count_lines(text)
                    part, size = part[end:], _BLOCK_BYTES
                elif size > _ROW_MAX:
                    self._syntax.split_columns(self._decode(part, line), 1)  # names a quote that is not closed
                    raise BadFile(f"line {line}: the row is longer than {_ROW_MAX} bytes")
                else:
                    size *= 2

    def _decode(self, part: bytes, line: int) -> str:
        try:
            return part.decode()
        except UnicodeDecodeError as exc:
            raise self._explain_undecodable(line + part[: exc.start].count(b"\n"), exc) from exc

    def _explain_undecodable(self, line: int, error: UnicodeError) -> BadFile:
        if self._encoding != "utf-8":
            return BadFile(f"line {line}: this is not {self._encoding}: {error}; --encoding names another")
        with self._path.open("rb") as file:
            start = file.read(64)
            if b"\0" in start or start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                return BadFile(f"line {line}: this is not UTF-8; {_UTF_16}")
        hint = "--encoding names another, such as cp1252 or latin-1"
        return BadFile(f"line {line}: this is not UTF-8: {error}; {hint}")

    # -- rows of a block ------------------------------------------------------------------------------------------

    def _columns_of(self, block: _CsvBlock) -> list[Texts]:
        try:
            columns = self._syntax.split_columns(block.text, len(self.columns))
        except CsvFault as fault:
            raise self._explain(fault, block.text, block.line) from fault
        if columns is None:
            raise self._explain_width(block)
        return columns

    def _explain(self, fault: CsvFault, text: str, line: int) -> BadFile:
        line += count_lines(text[: fault.offset])
        return BadFile(f"line {line}, column {find_column(text, fault.offset)}: {fault}")

    def _explain_width(self, block: _CsvBlock) -> BadFile:
        """Return the mistake in the first row that has too many or too few fields."""
        width = len(self.columns)
        row = next(row for row in self._syntax.rows(block.text) if len(row) != width)
        line = block.line + count_lines(block.text[: row[0][0]])
        if [field for _, field in row] == [""]:
            return BadFile(f"line {line} is blank, which is a row of 1 field, not {width}")
        has = f"line {line} has {len(row)} field{'' if len(row) == 1 else 's'}, not {width}"
        if len(row) < width:
            return BadFile(f"{has}: the value of {self.columns[len(row)]} is missing")
        return BadFile(f"{has}: those from column {find_column(block.text, row[width][0])} on are too many")

    def _name_row(self, block: _CsvBlock, skip: int, index: int) -> str:
        row = next(islice(self._syntax.rows(block.text), index + skip, None))
        return f"line {block.line + count_lines(block.text[: row[0][0]])}"


class _Recoder(io.RawIOBase):
    """Reads bytes of another encoding as UTF-8."""

    def __init__(self, file: IO[bytes], encoding: str, failure: Any) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._failure = failure
        self._line = 1
        self._waiting = b""
        self._is_done = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._waiting and not self._is_done:
            part = self._file.read(_BLOCK_BYTES)
            self._is_done = not part
            text = self._decode(part)
            self._line += text.count("\n")
            self._waiting = text.encode()
        count = min(len(buffer), len(self._waiting))
        buffer[:count] = self._waiting[:count]
        self._waiting = self._waiting[count:]
        return count

    def _decode(self, part: bytes) -> str:
        before = self._decoder.getstate()
        try:
            return self._decoder.decode(part, final=not part)
        except UnicodeDecodeError as exc:
            self._decoder.setstate(before)
            good = self._decoder.decode(part[: max(exc.start - len(before[0]), 0)])
            raise self._failure(self._line + good.count("\n"), exc) from exc


def _is_value(name: str) -> bool:
    """Return whether it is a number, a date or a uuid, which names are not."""
    guess = Guess()
    guess.see([name])
    return guess.type not in ("text", "bool")
