"""What a worker tells its fellows: numbers that only grow, which are added up, and those of the moment."""

import msgspec

from tuplegate.metrics.cells import Cell

DATABASES_MAX = 1000
"""So many databases does a worker tell apart; what others use is counted together."""

OTHER = "other other"
"""The place of those."""


class Sums(msgspec.Struct):
    """Keys are label values with a blank between them. Nothing here ever goes down.

    `requests`: plane, method, route. `errors`: plane, code. `engine`: kind of work. `events`: a metric and its labels.
    `databases`: organization, database, with requests, rows, bytes and errors.
    """

    requests: dict[str, Cell] = {}
    errors: dict[str, int] = {}
    engine: dict[str, Cell] = {}
    events: dict[str, int] = {}
    databases: dict[str, list[int]] = {}

    def plus(self, other: "Sums", databases_max: int | None = None) -> "Sums":
        """Both together. The databases of `self` keep their places, where those are bounded."""
        return Sums(
            _added(self.requests, other.requests),
            _counted(self.errors, other.errors),
            _added(self.engine, other.engine),
            _counted(self.events, other.events),
            _added(self.databases, other.databases, databases_max),
        )


class Snapshot(msgspec.Struct):
    """`gauges` are of the moment `at_ns`, on the machine's monotonic clock; keys as those of `events`."""

    worker: int
    at_ns: int
    sums: Sums
    gauges: dict[str, float] = {}


def _counted(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    result = dict(one)
    for key, value in other.items():
        result[key] = result.get(key, 0) + value
    return result


def _added(one: dict[str, list[int]], other: dict[str, list[int]], most: int | None = None) -> dict[str, list[int]]:
    result = dict(one)
    for key, values in other.items():
        place = key if key in result or most is None or len(result) < most else OTHER
        known = result.get(place)
        result[place] = values if known is None else [a + b for a, b in zip(known, values, strict=True)]
    return result
