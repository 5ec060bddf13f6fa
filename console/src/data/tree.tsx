/** The schema as a tree: schemas, tables, and of those that are open columns, indexes and constraints, with sizes. */
import { useEffect, useState } from "preact/hooks";
import { database } from "../app/database";
import { formatRoute } from "../app/router";
import { formatBytes } from "../parts/show";
import { useLoaded } from "../parts/states";
import { useStore } from "../parts/store";
import { loadSchema, type Schema, type Table } from "../sql/schema";
import { type Constraint, type Index, readKeys } from "./definition";

const SIGNS: Record<Table["kind"], string> = {
  table: "▤",
  view: "◇",
  "materialized view": "◆",
  "partitioned table": "▥",
  "foreign table": "▧",
};
const SHOWN_MAX = 500;

interface TreeProps {
  known: Schema;
  chosen: Table | undefined;
  /** On a narrow screen only the way back to all tables is shown. */
  isFolded: boolean;
}

export function Tree({ known, chosen, isFolded }: TreeProps) {
  const [typed, setTyped] = useState("");
  const wanted = typed.toLowerCase();
  const fitting = known.tables.filter(
    (table) =>
      `${table.schema}.${table.name}`.toLowerCase().includes(wanted) ||
      table.columns.some((column) => wanted && column.name.toLowerCase().includes(wanted)),
  );
  const schemas = [...new Set(fitting.map((table) => table.schema))];
  return (
    <aside class="tree-side" aria-label="Schema" data-folded={isFolded}>
      <div class="toolbar">
        <input
          type="search"
          placeholder="Find a table or column"
          aria-label="Find a table or column"
          value={typed}
          onInput={(event) => setTyped(event.currentTarget.value)}
        />
        <button
          type="button"
          class="quiet small"
          aria-label="Load the schema again"
          title="Load the schema again"
          onClick={() => void loadSchema()}
        >
          ⟳
        </button>
      </div>
      <a class="tree-all" href={formatRoute("data")}>
        All tables
      </a>
      {schemas.map((name) => (
        <details key={name} open class="tree-schema">
          <summary>
            <bdi>{name}</bdi> <SizeOf tables={known.tables.filter((table) => table.schema === name)} />
          </summary>
          <ul>
            {fitting
              .filter((table) => table.schema === name)
              .slice(0, SHOWN_MAX)
              .map((table) => (
                <TreeTable key={table.name} known={known} table={table} isChosen={table === chosen} />
              ))}
          </ul>
        </details>
      ))}
      {fitting.length === 0 && <p class="faint">{wanted ? "Nothing is called that." : "There are no tables yet."}</p>}
    </aside>
  );
}

function SizeOf({ tables }: { tables: Table[] }) {
  const bytes = tables.reduce((sum, table) => sum + (table.size_bytes ?? 0), 0);
  return bytes > 0 ? <span class="tree-size">{formatBytes(bytes)}</span> : null;
}

function TreeTable({ known, table, isChosen }: { known: Schema; table: Table; isChosen: boolean }) {
  const [isOpen, setOpen] = useState(isChosen);
  useEffect(() => {
    if (isChosen) setOpen(true);
  }, [isChosen]);
  return (
    <li>
      <div class="tree-row" data-chosen={isChosen}>
        <button
          type="button"
          class="quiet tree-toggle"
          aria-expanded={isOpen}
          aria-label={`Columns, indexes and constraints of ${table.name}`}
          onClick={() => setOpen(!isOpen)}
        >
          {isOpen ? "▾" : "▸"}
        </button>
        <a
          href={formatRoute("data", [table.schema, table.name])}
          aria-current={isChosen ? "page" : undefined}
          title={`${table.name}, ${table.kind}`}
        >
          <span class="tree-label">
            <span aria-hidden="true" class="faint">
              {SIGNS[table.kind]}
            </span>{" "}
            <bdi>{table.name}</bdi>
          </span>{" "}
          <SizeOf tables={[table]} />
        </a>
      </div>
      {isOpen && <TreeParts known={known} table={table} />}
    </li>
  );
}

/** What an open table is made of. Indexes and constraints are read when it is opened, and again with the schema. */
function TreeParts({ known, table }: { known: Schema; table: Table }) {
  const from = useStore(database);
  const keys = useLoaded(() => readKeys(table, from), [table, from]);
  const targetOf = (column: string) =>
    known.foreignKeys.find(
      (key) => key.schema === table.schema && key.table === table.name && key.columns.includes(column),
    )?.toTable;
  return (
    <div class="tree-parts">
      <ul aria-label={`Columns of ${table.name}`}>
        {table.columns.map((column) => (
          <li key={column.name} title={`${column.name} ${column.type}`}>
            <bdi class={column.primary_key ? "key" : ""}>{column.name}</bdi>{" "}
            <span class="faint">
              {column.type}
              {column.nullable ? "" : " not null"}
              {targetOf(column.name) && (
                <>
                  {" → "}
                  <bdi>{targetOf(column.name)}</bdi>
                </>
              )}
            </span>
          </li>
        ))}
      </ul>
      {keys.failure && <p class="faint">Its indexes cannot be read: {keys.failure.message}</p>}
      {keys.value && <Indexes table={table} all={keys.value.indexes} />}
      {keys.value && <Constraints table={table} all={keys.value.constraints} />}
    </div>
  );
}

function Indexes({ table, all }: { table: Table; all: Index[] }) {
  if (all.length === 0) return null;
  return (
    <>
      <h3>Indexes</h3>
      <ul aria-label={`Indexes of ${table.name}`}>
        {all.map((index) => (
          <li key={index.name} title={index.definition}>
            <span class="tree-label">
              <bdi>{index.name}</bdi> <span class="faint">{describeIndex(index)}</span>
            </span>{" "}
            <span class="tree-size">{formatBytes(index.bytes)}</span>
          </li>
        ))}
      </ul>
    </>
  );
}

/** Say what an index is of: behind its method stand columns and conditions. */
function describeIndex(index: Index): string {
  const [, method = "", rest = ""] = / USING (\w+) ([\s\S]*)$/.exec(index.definition) ?? [];
  const words = [rest, method === "btree" ? "" : method, index.isUnique ? "unique" : ""];
  return words.filter(Boolean).join(", ");
}

function Constraints({ table, all }: { table: Table; all: Constraint[] }) {
  if (all.length === 0) return null;
  return (
    <>
      <h3>Constraints</h3>
      <ul aria-label={`Constraints of ${table.name}`}>
        {all.map((one) => (
          <li key={one.name} title={`${one.name} ${one.definition}`}>
            <bdi>{one.name}</bdi>{" "}
            <span class="faint">
              {one.kind} {one.definition.replace(/^(PRIMARY KEY|FOREIGN KEY|UNIQUE|CHECK) ?/, "")}
            </span>
          </li>
        ))}
      </ul>
    </>
  );
}
