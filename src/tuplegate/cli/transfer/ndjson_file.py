"""Reads files with one JSON object per line, in blocks of lines; each block is a batch. A missing field is NULL.

Values stay the JSON that they are in the file, so no digit and no repeated name of a document is lost.
"""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from tuplegate.cli.transfer.files import (
    BadFile,
    Batch,
    Guessed,
    NamedColumns,
    Texts,
    check_columns,
    compute_digest,
    open_hashed,
)
from tuplegate.cli.transfer.guesses import Guess
from tuplegate.cli.transfer.value_forms import read_document

_BLOCK_BYTES = 2**19
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# The values of a row are not decoded, but kept as they are.
_decode_row = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_texts = msgspec.json.Decoder(list[str | None]).decode
_decode_text = msgspec.json.Decoder(str).decode
_NAME = re.compile(rb'"\s*+:')
_NULL = b"null"

_Row = dict[str, msgspec.Raw]


class NdjsonFile(NamedColumns):
    def __init__(self, path: Path) -> None:
        self._path = path
        self.digest = compute_digest(path)
        found: dict[str, None] = {}
        for number, lines, rows, _ in self._read_blocks():
            _check_repeated(number, lines, rows)
            for names in set(map(tuple, rows)):
                found |= dict.fromkeys(names)
        self.columns = check_columns(path, list(found))

    def guess(self) -> Guessed:
        guesses = [Guess() for _ in self.columns]
        count = 0
        for _, _, rows, _ in self._read_blocks():
            count += len(rows)
            for guess, values in zip(guesses, self._columns_of(rows), strict=True):
                there = [value for value in values if value != _NULL]
                guess.json = guess.json or any(value[:1] in (b"{", b"[") for value in there)
                guess.see([] if guess.json else _to_texts(there))  # type: ignore[arg-type]  # without null there is no None
        return Guessed([guess.type for guess in guesses], count)

    def batches(self, documents: frozenset[str]) -> Iterator[Batch]:
        for number, (line, lines, rows, share) in enumerate(self._read_blocks()):
            if rows:
                pairs = zip(self.columns, self._columns_of(rows), strict=True)
                columns = [_to_documents(values) if name in documents else _to_texts(values) for name, values in pairs]
                yield Batch(number, columns, share, partial(_name_row, line, lines))

    def _columns_of(self, rows: list[_Row]) -> list[list[bytes]]:
        return [[bytes(row.get(name, _NULL)) for row in rows] for name in self.columns]

    def _read_blocks(self) -> Iterator[tuple[int, list[bytes], list[_Row], float]]:
        """Yield the number of the first line, the lines, their rows, and the part of the file that was read."""
        number = 1
        with open_hashed(self._path, self.digest) as (raw, file):
            while lines := file.readlines(_BLOCK_BYTES):
                if number == 1:
                    lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
                yield number, lines, _decode(number, lines), raw.share
                number += len(lines)


def _decode(number: int, lines: list[bytes]) -> list[_Row]:
    rows = []
    try:
        for line in lines:
            if not line.isspace():
                rows.append(_decode_row(line))
            number += 1
    except msgspec.ValidationError as exc:
        raise BadFile(f"line {number} is no JSON object") from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise BadFile(f"line {number}: {exc}") from exc
    return rows


def _check_repeated(number: int, lines: list[bytes], rows: list[_Row]) -> None:
    """Refuse a row in which a name stands twice: only one of the values could be kept."""
    if sum(len(_NAME.findall(line)) for line in lines) == sum(map(len, rows)):
        return  # no more names than different ones, and no document with names
    left = iter(rows)
    for at, line in enumerate(lines, number):
        if line.isspace():
            continue
        row = next(left)
        count = json.loads(line, object_pairs_hook=len, parse_int=len, parse_float=len)
        if count != len(row):
            raise BadFile(f"line {at}: a name stands twice, and a column has one value")


def _name_row(first: int, lines: list[bytes], index: int) -> str:
    numbers = [number for number, line in enumerate(lines, first) if not line.isspace()]
    return f"line {numbers[index]}"


def _to_texts(values: list[bytes]) -> Texts:
    """Return texts as they are, and all other values as their JSON."""
    joined = b",".join(values)
    if b"{" not in joined and b"[" not in joined:
        if b'"' not in joined:
            found = joined.decode().split(",") if values else []
            return [None if text == "null" else text for text in found] if "null" in found else found
        try:
            return _decode_texts(b"[" + joined + b"]")
        except msgspec.ValidationError:
            pass  # not all are strings
    return [None if value == _NULL else _to_text(value) for value in values]


def _to_text(value: bytes) -> str:
    return _decode_text(value) if value[:1] == b'"' else value.decode()


def _to_documents(values: list[bytes]) -> Texts:
    return [None if value == _NULL else read_document(value) for value in values]
