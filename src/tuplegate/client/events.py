"""The result of a streamed answer, read from its events. Pure: the bytes are an argument."""

from collections.abc import Mapping
from typing import Any

from tuplegate.client.errors import TuplegateError, make_error
from tuplegate.client.values import RowReader, read_json


class StreamedResult:
    """Collects the data of a stream's events. `exact` leaves the values as they are in the JSON.

    `_report` is the report on the transaction in the last event of a stream within one.
    """

    def __init__(self, exact: bool) -> None:
        self.columns: list[str] = []
        self.types: list[str] = []
        self.row_count = 0
        self.affected_rows = 0
        self.truncated = False
        self.notices: list[dict[str, Any]] = []
        self._exact = exact
        self._parts: list[bytes] = []
        self._read = RowReader(()).read
        self._described = False
        self._ended = False
        self._failure: TuplegateError | None = None
        self._position: str | None = None
        self._report: Mapping[str, Any] = {}

    def _take(self, chunk: bytes, request_id: str | None) -> list[tuple[Any, ...]]:
        """Read the events that are complete with this chunk, and return their rows."""
        lines, newline, rest = chunk.rpartition(b"\n")
        if not newline:
            self._parts.append(chunk)
            return []
        lines = b"".join([*self._parts, lines])
        self._parts = [rest]
        rows = []
        for event in read_json(b"[" + lines.replace(b"\n", b",") + b"]", exact=self._exact):
            data = event["data"]
            match event["event"]:
                case "row":
                    rows.append(self._read(data))
                case "columns":
                    self.columns, self.types = data["columns"], data["types"]
                    self._read = RowReader(() if self._exact else self.types).read
                    self._described = True
                case "done":
                    self.row_count, self.affected_rows = data["row_count"], data["affected_rows"]
                    self.truncated, self.notices = bool(data.get("truncated")), data.get("notices", [])
                    self._position, self._report = data.get("position"), data.get("transaction", {})
                    self._ended = True
                case "error":
                    self._failure = make_error(200, data["error"], request_id, None)
                    self._failure.answer, self._report = data, data.get("transaction", {})
                    self._ended = True
        return rows
