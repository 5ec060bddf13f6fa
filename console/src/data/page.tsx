/** The data page: the schema as a tree, and a table's rows and structure. */
import { useMemo } from "preact/hooks";
import { session } from "../api/session";
import { formatRoute, parseRoute, type Route, route } from "../app/router";
import { Lazy } from "../parts/lazy";
import { formatBytes, formatCount } from "../parts/show";
import { Empty, FailureBox, Waiting } from "../parts/states";
import { ListTable } from "../parts/table";
import { useStore } from "../parts/store";
import { loadSchema, type Schema, schema, schemaFailure, type Table } from "../sql/schema";
import { type FilterRule, type Operator, OPERATORS } from "./pages";
import { RowsView } from "./rowsview";
import { StructureView } from "./structure";
import { Tree } from "./tree";

export function DataPage() {
  const at = useStore(route);
  const known = useStore(schema);
  const failure = useStore(schemaFailure);
  if (!known) {
    return (
      <div class="page">
        {failure ? (
          <FailureBox failure={failure} onRetry={() => void loadSchema()} />
        ) : (
          <Waiting what="Reading the schema" />
        )}
      </div>
    );
  }
  const [schemaName, tableName] = at.parts;
  const table = known.tables.find((one) => one.schema === schemaName && one.name === tableName);
  return (
    <div class="data-page">
      <Tree known={known} chosen={table} isFolded={tableName !== undefined || at.params.has("view")} />
      <section class="data-main" aria-label={tableName ?? "Tables"}>
        {tableName ? (
          table ? (
            <TableView key={JSON.stringify(at.parts.slice(0, 2)) + at.params.toString()} table={table} at={at} />
          ) : (
            <NoTable name={tableName} />
          )
        ) : (
          <Special known={known} view={at.params.get("view")} />
        )}
      </section>
    </div>
  );
}

function NoTable({ name }: { name: string }) {
  return (
    <Empty title={`There is no table ${name} here`}>
      <p>It may have been dropped or renamed, or your key may not see it.</p>
      <button type="button" onClick={() => void loadSchema()}>
        Load the schema again
      </button>
    </Empty>
  );
}

/** Read the filters of an address; what is no filter is left out. */
function readFilters(at: Route, table: Table): FilterRule[] {
  try {
    const rules = JSON.parse(at.params.get("where") ?? "[]") as unknown[][];
    return rules.flatMap(([column, operator, value]) =>
      table.columns.some((one) => one.name === column) && OPERATORS.includes(operator as Operator)
        ? [{ column: String(column), operator: operator as Operator, value: String(value ?? "") }]
        : [],
    );
  } catch {
    return [];
  }
}

function TableView({ table, at }: { table: Table; at: Route }) {
  const isStructure = at.parts[2] === "structure";
  const shape = JSON.stringify([table.kind, table.columns]);
  const filters = useMemo(() => readFilters(parseRoute(location.hash), table), [shape]);
  const tabs: [string, string, boolean][] = [
    ["Rows", formatRoute("data", [table.schema, table.name]), !isStructure],
    ["Structure", formatRoute("data", [table.schema, table.name, "structure"]), isStructure],
  ];
  return (
    <>
      <header class="data-head">
        <h1 title={`${table.schema}.${table.name}`}>
          <span class="faint">{table.schema}.</span>
          <bdi>{table.name}</bdi>
        </h1>
        <span class="faint">
          {table.kind}
          {table.row_estimate !== null && `, about ${formatCount(Math.round(table.row_estimate))} rows`}
          {table.size_bytes ? `, ${formatBytes(table.size_bytes)}` : ""}
        </span>
        <nav class="subnav" aria-label="Of this table">
          {tabs.map(([title, address, isCurrent]) => (
            <a key={title} href={address} aria-current={isCurrent ? "page" : undefined}>
              {title}
            </a>
          ))}
        </nav>
      </header>
      {isStructure ? <StructureView table={table} /> : <RowsView key={shape} table={table} filters={filters} />}
    </>
  );
}

function Special({ known, view }: { known: Schema; view: string | null }) {
  if (view === "diagram")
    return <Lazy load={async () => (await import("./diagram")).Diagram} what="The diagram" props={{}} />;
  if (view === "import")
    return <Lazy load={async () => (await import("./import")).ImportView} what="The import" props={{}} />;
  return <TableList known={known} />;
}

function TableList({ known }: { known: Schema }) {
  return (
    <div class="page">
      <div class="page-head">
        <h1>Data</h1>
        <div class="toolbar">
          {session.allows("write") && (
            <a class="button" href={formatRoute("data", [], { view: "import" })}>
              Import a CSV file
            </a>
          )}
          <a class="button" href={formatRoute("data", [], { view: "diagram" })}>
            Diagram
          </a>
        </div>
      </div>
      {known.tables.length === 0 ? (
        <Empty title="This database is empty">
          <p>
            Make a table on the{" "}
            <a
              href={formatRoute("query", [], {
                sql: "create table city (\n  id bigint generated always as identity primary key,\n  name text not null\n)",
              })}
            >
              Query page
            </a>
            , or import a CSV file.
          </p>
        </Empty>
      ) : (
        <ListTable head={["Table", "Kind", "Columns", "Rows, about", "Size"]} right={[2, 3, 4]}>
          {known.tables.map((table) => (
            <tr key={`${table.schema}.${table.name}`}>
              <td>
                <a href={formatRoute("data", [table.schema, table.name])}>
                  <bdi>{table.schema === "public" ? table.name : `${table.schema}.${table.name}`}</bdi>
                </a>
              </td>
              <td>{table.kind}</td>
              <td class="right">{table.columns.length}</td>
              <td class="right">{table.row_estimate === null ? "–" : formatCount(Math.round(table.row_estimate))}</td>
              <td class="right">{table.size_bytes ? formatBytes(table.size_bytes) : "–"}</td>
            </tr>
          ))}
        </ListTable>
      )}
    </div>
  );
}
