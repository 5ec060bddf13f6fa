"""The rows of an answer: a sequence of dicts, with columns, types and counts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

from tuplegate.client import frames
from tuplegate.client.errors import NotOneRow
from tuplegate.client.values import RowReader

Row = dict[str, Any]

_SHOWN_MAX = 5


class Rows(Sequence[Row]):
    """The result of one statement.

    Index it, iterate over it, or take its length: each row is a dict by column name. If two columns share a name, a
    dict holds the later one; `tuples()` has both.
    """

    def __init__(
        self,
        columns: Sequence[str],
        types: Sequence[str],
        tuples: Sequence[tuple[Any, ...]],
        *,
        affected_rows: int = 0,
        truncated: bool = False,
        notices: Sequence[Mapping[str, Any]] = (),
        timings: Mapping[str, int] | None = None,
        replayed: bool = False,
    ) -> None:
        self.columns = list(columns)
        self.types = list(types)
        self.affected_rows = affected_rows
        self.truncated = truncated
        self.notices = list(notices)
        self.timings = dict(timings or {})
        self.replayed = replayed
        self._tuples = list(tuples)

    @classmethod
    def of_answer(
        cls, answer: Mapping[str, Any], replayed: bool = False, rows_max: int | None = None, convert: bool = True
    ) -> "Rows":
        """Make rows from the JSON object of a result whose rows are arrays."""
        read = RowReader(answer["types"] if convert else ()).read
        rows = answer["rows"] if rows_max is None else answer["rows"][:rows_max]
        return cls(
            answer["columns"],
            answer["types"],
            [read(row) for row in rows],
            affected_rows=answer["affected_rows"],
            truncated=bool(answer.get("truncated")) or len(rows) < len(answer["rows"]),
            notices=answer.get("notices", ()),
            timings=answer.get("timings"),
            replayed=replayed,
        )

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self._dict(row) for row in self._tuples[index]]
        return self._dict(self._tuples[index])

    def __iter__(self) -> Iterator[Row]:
        return map(self._dict, self._tuples)

    def __len__(self) -> int:
        return len(self._tuples)

    def __repr__(self) -> str:
        more = f", … {len(self)} in all" if len(self) > _SHOWN_MAX else ""
        shown = ", ".join(map(repr, self[:_SHOWN_MAX]))
        return f"<Rows [{shown}{more}] affected_rows={self.affected_rows}>"

    def _dict(self, row: tuple[Any, ...]) -> Row:
        return dict(zip(self.columns, row, strict=True))

    def tuples(self) -> list[tuple[Any, ...]]:
        """Return the rows as tuples, in the order of `columns`."""
        return list(self._tuples)

    def column(self, name: str | int = 0) -> list[Any]:
        """Return the values of one column, by name or index; by default the first."""
        index = name if isinstance(name, int) else self.columns.index(name)
        return [row[index] for row in self._tuples]

    def first(self) -> Row | None:
        """Return the first row, or None if there is none."""
        return self[0] if self._tuples else None

    def one(self) -> Row:
        """Return the only row. Raises NotOneRow if there are none or several."""
        if len(self) != 1:
            raise NotOneRow(f"one row was expected, there are {len(self)}")
        return self[0]

    def value(self) -> Any:
        """Return the first column of the only row."""
        self.one()
        return self._tuples[0][0]

    def to_arrow(self) -> Any:
        """Convert to a `pyarrow.Table`."""
        return frames.to_arrow(self)

    def to_pandas(self) -> Any:
        """Convert to a `pandas.DataFrame`."""
        return frames.to_pandas(self)

    def to_polars(self) -> Any:
        """Convert to a `polars.DataFrame`."""
        return frames.to_polars(self)
