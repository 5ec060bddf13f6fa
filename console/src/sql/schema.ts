/** The live schema: tables with their columns, foreign keys and the names of functions. */
import { asFailure, askData, type Failure } from "../api/http";
import { session } from "../api/session";
import type { ColumnBody, TableBody } from "../api/types";
import { database } from "../app/database";
import { Store } from "../parts/store";
import { querySmall } from "../api/query";

export type Column = ColumnBody;
export type Table = TableBody;

export interface ForeignKey {
  name: string;
  schema: string;
  table: string;
  columns: string[];
  toSchema: string;
  toTable: string;
  toColumns: string[];
}

export interface Schema {
  tables: Table[];
  foreignKeys: ForeignKey[];
  /** Tables that others inherit from, not counting partitions, as JSON of schema and name. */
  parents: Set<string>;
  /** Columns whose collation takes different texts for equal, as JSON of schema, table and column. */
  lax: Set<string>;
  functions: string[];
}

export const schema = new Store<Schema | null>(null);
export const schemaFailure = new Store<Failure | null>(null);

const FOREIGN_KEYS = `
select con.conname, n.nspname, c.relname,
  (select array_agg(a.attname::text order by k.at) from unnest(con.conkey) with ordinality k (num, at)
     join pg_attribute a on a.attrelid = con.conrelid and a.attnum = k.num),
  fn.nspname, f.relname,
  (select array_agg(a.attname::text order by k.at) from unnest(con.confkey) with ordinality k (num, at)
     join pg_attribute a on a.attrelid = con.confrelid and a.attnum = k.num)
from pg_constraint con
join pg_class c on c.oid = con.conrelid join pg_namespace n on n.oid = c.relnamespace
join pg_class f on f.oid = con.confrelid join pg_namespace fn on fn.oid = f.relnamespace
where con.contype = 'f' and con.conparentid = 0
order by 2, 3, 1`;

const PARENTS = `
select distinct n.nspname::text, c.relname::text
from pg_inherits i join pg_class c on c.oid = i.inhparent join pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'r'`;

const LAX = `
select n.nspname::text, c.relname::text, a.attname::text
from pg_attribute a join pg_collation l on l.oid = a.attcollation
join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace
where not l.collisdeterministic and not a.attisdropped`;

const FUNCTIONS = `
select distinct p.proname::text from pg_proc p join pg_namespace n on n.oid = p.pronamespace
where pg_function_is_visible(p.oid) and p.prorettype not in ('trigger'::regtype, 'internal'::regtype, 'event_trigger'::regtype)
  and p.proname !~ '^(_|RI_|pg_stat_|ts_|gin|gist|brin|spg|bt|hash|array_(in|out)|.*(_in|_out|_recv|_send|sel|joinsel|typmodin|typmodout)$)'
order by 1`;

let round = 0;

/** Load the schema of the chosen database. A later call wins over an earlier one. */
export async function loadSchema(): Promise<void> {
  const mine = ++round;
  const from = database.value;
  try {
    const [tables, keys, parents, lax, functions] = await Promise.all([
      askData<{ tables: Table[] }>("/tables", { database: from }),
      querySmall(FOREIGN_KEYS, [], from),
      querySmall(PARENTS, [], from),
      querySmall(LAX, [], from),
      querySmall(FUNCTIONS, [], from),
    ]);
    if (mine !== round) return;
    const foreignKeys = keys.rows.map((row) => {
      const [name, schemaName, table, columns, toSchema, toTable, toColumns] = row as [
        string,
        string,
        string,
        string[],
        string,
        string,
        string[],
      ];
      return { name, schema: schemaName, table, columns, toSchema, toTable, toColumns };
    });
    schema.set({
      tables: tables.tables,
      foreignKeys,
      parents: new Set(parents.rows.map((row) => JSON.stringify(row))),
      lax: new Set(lax.rows.map((row) => JSON.stringify(row))),
      functions: functions.rows.map((row) => String(row[0])),
    });
    schemaFailure.set(null);
  } catch (error) {
    if (mine === round) schemaFailure.set(asFailure(error));
  }
}

/** Keep the schema that of the chosen database. */
export function followSchema(): void {
  const renew = () => {
    schema.set(null);
    if (session.current.value) void loadSchema();
  };
  database.subscribe(renew);
}

export function findTable(schemaName: string, name: string): Table | undefined {
  return schema.value?.tables.find((table) => table.schema === schemaName && table.name === name);
}

/** Return whether other tables inherit from this one: then two of its rows can have the same key. */
export function isParent(table: Table): boolean {
  return schema.value?.parents.has(JSON.stringify([table.schema, table.name])) ?? false;
}

/** Return whether equal texts of a column may be different ones. */
export function isLax(table: Table, column: string): boolean {
  return schema.value?.lax.has(JSON.stringify([table.schema, table.name, column])) ?? false;
}

const CHANGES_SCHEMA = /^\s*(create|alter|drop|comment|truncate|refresh|import|reindex|select\b[\s\S]*\binto)\b/i;

/** Return whether a statement may have changed what the schema shows. */
export function mayChangeSchema(sql: string): boolean {
  return CHANGES_SCHEMA.test(sql.replace(/^(\s|--.*\n|\/\*[\s\S]*?\*\/)+/, ""));
}
