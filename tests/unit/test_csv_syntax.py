"""CSV as COPY reads it. tests/transfers/test_transfer_csv.py compares it with COPY itself."""

import pytest

from tuplegate.cli.transfer.csv_syntax import CsvFault, CsvSyntax


def columns_of(text: str, width: int, line_end: str = "\n") -> list[list[str | None]] | None:
    found = CsvSyntax(",", "N", line_end).split_columns(text, width)
    return None if found is None else [[None if value == "N" else value for value in texts] for texts in found]


@pytest.mark.parametrize(
    ("text", "width", "columns"),
    [
        ("a,b\nc,d", 2, [["a", "c"], ["b", "d"]]),
        ('a"b,c"d,e\n', 2, [["ab,cd"], ["e"]]),
        ('"a" "b",""\n"a""b",x\n', 2, [["a b", 'a"b'], ["", "x"]]),
        ('"a\nb",c\n', 2, [["a\nb"], ["c"]]),
        ("\n\na\n", 1, [["", "", "a"]]),
        ("a,b\n\nc,d\n", 2, None),
        ('"a",b,c\n', 2, None),
        ("N,a\n", 2, [[None], ["a"]]),
    ],
)
def test_rows_are_split_as_by_copy(text: str, width: int, columns: list[list[str | None]] | None) -> None:
    assert columns_of(text, width) == columns


def test_a_field_with_quotes_is_never_null() -> None:
    """Wherever its quotes stand."""
    assert CsvSyntax(",", "N", "\n").split_columns('N,"N",N""\n', 3) == [[None], ["N"], ["N"]]


@pytest.mark.parametrize(
    ("text", "line_end", "offset"),
    [('a,"b\n', "\n", 2), ('"a",b\r\n', "\n", 5), ("a\nb\r\n", "\r\n", 1), ("a\n", "\r", 1)],
)
def test_what_copy_refuses_is_refused_at_its_place(text: str, line_end: str, offset: int) -> None:
    with pytest.raises(CsvFault) as caught:
        columns_of(text, 1, line_end)
    assert caught.value.offset == offset


def test_a_part_ends_behind_its_last_whole_row() -> None:
    """Line ends in quotes end no row."""
    find_end = CsvSyntax(",", "", "\n").find_end
    assert [find_end(part) for part in (b"", b"a", b"a\nb", b'a\n"b\n', b'"a\n"\nb', b'"a\n', b'a\n"b""\nc\n')] == [
        0, 0, 2, 2, 5, 0, 2,
    ]  # fmt: skip
