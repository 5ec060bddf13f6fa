"""Splits the text of a CSV file into fields exactly as PostgreSQL's COPY does. Pure.

A quote opens or closes a quoted part anywhere in a field, and two quotes within a quoted part stand for one. A field
with a quote is never NULL. All lines of a file end in the same way, as the first one does. A blank line is a row with
one empty field.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import repeat

Texts = Sequence[str | None]

FIRST_LINE = re.compile(rb'[^"\r\n]*+(?:"[^"]*+"[^"\r\n]*+)*+(\r\n?|\n)')
"""The first line of a file. A quoted part may have line ends in it."""
_QUOTED_PART = re.compile(r'"((?:[^"]|"")*+)"')
_ANY_LINE_END = re.compile(r"\r\n|\r|\n")
_QUOTED_OR_LINE_END = re.compile(r'"[^"]*+"|\r\n|\r|\n')
_NAMES = {"\n": "a line feed", "\r\n": "a carriage return and a line feed", "\r": "a carriage return"}


class CsvFault(Exception):
    """The text is no CSV to COPY. `offset` is where; the message says why."""

    def __init__(self, offset: int, message: str) -> None:
        super().__init__(message)
        self.offset = offset


class CsvSyntax:
    """The delimiter, the text for NULL and the line end of a file."""

    def __init__(self, delimiter: str, null: str, line_end: str) -> None:
        self._delimiter = delimiter
        self._null = null
        self._line_end = line_end
        plain = rf'[^"\r\n{re.escape(delimiter)}]*+'
        field = rf'({plain}(?:"[^"]*+"{plain})*+)({re.escape(delimiter)}|{line_end})'
        self._split = re.compile(field).findall
        self._skip = re.compile(f"(?:{field})*+").match

    def find_end(self, part: bytes) -> int:
        """Return the end of the last whole row; 0 if there is none."""
        line_end = self._line_end.encode()
        cut = part.rfind(line_end)
        quotes = part.count(b'"', 0, max(cut, 0))
        while cut >= 0 and quotes % 2:
            # The line end is inside of quotes, which the last quote before it has opened.
            earlier = part.rfind(line_end, 0, part.rfind(b'"', 0, cut))
            quotes -= part.count(b'"', max(earlier, 0), cut)
            cut = earlier
        return cut + len(line_end) if cut >= 0 else 0

    def split_columns(self, text: str, width: int) -> list[Texts] | None:
        """Return the columns of a text of whole rows; None unless each row has `width` fields."""
        text = self._complete(text)
        if '"' not in text:
            lines = text.split(self._line_end)[:-1]
            if set(map(str.count, lines, repeat(self._delimiter))) != {width - 1}:
                return None
            fields = text.replace(self._line_end, self._delimiter).split(self._delimiter)[:-1]
            return [fields[column::width] for column in range(width)]
        pairs = self._split(text)
        ends = [separator for _, separator in pairs]
        count, rest = divmod(len(pairs), width)
        if rest or ends.count(self._line_end) != count or ends[width - 1 :: width] != [self._line_end] * count:
            return None
        fields = [field for field, _ in pairs]
        return [self._read_quoted(fields[column::width]) for column in range(width)]

    def _read_quoted(self, fields: list[str]) -> Texts:
        null = self._null
        return [unquote(field) if '"' in field else None if field == null else field for field in fields]

    def rows(self, text: str) -> Iterator[list[tuple[int, str]]]:
        """Yield the fields of each row as they are written, each with its offset in the text."""
        offset = 0
        fields: list[tuple[int, str]] = []
        for field, separator in self._split(self._complete(text)):
            fields.append((offset, field))
            offset += len(field) + len(separator)
            if separator == self._line_end:
                yield fields
                fields = []

    def _complete(self, text: str) -> str:
        """Return the text with a line end behind its last row. Raise CsvFault for a quote that is not closed, and for
        another line end than that of the first line."""
        if text.count('"') % 2:
            skipped = self._skip(text)
            raise CsvFault(skipped.end() if skipped else 0, "the quotes of this field are never closed")
        count = text.count(self._line_end)
        if any(text.count(sign) != count * (sign in self._line_end) for sign in "\r\n"):
            for found in _QUOTED_OR_LINE_END.finditer(text):
                if found[0][0] != '"' and found[0] != self._line_end:
                    rule = f"the first line ends with {_NAMES[self._line_end]}, and so must all"
                    raise CsvFault(found.start(), f"{_NAMES[found[0]]} outside of quotes; {rule}")
        return text if text.endswith(self._line_end) else text + self._line_end


def unquote(field: str) -> str:
    """Return the value of a field with quotes."""
    return _QUOTED_PART.sub(lambda found: found[1].replace('""', '"'), field)


def count_lines(text: str) -> int:
    """Return the number of line ends, those in quoted fields included."""
    return text.count("\n") if "\r" not in text else len(_ANY_LINE_END.findall(text))


def find_column(text: str, offset: int) -> int:
    """Return the place of a character in its line, from 1."""
    return offset - max(text.rfind("\n", 0, offset), text.rfind("\r", 0, offset))
