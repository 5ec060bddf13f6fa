"""The type objects and constructors of PEP 249. Pure.

The type code in a cursor's `description` is the name of the column's type as the service writes it: `int4`, `text`,
`int4[]`, `myschema.mood`.
"""

from datetime import UTC, date, datetime, time


class TypeObject:
    """Equals the type codes of one kind of column."""

    def __init__(self, *names: str) -> None:
        self._names = frozenset(names)

    def __eq__(self, other: object) -> bool:
        return self is other if isinstance(other, TypeObject) else other in self._names

    def __hash__(self) -> int:
        return hash(self._names)

    def __repr__(self) -> str:
        return f"<TypeObject {', '.join(sorted(self._names))}>"


STRING = TypeObject("text", "varchar", "bpchar", "name", "char", "citext", "xml", "unknown")
BINARY = TypeObject("bytea")
NUMBER = TypeObject("int2", "int4", "int8", "float4", "float8", "numeric", "money")
DATETIME = TypeObject("date", "time", "timetz", "timestamp", "timestamptz", "interval")
ROWID = TypeObject("oid", "tid", "xid", "xid8", "cid")

Date = date
Time = time
Timestamp = datetime
Binary = bytes


def DateFromTicks(ticks: float) -> date:  # noqa: N802 - PEP 249 names it
    """Return the day, in UTC, that is so many seconds after the epoch."""
    return datetime.fromtimestamp(ticks, UTC).date()


def TimeFromTicks(ticks: float) -> time:  # noqa: N802 - PEP 249 names it
    """Return the time of day, in UTC, that is so many seconds after the epoch."""
    return datetime.fromtimestamp(ticks, UTC).time()


def TimestampFromTicks(ticks: float) -> datetime:  # noqa: N802 - PEP 249 names it
    """Return the moment that is so many seconds after the epoch, with UTC as its time zone."""
    return datetime.fromtimestamp(ticks, UTC)
