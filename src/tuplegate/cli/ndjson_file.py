"""Reads files with one JSON object per line, in blocks of lines; each block is a batch. A missing field is NULL."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tuplegate.cli.files import BadFile, Batch, Guessed, NamedColumns, Texts, check_columns, compute_digest, open_hashed
from tuplegate.cli.guesses import Guess
from tuplegate.client.values import Number, write

_BLOCK_BYTES = 2**19
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Numbers keep their digits.
_decoder = msgspec.json.Decoder(dict[str, Any], float_hook=Number)


class NdjsonFile(NamedColumns):
    def __init__(self, path: Path) -> None:
        self._path = path
        self.digest = compute_digest(path)
        found: dict[str, None] = {}
        for _, _, rows, _ in self._read_blocks():
            for names in set(map(tuple, rows)):
                found |= dict.fromkeys(names)
        self.columns = check_columns(path, list(found))

    def guess(self) -> Guessed:
        guesses = [Guess() for _ in self.columns]
        count = 0
        for _, _, rows, _ in self._read_blocks():
            count += len(rows)
            for guess, values in zip(guesses, self._columns_of(rows), strict=True):
                there = [value for value in values if value is not None]
                guess.json = guess.json or any(isinstance(value, dict | list) for value in there)
                guess.see([] if guess.json else _to_texts(there))  # type: ignore[arg-type]  # without None there is none
        return Guessed([guess.type for guess in guesses], count)

    def batches(self, documents: frozenset[str]) -> Iterator[Batch]:
        for number, (line, lines, rows, share) in enumerate(self._read_blocks()):
            if rows:
                pairs = zip(self.columns, self._columns_of(rows), strict=True)
                columns = [_to_documents(values) if name in documents else _to_texts(values) for name, values in pairs]
                yield Batch(number, columns, share, partial(_name_row, line, lines))

    def _columns_of(self, rows: list[dict[str, Any]]) -> list[Sequence[Any]]:
        if set(map(tuple, rows)) == {tuple(self.columns)}:
            return list(zip(*map(dict.values, rows), strict=True))
        return [[row.get(name) for row in rows] for name in self.columns]

    def _read_blocks(self) -> Iterator[tuple[int, list[bytes], list[dict[str, Any]], float]]:
        """Yield the number of the first line, the lines, their rows, and the part of the file that was read."""
        number = 1
        with open_hashed(self._path, self.digest) as (raw, file):
            while lines := file.readlines(_BLOCK_BYTES):
                if number == 1:
                    lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
                yield number, lines, _decode(number, lines), raw.share
                number += len(lines)


def _decode(number: int, lines: list[bytes]) -> list[dict[str, Any]]:
    rows = []
    line = b""
    decode = _decoder.decode
    try:
        for line in lines:
            if not line.isspace():
                rows.append(decode(line))
            number += 1
    except msgspec.ValidationError as exc:
        raise BadFile(f"line {number} is no JSON object") from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise BadFile(f"line {number}: {exc}") from exc
    return rows


def _name_row(first: int, lines: list[bytes], index: int) -> str:
    numbers = [number for number, line in enumerate(lines, first) if not line.isspace()]
    return f"line {numbers[index]}"


def _to_texts(values: Sequence[Any]) -> Texts:
    kinds = set(map(type, values))
    if kinds <= {str, Number, type(None)}:
        return values
    if kinds == {int}:
        return list(map(str, values))
    return [value if value is None or isinstance(value, str) else write(value) for value in values]


def _to_documents(values: Sequence[Any]) -> Texts:
    return [None if value is None else write(value) for value in values]
