"""Reads CSV files in blocks of whole lines. Each block is a batch, parsed by column.

A block without quotes, the common case, is split at delimiters as one text. Any other block goes through the CSV
reader, and grows if a quoted field continues beyond its end. The reader cannot tell `""` from an empty field: blocks
with such fields are marked first.
"""

import codecs
import csv
import io
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import IO, Any

from tuplegate.cli.csv_form import CsvForm
from tuplegate.cli.files import BadFile, Batch, Guessed, Texts, check_columns, compute_digest, open_hashed
from tuplegate.cli.guesses import Guess

_BLOCK_BYTES = 2**20
"""Small enough that a block fits into a request even if every byte becomes six in JSON."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_FIELD_MAX = 64 * 2**20
_OTHER_DELIMITERS = {";": "';'", "\t": "'\\t'", "|": "'|'"}
"""Other common delimiters, as typed after --delimiter."""
_UTF_16 = "it looks like UTF-16: give --encoding utf-16"


@dataclass(frozen=True)
class _CsvBlock:
    """Whole rows as text. `line` is the number of the first line, from 1."""

    text: str
    line: int
    share: float
    rows: list[list[str]] | None
    """The rows, if the block had to be parsed to find its end."""
    mark: str = ""
    """Marks fields of `rows` that look like NULL but are quoted; empty if there are none."""


class CsvFile:
    about_empty = '"" with quotes is an empty text; NULL is an empty field without quotes'

    def __init__(self, path: Path, form: CsvForm) -> None:
        csv.field_size_limit(_FIELD_MAX)
        self._path = path
        self._form = form
        self._null = form.null or ""
        self._encoding = codecs.lookup(form.encoding or "utf-8").name.removesuffix("-sig")
        self._delimiter = form.delimiter or ","
        self._quoted = _QuoteMarker(self._delimiter, self._null)
        self.form = repr((self._null, self._delimiter, form.header is not False, self._encoding))
        self.digest = compute_digest(path)
        self.named = form.header is not False
        first = self._read_first_row()
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
            columns = self._columns_of(block, skip)
            if columns and columns[0]:
                null = None if block.mark else self._null
                yield Batch(number, columns, block.share, partial(self._name_row, block, skip), null)

    # -- the first line -------------------------------------------------------------------------------------------

    def _read_first_row(self) -> list[str]:
        """Return the fields of the first line. Refuse a file that seems to have another delimiter."""
        by_given: list[str] = []
        error: BadFile | None = None
        try:
            by_given = self._split_first_row(self._delimiter)
        except BadFile as exc:
            error = exc
        if self._form.delimiter is None:
            self._check_delimiter(len(by_given))
        if error is not None:
            raise error
        return by_given

    def _check_delimiter(self, count: int) -> None:
        for delimiter, typed in _OTHER_DELIMITERS.items():
            try:
                by_other = len(self._split_first_row(delimiter))
            except BadFile:
                continue
            if by_other > max(count, 1):
                raise BadFile(
                    f"{self._path.name} looks separated by {typed}: its first line has {by_other} fields by it, and "
                    f"{count} by a comma; give --delimiter {typed}, or --delimiter , if it is not"
                )

    def _split_first_row(self, delimiter: str) -> list[str]:
        with self._path.open(encoding=self._encoding, newline="") as text:
            try:
                if text.read(1) != "\ufeff":
                    text.seek(0)
                row = next(csv.reader(text, strict=True, delimiter=delimiter), None)
            except csv.Error as exc:
                raise BadFile(f"line 1: {exc}; is it a CSV file?") from exc
            except UnicodeError as exc:
                next(self._read_blocks(), None)  # fails as well, and names the line
                raise self._explain_undecodable(1, exc) from exc
        if row is not None and any("\0" in field for field in row):
            raise BadFile(f"line 1 has characters that no text has; {_UTF_16}, or it is no CSV file")
        if row is None or (self.named and not row):
            return []
        return row or [""]  # a blank line without names is a NULL of one column

    def _explain_undecodable(self, line: int, error: UnicodeError) -> BadFile:
        if self._encoding != "utf-8":
            return BadFile(f"line {line}: this is not {self._encoding}: {error}; --encoding names another")
        with self._path.open("rb") as file:
            start = file.read(64)
            if b"\0" in start or start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                return BadFile(f"line {line}: this is not UTF-8; {_UTF_16}")
        hint = "--encoding names another, such as cp1252 or latin-1"
        return BadFile(f"line {line}: this is not UTF-8: {error}; {hint}")

    # -- blocks ---------------------------------------------------------------------------------------------------

    def _read_blocks(self) -> Iterator[_CsvBlock]:
        line = 1
        with open_hashed(self._path, self.digest) as (raw, file):
            source: IO[bytes] = file
            if self._encoding != "utf-8":
                recoder = _Recoder(file, self._encoding, self._explain_undecodable)
                source = io.BufferedReader(recoder, _BLOCK_BYTES)
            while part := source.read(_BLOCK_BYTES):
                part += source.readline(_FIELD_MAX)
                if line == 1:
                    part = part.removeprefix(_BYTE_ORDER_MARK)
                block = self._complete_block(part, line, source)
                yield _CsvBlock(block.text, line, raw.share, block.rows, block.mark)
                line += _line_count(block.text)

    def _complete_block(self, part: bytes, line: int, rest: IO[bytes]) -> _CsvBlock:
        """Return the block, extended if a quoted field is still open at its end."""
        while True:
            text = self._decode(part, line)
            if '"' not in text:
                return _CsvBlock(text, line, 0, None)
            mark, marked = self._quoted.mark(text)
            try:
                return _CsvBlock(text, line, 0, list(self._reader(marked)), mark)
            except csv.Error:
                # At the end of the text, the field may continue in the next block.
                started, fault, is_open = self._find_fault(text)
                more = rest.read(len(part)) + rest.readline() if is_open and len(part) < _FIELD_MAX else b""
                if not more:
                    raise BadFile(f"line {line + started - 1}: {fault}") from fault
                part += more

    def _find_fault(self, text: str) -> tuple[int, csv.Error, bool]:
        """Return the line of the first row that cannot be read, why, and whether the text ends within it.

        The text has no marks: where it ends within a field, a mark could stand inside of that.
        """
        lines = self._reader(text)
        started = 1
        try:
            for _ in lines:
                started = lines.line_num + 1
        except csv.Error as fault:
            return started, fault, lines.line_num >= _line_count(text)
        raise AssertionError("a text without marks can be read where one with marks cannot")

    def _decode(self, part: bytes, line: int) -> str:
        try:
            return part.decode()
        except UnicodeDecodeError as exc:
            raise self._explain_undecodable(line + part[: exc.start].count(b"\n"), exc) from exc

    def _reader(self, text: str) -> Any:
        return csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=self._delimiter)

    # -- rows of a block ------------------------------------------------------------------------------------------

    def _columns_of(self, block: _CsvBlock, skip: int) -> list[Texts]:
        width = len(self.columns)
        if block.rows is None:
            text = block.text.replace("\r\n", "\n").removesuffix("\n")
            if "\r" not in text:
                lines = text.split("\n")
                if set(map(str.count, lines, repeat(self._delimiter))) == {width - 1}:
                    fields = lines if width == 1 else text.replace("\n", self._delimiter).split(self._delimiter)
                    return [fields[skip * width + column :: width] for column in range(width)]
        rows = block.rows if block.rows is not None else list(self._reader(block.text))
        kept = self._drop_blanks(rows)[skip:]
        if set(map(len, kept)) - {width}:
            index = next(index for index, row in enumerate(kept) if len(row) != width)
            line = self._line_of(block, index + skip)
            count = len(kept[index])
            raise BadFile(f"line {line} has {count} field{'' if count == 1 else 's'}, not {width}")
        columns: list[Texts] = list(zip(*kept, strict=True))
        return [self._quoted.unmark(texts, block.mark) for texts in columns] if block.mark else columns

    def _drop_blanks(self, rows: list[list[str]]) -> list[list[str]]:
        """Drop blank lines, which are no rows; with a single column they are empty fields and stay."""
        if len(self.columns) == 1:
            return [row or [""] for row in rows]
        return [row for row in rows if row]

    def _name_row(self, block: _CsvBlock, skip: int, index: int) -> str:
        return f"line {self._line_of(block, index + skip)}"

    def _line_of(self, block: _CsvBlock, index: int) -> int:
        """Return the line on which a row of the block begins."""
        lines = self._reader(block.text)
        while True:
            line = block.line + int(lines.line_num)
            if next(lines) or len(self.columns) == 1:
                if not index:
                    return line
                index -= 1


class _QuoteMarker:
    """Distinguishes quoted fields, which are never NULL, from NULL. Pure."""

    def __init__(self, delimiter: str, null: str) -> None:
        edge = rf"[^{re.escape(delimiter)}\r\n]"
        self._null = null
        self._field = f'"{null}"'
        field = rf"(?<!{edge}){re.escape(self._field)}(?!{edge})"
        self._is_there = re.compile(field).search
        # All other fields up to such a field. As for the reader, quotes inside an unquoted field are ordinary
        # characters. A quote that is never closed is skipped, so that no text is scanned repeatedly.
        other = rf'[^"]++|(?!{field})(?:(?<!{edge})"[^"]*+(?:""[^"]*+)*+"|")'
        self._each = re.compile(rf"((?:{other})*+)({field})?")

    def mark(self, text: str) -> tuple[str, str]:
        """Return a mark, and the text with the mark in such fields; an empty mark if there are none.

        If the text ends within a field, a mark may be inside the field: the text is then not a complete block.
        """
        if self._field not in text or not self._is_there(text):
            return "", text
        mark = next(mark for mark in map(chr, chain(range(1, 9), range(0xE000, 0xF8FF))) if mark not in text)
        marked = f'"{mark}{self._null}"'
        return mark, self._each.sub(lambda found: found[1] + marked if found[2] else found[1], text)

    def unmark(self, texts: Texts, mark: str) -> Texts:
        """Return a column of a marked block with NULL as None and without marks."""
        null, quoted = self._null, mark + self._null
        if null not in texts and quoted not in texts:
            return texts
        return [None if text == null else null if text == quoted else text for text in texts]


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


def _line_count(text: str) -> int:
    if "\r" not in text:
        return text.count("\n") + (not text.endswith("\n"))
    return sum(1 for _ in io.StringIO(text, newline=""))
