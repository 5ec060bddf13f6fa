/** The schema as a tree: schemas, tables, columns. */
import { useState } from "preact/hooks";
import { formatRoute } from "../app/router";
import { formatBytes } from "../parts/show";
import { loadSchema, type Schema, type Table } from "../sql/schema";

const SIGNS: Record<Table["kind"], string> = {
  table: "▤",
  view: "◇",
  "materialized view": "◆",
  "partitioned table": "▥",
  "foreign table": "▧",
};
const SHOWN_MAX = 500;

export function Tree({ known, chosen }: { known: Schema; chosen: Table | undefined }) {
  const [typed, setTyped] = useState("");
  const wanted = typed.toLowerCase();
  const fitting = known.tables.filter(
    (table) =>
      `${table.schema}.${table.name}`.toLowerCase().includes(wanted) ||
      table.columns.some((column) => wanted && column.name.toLowerCase().includes(wanted)),
  );
  const schemas = [...new Set(fitting.map((table) => table.schema))];
  return (
    <aside class="tree-side" aria-label="Schema" data-has-table={chosen !== undefined}>
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
            <bdi>{name}</bdi>
          </summary>
          <ul>
            {fitting
              .filter((table) => table.schema === name)
              .slice(0, SHOWN_MAX)
              .map((table) => (
                <TreeTable key={table.name} table={table} isChosen={table === chosen} />
              ))}
          </ul>
        </details>
      ))}
      {fitting.length === 0 && <p class="faint">{wanted ? "Nothing is called that." : "There are no tables yet."}</p>}
    </aside>
  );
}

function TreeTable({ table, isChosen }: { table: Table; isChosen: boolean }) {
  const [isOpen, setOpen] = useState(isChosen);
  return (
    <li>
      <div class="tree-row" data-chosen={isChosen}>
        <button
          type="button"
          class="quiet tree-toggle"
          aria-expanded={isOpen}
          aria-label={`Columns of ${table.name}`}
          onClick={() => setOpen(!isOpen)}
        >
          {isOpen ? "▾" : "▸"}
        </button>
        <a
          href={formatRoute("data", [table.schema, table.name])}
          aria-current={isChosen ? "page" : undefined}
          title={`${table.kind}${table.size_bytes ? `, ${formatBytes(table.size_bytes)}` : ""}`}
        >
          <span aria-hidden="true" class="faint">
            {SIGNS[table.kind]}
          </span>{" "}
          <bdi>{table.name}</bdi>
        </a>
      </div>
      {isOpen && (
        <ul class="tree-columns">
          {table.columns.map((column) => (
            <li key={column.name}>
              <bdi class={column.primary_key ? "key" : ""}>{column.name}</bdi>{" "}
              <span class="faint">
                {column.type}
                {column.nullable ? "" : " not null"}
              </span>
            </li>
          ))}
        </ul>
      )}
    </li>
  );
}
