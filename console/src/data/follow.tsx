/** Foreign keys that can be followed: from a row to the one it names, and to those that name it. */
import type { ComponentChildren } from "preact";
import type { Row } from "../api/types";
import { formatRoute, go } from "../app/router";
import { type ForeignKey, schema, type Table } from "../sql/schema";

function keysFrom(table: Table): ForeignKey[] {
  return (schema.value?.foreignKeys ?? []).filter((key) => key.schema === table.schema && key.table === table.name);
}

function addressOf(key: ForeignKey, table: Table, row: Row): string | null {
  const values = key.columns.map((name) => row[table.columns.findIndex((column) => column.name === name)] ?? null);
  if (values.some((value) => value === null)) return null;
  const rules = key.toColumns.map((name, at) => [name, "=", String(values[at])]);
  return formatRoute("data", [key.toSchema, key.toTable], { where: JSON.stringify(rules) });
}

/** A value of a foreign key, with a link to the row that it names. */
export function LinkedValue({
  table,
  row,
  column,
  children,
}: {
  table: Table;
  row: Row;
  column: number;
  children: ComponentChildren;
}) {
  const key = keysFrom(table).find((one) => one.columns.includes(table.columns[column]!.name));
  const address = key && addressOf(key, table, row);
  if (!address) return <>{children}</>;
  return (
    <>
      <a
        class="follow"
        href={address}
        tabIndex={-1}
        aria-label={`Row of ${key.toTable}`}
        title={`Row of ${key.toTable}`}
      >
        ↗
      </a>
      {children}
    </>
  );
}

/** The rows that belong to the chosen one: those it names, and those that name it. */
export function Follow({ table, row, column }: { table: Table; row: Row | undefined; column: number }) {
  if (!row) return null;
  const name = table.columns[column]!.name;
  const out = keysFrom(table)
    .filter((key) => key.columns.includes(name))
    .map((key) => ({ title: `→ ${key.toTable}`, address: addressOf(key, table, row) }));
  const back = (schema.value?.foreignKeys ?? [])
    .filter((key) => key.toSchema === table.schema && key.toTable === table.name)
    .map((key) => {
      const title = `← ${key.table}.${key.columns.join(", ")}`;
      const values = key.toColumns.map((one) => row[table.columns.findIndex((other) => other.name === one)] ?? null);
      // Nothing names a row by NULL.
      if (values.some((value) => value === null)) return { title, address: null };
      const rules = key.columns.map((one, at) => [one, "=", String(values[at])]);
      return { title, address: formatRoute("data", [key.schema, key.table], { where: JSON.stringify(rules) }) };
    });
  return (
    <>
      {[...out, ...back]
        .filter((one) => one.address)
        .slice(0, 8)
        .map((one) => (
          <button type="button" class="small quiet" key={one.title} onClick={() => go(one.address!)}>
            {one.title}
          </button>
        ))}
    </>
  );
}
