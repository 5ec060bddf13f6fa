"""The rows of an answer: a sequence of dicts, with the columns, types and counts beside them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

from tuplegate.client import frames
from tuplegate.client.errors import NotOneRow
from tuplegate.client.values import RowReader

Row = dict[str, Any]

_SHOWN_MAX = 5


class Rows(Sequence[Row]):
    """What one statement returned.

    Index it, iterate over it, ask its length: each row is a dict by column name. Where two columns have one name the
    later one wins in a dict; `tuples()` loses nothing.
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
        """Of the JSON object of a result whose rows are arrays."""
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
        """The rows as tuples, in the order of `columns`."""
        return list(self._tuples)

    def column(self, name: str | int = 0) -> list[Any]:
        """The values of one column, by name or index; the first one if none is named."""
        index = name if isinstance(name, int) else self.columns.index(name)
        return [row[index] for row in self._tuples]

    def first(self) -> Row | None:
        """The first row, or None where there is none."""
        return self[0] if self._tuples else None

    def one(self) -> Row:
        """The only row. Raises NotOneRow where there are none or several."""
        if len(self) != 1:
            raise NotOneRow(f"one row was expected, there are {len(self)}")
        return self[0]

    def value(self) -> Any:
        """The first column of the only row."""
        self.one()
        return self._tuples[0][0]

    def to_arrow(self) -> Any:
        """As a `pyarrow.Table`."""
        return frames.to_arrow(self)

    def to_pandas(self) -> Any:
        """As a `pandas.DataFrame`."""
        return frames.to_pandas(self)

    def to_polars(self) -> Any:
        """As a `polars.DataFrame`."""
        return frames.to_polars(self)
