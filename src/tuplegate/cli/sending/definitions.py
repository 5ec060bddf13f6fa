"""Reads the definitions of a database through the service, by catalog queries that engines of PostgreSQL's kind answer.

All are read in one read-only transaction, with a search path that makes every name a full one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tuplegate.cli.transfer.value_forms import DOCUMENT_SQL
from tuplegate.client.statements import quote

if TYPE_CHECKING:
    from tuplegate.client import Client

_OWN = "n.nspname !~ '^pg_' and n.nspname not in ('information_schema', 'tuplegate', 'crdb_internal')"
_NO_EXTENSION = "not exists (select 1 from pg_depend e where e.objid = {oid} and e.deptype = 'e')"
_NAMED = "join pg_namespace n on n.oid = {schema}"


def _of(table: str, oid: str, schema: str) -> str:
    """Return the end of a query for the tenant's own objects, in schemas of its own."""
    return f"from {table} {_NAMED.format(schema=schema)} where {_OWN} and {_NO_EXTENSION.format(oid=oid)}"


_CLASSES = _of("pg_class c", "c.oid", "c.relnamespace")

_QUERIES: dict[str, str] = {
    "schemas": f"select n.nspname as schema from pg_namespace n where {_OWN} order by 1",
    "enums": "select n.nspname as schema, t.typname as name,"
    " array(select e.enumlabel::text from pg_enum e where e.enumtypid = t.oid order by e.enumsortorder) as labels "
    + _of("pg_type t", "t.oid", "t.typnamespace")
    + " and t.typtype = 'e' order by 1, 2",
    "domains": "select n.nspname as schema, t.typname as name, format_type(t.typbasetype, t.typtypmod) as base,"
    " t.typnotnull as not_null, t.typdefault as default_text,"
    " array(select pg_get_constraintdef(k.oid) from pg_constraint k where k.contypid = t.oid and k.contype = 'c')"
    " as checks " + _of("pg_type t", "t.oid", "t.typnamespace") + " and t.typtype = 'd' order by t.oid",
    "composites": "select n.nspname as schema, t.typname as name, array(select quote_ident(a.attname) || ' ' ||"
    " format_type(a.atttypid, a.atttypmod) from pg_attribute a where a.attrelid = t.typrelid and a.attnum > 0"
    " and not a.attisdropped order by a.attnum) as fields "
    + _of("pg_type t join pg_class c on c.oid = t.typrelid and c.relkind = 'c'", "t.oid", "t.typnamespace")
    + " order by t.oid",
    "sequences": "select schemaname as schema, sequencename as name, data_type::text as type, start_value, min_value,"
    " max_value, increment_by, cycle, last_value from pg_sequences n where "
    + _OWN.replace("nspname", "schemaname")
    + " order by 1, 2",
    "identities": "select n.nspname as schema, c.relname as name, d.refobjid::int8 as relation, a.attname as column "
    + _of(
        "pg_class c join pg_depend d on d.objid = c.oid and d.deptype = 'i'"
        " join pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid",
        "c.oid",
        "c.relnamespace",
    )
    + " and c.relkind = 'S'",
    "relations": "select c.oid::int8 as id, n.nspname as schema, c.relname as name, c.relkind::text as kind,"
    " c.relispartition as is_partition, obj_description(c.oid, 'pg_class') as comment,"
    " case when c.relkind in ('v', 'm') then pg_get_viewdef(c.oid) end as definition "
    + _CLASSES
    + " and c.relkind in ('r', 'p', 'v', 'm', 'f') order by c.oid",
    "columns": "select a.attrelid::int8 as relation, a.attname as name, format_type(a.atttypid, a.atttypmod) as type,"
    " case when t.typtype = 'd' then format_type(t.typbasetype, t.typtypmod) end as base,"
    f" {DOCUMENT_SQL} as document,"
    " a.attnotnull as not_null, pg_get_expr(d.adbin, d.adrelid) as expression, a.attidentity::text as identity,"
    " a.attgenerated::text as generated, col_description(a.attrelid, a.attnum) as comment "
    + _of(
        "pg_attribute a join pg_class c on c.oid = a.attrelid join pg_type t on t.oid = a.atttypid"
        " left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum",
        "c.oid",
        "c.relnamespace",
    )
    + " and a.attnum > 0 and not a.attisdropped and c.relkind in ('r', 'p') order by 1, a.attnum",
    "constraints": "select k.conrelid::int8 as relation, k.conname as name, k.contype::text as kind,"
    " pg_get_constraintdef(k.oid) as definition "
    + _of("pg_constraint k join pg_class c on c.oid = k.conrelid", "c.oid", "c.relnamespace")
    + " and k.contype in ('p', 'u', 'c', 'f', 'x') and c.relkind in ('r', 'p') order by k.oid",
    "indexes": "select i.indrelid::int8 as relation, x.relname as name, pg_get_indexdef(i.indexrelid) as definition "
    + _of(
        "pg_index i join pg_class c on c.oid = i.indrelid join pg_class x on x.oid = i.indexrelid",
        "c.oid",
        "c.relnamespace",
    )
    + " and not exists (select 1 from pg_constraint k where k.conindid = i.indexrelid and k.contype in ('p', 'u', 'x'))"
    " and c.relkind in ('r', 'p', 'm') order by 1, 2",
    "functions": "select n.nspname as schema, p.proname as name, 'function' as kind "
    + _of("pg_proc p", "p.oid", "p.pronamespace"),
    "triggers": "select n.nspname as schema, c.relname || '.' || g.tgname as name, 'trigger' as kind "
    + _of("pg_trigger g join pg_class c on c.oid = g.tgrelid", "c.oid", "c.relnamespace")
    + " and not g.tgisinternal",
    "policies": "select n.nspname as schema, c.relname || '.' || g.polname as name, 'policy' as kind "
    + _of("pg_policy g join pg_class c on c.oid = g.polrelid", "c.oid", "c.relnamespace"),
    "rules": "select n.nspname as schema, c.relname || '.' || g.rulename as name, 'rule' as kind "
    + _of("pg_rewrite g join pg_class c on c.oid = g.ev_class", "c.oid", "c.relnamespace")
    + " and g.rulename <> '_RETURN'",
    "extensions": "select '' as schema, e.extname as name, 'extension' as kind from pg_extension e"
    " where e.extname <> 'plpgsql'",
}
_FOREIGN = ("functions", "triggers", "policies", "rules", "extensions")
_ONE_PATH = "set local search_path to pg_catalog"

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Relation:
    """A table with its columns, constraints and indexes, or a view with its definition."""

    schema: str
    name: str
    kind: str
    is_partition: bool
    comment: str | None
    definition: str | None
    columns: Sequence[Record]
    constraints: Sequence[Record]
    indexes: Sequence[Record]
    identities: Mapping[str, str]
    """The sequences of columns that number themselves, by the columns."""

    @property
    def full_name(self) -> str:
        return full_name(self.schema, self.name)

    @property
    def is_table(self) -> bool:
        return self.kind in ("r", "p") and not self.is_partition


@dataclass(frozen=True)
class Definitions:
    """All that a database has. `foreign` is what no other engine is sent."""

    schemas: Sequence[str]
    enums: Sequence[Record]
    domains: Sequence[Record]
    composites: Sequence[Record]
    sequences: Sequence[Record]
    relations: Sequence[Relation]
    foreign: Sequence[Record]

    @property
    def tables(self) -> list[Relation]:
        return [one for one in self.relations if one.is_table]


def full_name(schema: str, name: str) -> str:
    return f"{quote(schema)}.{quote(name)}"


def read_definitions(client: "Client") -> Definitions:
    done = client.transaction([_ONE_PATH, *_QUERIES.values()], read_only=True)
    found = {name: list(rows) for name, rows in zip(_QUERIES, done.results[1:], strict=True)}

    def of(name: str, relation: int) -> list[Record]:
        return [one for one in found[name] if one["relation"] == relation]

    relations = [
        Relation(
            **{name: one[name] for name in ("schema", "name", "kind", "is_partition", "comment", "definition")},
            columns=of("columns", one["id"]),
            constraints=of("constraints", one["id"]),
            indexes=of("indexes", one["id"]),
            identities={own["column"]: full_name(own["schema"], own["name"]) for own in of("identities", one["id"])},
        )
        for one in found["relations"]
    ]
    return Definitions(
        [one["schema"] for one in found["schemas"]],
        found["enums"],
        found["domains"],
        found["composites"],
        found["sequences"],
        relations,
        [one for name in _FOREIGN for one in found[name]],
    )
