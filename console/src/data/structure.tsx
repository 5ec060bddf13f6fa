/** A table's structure: columns, keys, indexes, constraints, what refers to it, and its CREATE statement. */
import { querySmall } from "../api/query";
import type { Row } from "../api/types";
import { database } from "../app/database";
import { formatRoute } from "../app/router";
import { CodeBlock, formatBytes } from "../parts/show";
import { Shown, useLoaded } from "../parts/states";
import { useStore } from "../parts/store";
import { quoteIdentifier, quoteTable } from "../sql/quote";
import { schema, type Table } from "../sql/schema";

const COLUMNS = `
select a.attname::text, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid), a.attidentity::text, a.attgenerated::text,
  col_description(a.attrelid, a.attnum)
from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
where a.attrelid = to_regclass($1) and a.attnum > 0 and not a.attisdropped order by a.attnum`;
const INDEXES = `
select c.relname::text, pg_get_indexdef(i.indexrelid), pg_relation_size(i.indexrelid), i.indisunique, i.indisprimary,
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

interface Structure {
  columns: Row[];
  indexes: Row[];
  constraints: Row[];
  sizes: Row | undefined;
}

async function readStructure(table: Table, from: string | null): Promise<Structure> {
  const name = [`${quoteAlways(table.schema)}.${quoteAlways(table.name)}`];
  const [columns, indexes, constraints, sizes] = await Promise.all(
    [COLUMNS, INDEXES, CONSTRAINTS, SIZES].map((sql) => querySmall(sql, name, from)),
  );
  return { columns: columns!.rows, indexes: indexes!.rows, constraints: constraints!.rows, sizes: sizes!.rows[0] };
}

export function StructureView({ table }: { table: Table }) {
  const from = useStore(database);
  const known = useStore(schema);
  const loaded = useLoaded(() => readStructure(table, from), [table, from]);
  const back = (known?.foreignKeys ?? []).filter((key) => key.toSchema === table.schema && key.toTable === table.name);
  return (
    <div class="structure">
      <Shown of={loaded} what="Reading the structure">
        {(structure) => (
          <>
            <Columns rows={structure.columns} table={table} />
            {structure.constraints.length > 0 && (
              <Section
                title="Keys and constraints"
                head={["Name", "Kind", "Definition"]}
                rows={structure.constraints.map(([name, kind, text]) => [
                  String(name),
                  KINDS[String(kind)] ?? String(kind),
                  String(text),
                ])}
              />
            )}
            {structure.indexes.length > 0 && (
              <Section
                title="Indexes"
                head={["Name", "Size", "Definition"]}
                rows={structure.indexes.map(([name, text, size]) => [
                  String(name),
                  formatBytes(Number(size)),
                  String(text),
                ])}
              />
            )}
            {back.length > 0 && (
              <section>
                <h2>Referred to by</h2>
                <ul class="plain">
                  {back.map((key) => (
                    <li key={key.schema + key.table + key.name}>
                      <a href={formatRoute("data", [key.schema, key.table])}>
                        <bdi>
                          {key.schema}.{key.table}
                        </bdi>
                      </a>{" "}
                      <code>({key.columns.join(", ")})</code>
                    </li>
                  ))}
                </ul>
              </section>
            )}
            {structure.sizes && /table$/.test(table.kind) && (
              <p class="faint">
                Rows {formatBytes(Number(structure.sizes[0]))}, indexes {formatBytes(Number(structure.sizes[1]))}
              </p>
            )}
            <section>
              <h2>CREATE statement</h2>
              <CodeBlock code={writeCreate(table, structure)} label="CREATE statement" />
            </section>
          </>
        )}
      </Shown>
    </div>
  );
}

function quoteAlways(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}

function Columns({ rows, table }: { rows: Row[]; table: Table }) {
  const keys = new Set(table.columns.filter((column) => column.primary_key).map((column) => column.name));
  return (
    <Section
      title="Columns"
      head={["Name", "Type", "", "Default", "Comment"]}
      rows={rows.map((row) => [
        String(row[0]),
        String(row[1]),
        [keys.has(String(row[0])) ? "key" : "", row[2] ? "not null" : ""].filter(Boolean).join(", "),
        describeDefault(row),
        String(row[6] ?? ""),
      ])}
    />
  );
}

function describeDefault(row: Row): string {
  if (row[4] === "a") return "generated always as identity";
  if (row[4] === "d") return "generated by default as identity";
  if (row[3] === null) return "";
  return row[5] === "s" || row[5] === "v" ? `generated: ${String(row[3])}` : String(row[3]);
}

function Section({ title, head, rows }: { title: string; head: string[]; rows: string[][] }) {
  return (
    <section>
      <h2>{title}</h2>
      <div class="table-wrap">
        <table class="list">
          <thead>
            <tr>
              {head.map((name, at) => (
                <th key={at}>{name || <span class="hidden">Properties</span>}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row[0]}>
                {row.map((text, at) => (
                  <td key={at} class={at === 0 || at === row.length - 1 || at === 1 ? "mono" : ""}>
                    <bdi>{text}</bdi>
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

/** Write the statements that make the table anew, as far as they are of the table itself. */
export function writeCreate(table: Table, structure: Structure): string {
  const name = quoteTable(table.schema, table.name);
  const view = structure.sizes?.[2];
  if (view) return `create ${table.kind} ${name} as\n${String(view)}`;
  const lines = structure.columns.map((row) => {
    const [column, type, isRequired, expression, identity, generated] = row;
    const parts = [quoteIdentifier(String(column)), String(type)];
    if (isRequired) parts.push("not null");
    if (identity === "a" || identity === "d") parts.push(describeDefault(row));
    else if (generated === "s" || generated === "v")
      parts.push(`generated always as (${String(expression)}) ${generated === "s" ? "stored" : "virtual"}`);
    else if (expression !== null) parts.push(`default ${String(expression)}`);
    return `  ${parts.join(" ")}`;
  });
  const constraints = structure.constraints.map(
    ([one, , text]) => `  constraint ${quoteIdentifier(String(one))} ${String(text)}`,
  );
  const indexes = structure.indexes.filter((row) => !row[5]).map((row) => `${String(row[1])};`);
  const comments = structure.columns
    .filter((row) => row[6])
    .map(
      (row) =>
        `comment on column ${name}.${quoteIdentifier(String(row[0]))} is '${String(row[6]).replaceAll("'", "''")}';`,
    );
  return [`create table ${name} (\n${[...lines, ...constraints].join(",\n")}\n);`, ...indexes, ...comments].join("\n");
}
