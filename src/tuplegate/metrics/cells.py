"""What one route, or one kind of work of the engine, has been doing: a list of whole numbers.

It is counted at the end of every request, so it is as cheap as Python can be: places in a list, no objects. What the
places mean is known here and in `page.py`, nowhere else.
"""

from time import perf_counter_ns
from typing import Final

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the histograms' buckets, in seconds; one bucket more is for what is longer."""

STATUSES = ("none", "1xx", "2xx", "3xx", "4xx", "5xx")
"""The first places: answers by the class of their status. `none`: the client left before there was one."""

BUCKETS: Final = len(STATUSES)
SUM: Final = BUCKETS + len(BOUNDS_S) + 1
"""Nanoseconds, all together."""

_BOUNDS_NS: Final = [int(bound * 1e9) for bound in BOUNDS_S]

Cell = list[int]


def new_cell() -> Cell:
    return [0] * (SUM + 1)


def observe(cell: Cell, ns: int) -> None:
    """One more, which took so long."""
    place = BUCKETS
    for bound in _BOUNDS_NS:
        if ns <= bound:
            break
        place += 1
    cell[place] += 1
    cell[SUM] += ns


def count_answer(cell: Cell, status: int, started_ns: int) -> None:
    """One more request, with this status and begun then by `perf_counter_ns`."""
    cell[status // 100] += 1
    observe(cell, perf_counter_ns() - started_ns)


class PlaneCounts:
    """The requests of one plane: a cell for every route, and how often each error was answered."""

    def __init__(self, plane: str) -> None:
        self.plane = plane
        self.cells: dict[tuple[str, str], Cell] = {}
        self.errors: dict[str, int] = {}
        self.other = self.cell("other", "other")
        """What no route is for, whatever its path: a path is the client's to choose, a label is not."""

    def cell(self, method: str, route: str) -> Cell:
        return self.cells.setdefault((method, route), new_cell())

    def name(self, cell: Cell) -> tuple[str, str]:
        """Method and route of a cell."""
        return next(name for name, known in self.cells.items() if known is cell)

    def count_failure(self, code: str) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1
