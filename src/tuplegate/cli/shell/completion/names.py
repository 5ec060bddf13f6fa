"""The names in a database, for completion. They are read in the background, so that typing never waits."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tuplegate.protocol.statements import first_keyword

if TYPE_CHECKING:
    from tuplegate.client import Client, Rows

_NAMES_MAX = 50_000
_CHANGING = frozenset({"create", "alter", "drop", "do", "call", "import", "begin"})

# Kind, schema, name and, of a relation, column.
_OWN = """
select 's' as kind, nspname as schema, nspname as name, null as column from pg_namespace
where nspname <> 'tuplegate' and nspname !~ '^pg_(toast|temp)'
union all
select 'r', n.nspname, c.relname, a.attname from pg_class c join pg_namespace n on n.oid = c.relnamespace
left join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
where c.relkind in ('r', 'p', 'v', 'm', 'f') and {own}
union all
select distinct 'f', n.nspname, p.proname, null from pg_proc p join pg_namespace n on n.oid = p.pronamespace
where {own} and p.prorettype not in ('trigger'::regtype, 'event_trigger'::regtype)"""
_SYSTEM = (
    _OWN.format(own="n.nspname = 'pg_catalog'")
    + """
and p.prorettype <> 'internal'::regtype and 'internal'::regtype <> all (p.proargtypes)
and not exists (select from pg_operator o where o.oprcode = p.oid)"""
)
_OWN = _OWN.format(own="n.nspname not in ('pg_catalog', 'tuplegate') and n.nspname !~ '^pg_(toast|temp)'")


@dataclass(frozen=True)
class Names:
    """Schemas, columns of relations by schema and name, and functions by schema."""

    schemas: frozenset[str] = frozenset()
    relations: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    functions: frozenset[tuple[str, str]] = frozenset()

    def columns(self, schema: str | None, name: str) -> tuple[str, ...]:
        """Return the columns of a relation. Without a schema, `public` comes first and the system schemas last."""
        if schema is not None:
            return self.relations.get((schema, name), ())
        found = [key for key in self.relations if key[1] == name]
        found.sort(key=lambda key: (key[0] == "pg_catalog", key[0] == "information_schema", key[0] != "public"))
        return self.relations[found[0]] if found else ()

    def join(self, other: "Names") -> "Names":
        relations = {**other.relations, **self.relations}
        return Names(self.schemas | other.schemas, relations, self.functions | other.functions)


def collect_names(rows: "Rows") -> Names:
    schemas, functions = set(), set()
    relations: dict[tuple[str, str], list[str]] = {}
    for kind, schema, name, column in rows.tuples():
        if kind == "s":
            schemas.add(name)
        elif kind == "f":
            functions.add((schema, name))
        else:
            columns = relations.setdefault((schema, name), [])
            if column is not None:
                columns.append(column)
    return Names(frozenset(schemas), {key: tuple(found) for key, found in relations.items()}, frozenset(functions))


def may_change_names(sql: str) -> bool:
    return first_keyword(sql)[0] in _CHANGING or " into " in sql.lower()


class NameKeeper:
    """Reads the names in a thread. `names` are the latest known; `refresh` returns at once."""

    def __init__(self, client: "Client") -> None:
        self.names = Names()
        self._client = client
        self._system: Names | None = None
        self._lock = threading.Lock()
        self._asked = 0
        self._thread: threading.Thread | None = None

    def refresh(self) -> None:
        with self._lock:
            self._asked += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="names", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        """Read names until they are no older than the last request to refresh."""
        from tuplegate.client import TuplegateError

        while True:
            asked = self._asked
            try:
                if self._system is None:
                    self._system = collect_names(self._client.query(_SYSTEM, max_rows=_NAMES_MAX))
                own = collect_names(self._client.query(_OWN, max_rows=_NAMES_MAX)).join(self._system)
            except (TuplegateError, RuntimeError):
                own = self.names  # the shell works without names; RuntimeError means that the client was closed
            with self._lock:
                if asked == self._asked:
                    self.names = own
                    self._thread = None
                    return
