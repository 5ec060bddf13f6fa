"""The numbers that workers exchange: counters, which are added up, and gauges, which are of one moment."""

import msgspec

from tuplegate.metrics.cells import Cell

Counted = tuple[dict[str, int], dict[str, float]]
"""Events so far, and gauges of this moment, by their names."""

DATABASES_MAX = 1000
"""A worker counts this many databases separately, and all others together."""

OTHER = "other other"
"""Key of all databases that are counted together."""


class Sums(msgspec.Struct):
    """Counters by key: label values separated by blanks. No number here ever decreases.

    Labels of `requests`: plane, method, route. `errors`: plane, code. `engine`: kind of work. `events`: a metric and
    its labels. `databases`: organization, database; the values are requests, rows, bytes and errors.
    """

    requests: dict[str, Cell] = {}
    errors: dict[str, int] = {}
    engine: dict[str, Cell] = {}
    events: dict[str, int] = {}
    databases: dict[str, list[int]] = {}

    def add(self, other: "Sums", databases_max: int | None = None) -> "Sums":
        """Return the sums of both. If the databases are bounded, those of `self` are kept and new ones count as
        other."""
        return Sums(
            _add_rows(self.requests, other.requests),
            _add_counts(self.errors, other.errors),
            _add_rows(self.engine, other.engine),
            _add_counts(self.events, other.events),
            _add_rows(self.databases, other.databases, databases_max),
        )


class WorkerMetrics(msgspec.Struct):
    """All numbers of a worker. `gauges` are of the moment `at_ns`, on the machine's monotonic clock; keys as in
    `events`."""

    worker: int
    at_ns: int
    sums: Sums
    gauges: dict[str, float] = {}


def _add_counts(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    result = dict(one)
    for key, value in other.items():
        result[key] = result.get(key, 0) + value
    return result


def _add_rows(one: dict[str, list[int]], other: dict[str, list[int]], most: int | None = None) -> dict[str, list[int]]:
    result = dict(one)
    for key, values in other.items():
        place = key if key in result or most is None or len(result) < most else OTHER
        known = result.get(place)
        result[place] = values if known is None else [a + b for a, b in zip(known, values, strict=True)]
    return result
