"""Counters of one route, or of one kind of engine work, as a list of integers.

They are updated at the end of every request, so they are as cheap as Python allows: positions in a list, no objects.
Only this module and `page.py` know the meanings of the positions.
"""

from time import perf_counter_ns
from typing import Final

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the histogram buckets, in seconds. One more bucket holds everything longer."""

STATUSES = ("none", "1xx", "2xx", "3xx", "4xx", "5xx")
"""The first positions: answers by status class. `none` means that the client left before there was an answer."""

BUCKETS: Final = len(STATUSES)
SUM: Final = BUCKETS + len(BOUNDS_S) + 1
"""Position of the sum of all durations, in nanoseconds."""

_BOUNDS_NS: Final = [int(bound * 1e9) for bound in BOUNDS_S]

Cell = list[int]


def new_cell() -> Cell:
    return [0] * (SUM + 1)


def observe(cell: Cell, ns: int) -> None:
    """Count one duration."""
    place = BUCKETS
    for bound in _BOUNDS_NS:
        if ns <= bound:
            break
        place += 1
    cell[place] += 1
    cell[SUM] += ns


def count_answer(cell: Cell, status: int, started_ns: int) -> None:
    """Count one request with its status; `started_ns` is its start by `perf_counter_ns`."""
    cell[status // 100] += 1
    observe(cell, perf_counter_ns() - started_ns)


class PlaneCounts:
    """Counters of one plane: a cell for each route, and how often each error was answered."""

    def __init__(self, plane: str) -> None:
        self.plane = plane
        self.cells: dict[tuple[str, str], Cell] = {}
        self.errors: dict[str, int] = {}
        self.other = self.cell("other", "other")
        """Requests that match no route. Their paths are not labels: clients choose paths, and labels must be few."""

    def cell(self, method: str, route: str) -> Cell:
        return self.cells.setdefault((method, route), new_cell())

    def name(self, cell: Cell) -> tuple[str, str]:
        """Return the method and route of a cell."""
        return next(name for name, known in self.cells.items() if known is cell)

    def count_error(self, code: str) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1
