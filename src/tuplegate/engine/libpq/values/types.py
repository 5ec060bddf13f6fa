"""The types of a database: name, kind, element, delimiter.

Built-in types are read from the server once and are the same in all its databases. A tenant's own types are looked up
when a result or a placeholder first shows them, on a connection of that tenant, and are forgotten when a statement may
have changed them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FIRST_USER_OID = 16384
"""The smallest OID that PostgreSQL gives to anything made after initdb."""

BOOL, BYTEA, INT8, INT2, INT4, TEXT, OID, JSON, TEXT_ARRAY = 16, 17, 20, 21, 23, 25, 26, 114, 1009
FLOAT4, FLOAT8, TIMESTAMP, TIMESTAMPTZ, NUMERIC, JSONB = 700, 701, 1114, 1184, 1700, 3802
INTEGERS = (INT2, INT4, INT8, OID)
FRACTIONS = (FLOAT4, FLOAT8, NUMERIC)
JSON_OIDS = frozenset({JSON, JSONB})

# An array type is one that some type names as its own array; `typelem` alone is also set for vectors and points.
TYPES_SQL = """
SELECT t.oid, n.nspname, t.typname, coalesce(e.oid, 0), coalesce(e.typname, ''), coalesce(en.nspname, ''),
       t.typdelim, t.typbasetype
  FROM pg_catalog.pg_type t
  JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
  LEFT JOIN pg_catalog.pg_type e ON e.typarray = t.oid AND e.oid = t.typelem
  LEFT JOIN pg_catalog.pg_namespace en ON en.oid = e.typnamespace
"""
BUILT_IN_TYPES_SQL = f"{TYPES_SQL} WHERE t.oid < 16384"
TYPES_FUNCTION = f"""
CREATE FUNCTION tuplegate.types(oids oid[], count_max bigint)
RETURNS TABLE (type_oid oid, schema name, name name, element oid, element_name name, element_schema name,
               delimiter "char", base oid)
LANGUAGE sql STABLE
BEGIN ATOMIC
WITH RECURSIVE used(oid) AS (
  SELECT unnest($1)
  UNION
  SELECT part.oid FROM used JOIN pg_type t ON t.oid = used.oid
   CROSS JOIN LATERAL (VALUES (t.typbasetype), (t.typelem)) AS part(oid)
   WHERE part.oid >= 16384
), nearest AS MATERIALIZED (SELECT used.oid FROM used LIMIT $2)
{TYPES_SQL} WHERE t.oid = ANY (ARRAY(SELECT nearest.oid FROM nearest));
END
"""
"""Returns the requested types and those that they consist of, at most `count_max`: the nearest ones."""
SOME_TYPES_SQL = "SELECT * FROM tuplegate.types($1, $2)"

USED_MAX = 2000
"""The bound on types that are looked up because others consist of them. A domain can be built on a domain, and so
on."""
ARRAYS_MAX = 4
"""How deep array types may nest, as arrays of domains over arrays do. A value nested deeper stays text. Each level's
text is quoted in that of the level above, so every level can double it."""
DIMENSIONS_MAX = 7
"""One more than the engine's arrays can have: the engine refuses deeper ones itself."""


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """A type. `element` is the OID of an array's element type, `base` of the type under a domain; 0 if there is
    none."""

    oid: int
    name: str
    element: int = 0
    delimiter: str = ","
    base: int = 0


UNKNOWN_TYPE = TypeInfo(0, "unknown")


def read_types(rows: Iterable[Sequence[str | None]]) -> dict[int, TypeInfo]:
    """Read the rows of one of the queries above."""
    types: dict[int, TypeInfo] = {}
    for row in rows:
        oid, schema, name, element, element_name, element_schema, delimiter, base = (value or "" for value in row)
        shown = _write_name(element_schema, element_name) + "[]" if element_name else _write_name(schema, name)
        types[int(oid)] = TypeInfo(int(oid), shown, int(element), delimiter, int(base))
    return types


def _write_name(schema: str, name: str) -> str:
    return name if schema == "pg_catalog" else f"{schema}.{name}"


class TypeRegistry:
    """The types of one database: the built-in ones, and those of its own that were seen."""

    def __init__(self, built_in: dict[int, TypeInfo], question: str = SOME_TYPES_SQL) -> None:
        """`question` asks for types by their numbers, and for the types that they consist of, up to a bound."""
        self._built_in = built_in
        self.question = question.encode()
        self._own: dict[int, TypeInfo] = {}
        self._under: dict[int, TypeInfo] = {}

    def get(self, oid: int) -> TypeInfo:
        return self._built_in.get(oid) or self._own.get(oid) or UNKNOWN_TYPE

    def find_missing(self, oids: Iterable[int]) -> list[int]:
        """Return the types that must be looked up before their values can be read or written, elements included."""
        missing: list[int] = []
        seen = {0}
        waiting = list(oids)
        while waiting:
            oid = waiting.pop()
            if oid < FIRST_USER_OID or oid in seen:
                continue
            seen.add(oid)
            info = self._own.get(oid)
            if info is None:
                missing.append(oid)
            else:
                waiting += (info.element, info.base)
        return missing

    def add(self, types: dict[int, TypeInfo], asked: Iterable[int]) -> None:
        """Remember what the server said; a type that it does not know (any more) counts as unknown."""
        self._own |= types
        for oid in asked:
            self._own.setdefault(oid, UNKNOWN_TYPE)
        self._under.clear()

    def forget(self) -> None:
        self._own.clear()
        self._under.clear()

    def strip_domains(self, oid: int) -> TypeInfo:
        """Return the type itself, or for a domain the type that it is built on."""
        under = self._under.get(oid)
        if under is None:
            under = self.get(oid)
            while under.base:
                under = self.get(under.base)
            self._under[oid] = under
        return under
