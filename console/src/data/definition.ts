/** How a table is defined, read from the engine's catalog. */
import { querySmall } from "../api/query";
import type { Row } from "../api/types";
import type { Table } from "../sql/schema";

const COLUMNS = `
select a.attname::text, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid), a.attidentity::text, a.attgenerated::text,
  col_description(a.attrelid, a.attnum)
from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
where a.attrelid = to_regclass($1) and a.attnum > 0 and not a.attisdropped order by a.attnum`;
const INDEXES = `
select c.relname::text, pg_get_indexdef(i.indexrelid), pg_relation_size(i.indexrelid), i.indisunique,
  exists (select from pg_constraint con where con.conindid = i.indexrelid and con.contype in ('p', 'u', 'x'))
from pg_index i join pg_class c on c.oid = i.indexrelid where i.indrelid = to_regclass($1) order by i.indisprimary desc, 1`;
const CONSTRAINTS = `
select conname::text, contype::text, pg_get_constraintdef(oid) from pg_constraint
where conrelid = to_regclass($1) and contype <> 'n' order by array_position(array['p', 'u', 'f', 'c', 'x'], contype::text), 1`;
const SIZES = `select pg_table_size(to_regclass($1)), pg_indexes_size(to_regclass($1)), pg_get_viewdef(case when c.relkind in ('v', 'm') then c.oid end, true) from pg_class c where c.oid = to_regclass($1)`;

const KINDS: Record<string, string> = {
  p: "primary key",
  u: "unique",
  f: "foreign key",
  c: "check",
  x: "exclusion",
  t: "trigger",
};

export interface Index {
  name: string;
  /** The statement that makes it. */
  definition: string;
  bytes: number;
  isUnique: boolean;
  /** Whether a constraint of the table stands for it, and makes it. */
  isOfConstraint: boolean;
}

export interface Constraint {
  name: string;
  kind: string;
  definition: string;
}

export interface Definition {
  columns: Row[];
  indexes: Index[];
  constraints: Constraint[];
  sizes: Row | undefined;
}

async function readRows(sql: string, table: Table, from: string | null): Promise<Row[]> {
  return (await querySmall(sql, [`${quoteAlways(table.schema)}.${quoteAlways(table.name)}`], from)).rows;
}

function quoteAlways(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}

async function readIndexes(table: Table, from: string | null): Promise<Index[]> {
  const rows = await readRows(INDEXES, table, from);
  return rows.map(([name, definition, bytes, isUnique, isOfConstraint]) => ({
    name: String(name),
    definition: String(definition),
    bytes: Number(bytes),
    isUnique: isUnique === true,
    isOfConstraint: isOfConstraint === true,
  }));
}

async function readConstraints(table: Table, from: string | null): Promise<Constraint[]> {
  const rows = await readRows(CONSTRAINTS, table, from);
  return rows.map(([name, kind, definition]) => ({
    name: String(name),
    kind: KINDS[String(kind)] ?? String(kind),
    definition: String(definition),
  }));
}

/** Read what keeps a table's rows in order. */
export async function readKeys(
  table: Table,
  from: string | null,
): Promise<{ indexes: Index[]; constraints: Constraint[] }> {
  const [indexes, constraints] = await Promise.all([readIndexes(table, from), readConstraints(table, from)]);
  return { indexes, constraints };
}

export async function readDefinition(table: Table, from: string | null): Promise<Definition> {
  const [columns, keys, sizes] = await Promise.all([
    readRows(COLUMNS, table, from),
    readKeys(table, from),
    readRows(SIZES, table, from),
  ]);
  return { columns, ...keys, sizes: sizes[0] };
}
