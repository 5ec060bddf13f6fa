/** The rows of a table: pages by key, filters, foreign keys to follow, and edits that are staged. */
import { useEffect, useState } from "preact/hooks";
import { asFailure } from "../api/http";
import { asJson } from "../api/json";
import { querySmall } from "../api/query";
import { session } from "../api/session";
import type { Row } from "../api/types";
import { database } from "../app/database";
import { formatRoute, replaceAddress } from "../app/router";
import { CellValue, Grid, type Place } from "../grid/grid";
import { Viewer } from "../grid/viewer";
import { plural } from "../parts/show";
import { Empty, FailureBox, useLoaded, Waiting } from "../parts/states";
import { useStore } from "../parts/store";
import { tell } from "../parts/toast";
import { Toggle } from "../parts/toggle";
import { isParent, type Table } from "../sql/schema";
import { CellEditor } from "./celleditor";
import { editsOf, idOf, type Named, newRowOf, readWhole, stageInsert } from "./edits";
import { Filters } from "./filters";
import { Follow, LinkedValue } from "./follow";
import { InsertDialog } from "./insert";
import { buildPage, type Cursor, type FilterRule, isCut, keyOf, type Order, PAGE_ROWS, pagingOf } from "./pages";
import { focusGrid, type RowEdits, useRowEdits } from "./rowedits";
import { Staged } from "./staged";

interface RowsViewProps {
  table: Table;
  filters: FilterRule[];
}

interface PageState {
  cursor: Cursor | null;
  number: number;
}

const FIRST: PageState = { cursor: null, number: 1 };

/** The table never changes for one that is shown: rows and their edits are read by its columns. */
export function RowsView({ table, filters: given }: RowsViewProps) {
  const from = useStore(database);
  const [filters, setFilters] = useState(given);
  const [order, setOrder] = useState<Order | null>(null);
  const [at, setAt] = useState<PageState>(FIRST);
  const edits = editsOf(from, table);
  const loaded = useLoaded(async () => {
    const { sql, params } = buildPage(table, filters, order, at.cursor);
    const { rows } = await querySmall(sql, params, from);
    const hasMore = rows.length > PAGE_ROWS;
    const shown = rows.slice(0, PAGE_ROWS);
    return { rows: at.cursor?.isBefore ? shown.reverse() : shown, hasMore };
  }, [table.schema, table.name, filters, order, at, from]);
  const changeFilters = (changed: FilterRule[]) => {
    setFilters(changed);
    setAt(FIRST);
    const params: Record<string, string> = changed.length
      ? { where: JSON.stringify(changed.map((rule) => [rule.column, rule.operator, rule.value])) }
      : {};
    replaceAddress(formatRoute("data", [table.schema, table.name], params));
  };
  const rows = loaded.value?.rows ?? [];
  const cursorOf = (row: Row | undefined, isBefore: boolean): Cursor =>
    makeCursor(table, order, row, isBefore, (at.number - (isBefore ? 2 : 0)) * PAGE_ROWS);
  return (
    <div class="data-rows">
      <Filters table={table} filters={filters} onChange={changeFilters} />
      {loaded.failure && <FailureBox failure={loaded.failure} onRetry={loaded.reload} />}
      {!loaded.value && !loaded.failure && <Waiting what={`Reading ${table.name}`} />}
      {loaded.value && (
        <TableGrid
          table={table}
          rows={rows}
          page={at}
          order={order}
          onOrder={(changed) => {
            setOrder(changed);
            setAt(FIRST);
          }}
        />
      )}
      <Staged table={table} edits={edits} onApplied={loaded.reload} />
      <Pager
        count={rows.length}
        number={at.number}
        isLoading={loaded.isLoading}
        hasNext={at.cursor?.isBefore ? true : (loaded.value?.hasMore ?? false)}
        hasBefore={at.number > 1}
        onNext={() => setAt({ cursor: cursorOf(rows.at(-1), false), number: at.number + 1 })}
        onBefore={() => setAt(at.number === 2 ? FIRST : { cursor: cursorOf(rows[0], true), number: at.number - 1 })}
        onReload={loaded.reload}
      />
    </div>
  );
}

function makeCursor(
  table: Table,
  order: Order | null,
  row: Row | undefined,
  isBefore: boolean,
  offset: number,
): Cursor {
  const valueOf = (name: string) =>
    (row?.[table.columns.findIndex((column) => column.name === name)] ?? null) as string | null;
  const key =
    pagingOf(table) === "ctid"
      ? [String(row?.[table.columns.length] ?? "")]
      : keyOf(table).map((name) => valueOf(name) ?? "");
  return { isBefore, sorted: order ? valueOf(order.column) : null, key, offset };
}

interface PagerProps {
  count: number;
  number: number;
  hasNext: boolean;
  hasBefore: boolean;
  isLoading: boolean;
  onNext: () => void;
  onBefore: () => void;
  onReload: () => void;
}

function Pager({ count, number, hasNext, hasBefore, isLoading, onNext, onBefore, onReload }: PagerProps) {
  return (
    <div class="toolbar pager">
      <button
        type="button"
        class="small"
        aria-label="Page before"
        disabled={!hasBefore || isLoading}
        onClick={onBefore}
      >
        <span class="wide-only">Page before</span>
        <span class="narrow-only">before</span>
      </button>
      <span role="status">
        Page {number}, {plural(count, "row")}
      </span>
      <button type="button" class="small" aria-label="Next page" disabled={!hasNext || isLoading} onClick={onNext}>
        <span class="wide-only">Next page</span>
        <span class="narrow-only">Next</span>
      </button>
      <button type="button" class="small quiet" aria-label="Load again" onClick={onReload}>
        <span class="wide-only">Load again</span>
        <span class="narrow-only">⟳</span>
      </button>
    </div>
  );
}

interface TableGridProps {
  table: Table;
  rows: Row[];
  page: PageState;
  order: Order | null;
  onOrder: (order: Order | null) => void;
}

function TableGrid({ table, rows, page, order, onOrder }: TableGridProps) {
  const work = useRowEdits(table, rows);
  const [active, setActive] = useState<Place | null>(null);
  const [isViewing, setViewing] = useState(false);
  useEffect(() => {
    setActive(null);
    document.querySelector(".data-rows .grid")?.scrollTo(0, 0);
  }, [page]);
  const open = (place: Place) => {
    setActive(place);
    if (work.mayEdit) void work.open(place);
    else setViewing(true);
  };
  return (
    <>
      <div class="toolbar data-tools">
        <EditTools table={table} work={work} active={active} />
        <Toggle label="Value" isOn={isViewing} isDisabled={!active} onChange={setViewing} />
        {active && <Follow table={table} row={rows[active.row]} column={active.column} />}
      </div>
      {work.failure && <FailureBox failure={work.failure} />}
      {rows.length === 0 ? (
        <Empty title="No rows here">
          <p>Nothing fits the filters, or the table is empty. New row adds one, Import brings a CSV file.</p>
        </Empty>
      ) : (
        <div class="rows-and-value">
          <Grid
            {...makeGridProps(table, rows, work)}
            active={active}
            onActive={setActive}
            onOpen={open}
            sorting={order && { column: placeOf(table, order.column), descending: order.descending }}
            onSort={(column) => onOrder(nextOrder(order, table.columns[column]!.name))}
          />
          {isViewing && active && (
            <TableViewer
              table={table}
              place={active}
              value={work.valueAt(active.row, active.column)}
              rowKey={work.keyAt(active.row)}
              onClose={() => setViewing(false)}
            />
          )}
        </div>
      )}
    </>
  );
}

function placeOf(table: Table, name: string): number {
  return table.columns.findIndex((column) => column.name === name);
}

/** Return how the grid shows the rows and their staged edits. */
function makeGridProps(table: Table, rows: Row[], work: RowEdits) {
  const { editing, valueAt, editAt } = work;
  const renderCell = (place: Place, value: Row[number]) =>
    editing && work.isEditingAt(place) ? (
      <CellEditor
        key={idOf(editing.key)}
        column={table.columns[place.column]!}
        value={editing.value}
        onStage={(typed) => work.stage(editing, typed)}
        onLeave={() => work.close(editing)}
        onDone={focusGrid}
      />
    ) : (
      <LinkedValue table={table} row={rows[place.row]!} column={place.column}>
        <CellValue value={value} />
      </LinkedValue>
    );
  const removeOnDelete = (event: KeyboardEvent, place: Place) => {
    const isRemoved = event.key === "Delete" && work.mayEdit;
    if (isRemoved) work.remove(place.row);
    return isRemoved;
  };
  return {
    label: `Rows of ${table.name}`,
    columns: gridColumns(table),
    count: rows.length,
    getRow: (row: number) => table.columns.map((_, column) => valueAt(row, column)),
    renderCell,
    onKey: removeOnDelete,
    cellClass: (place: Place) => (work.changeAt(place.row, place.column) ? "changed" : ""),
    rowClass: (row: number) => (editAt(row)?.kind === "delete" ? "deleted" : ""),
  };
}

function EditTools({ table, work, active }: { table: Table; work: RowEdits; active: Place | null }) {
  const newRow = newRowOf(useStore(database), table);
  const values = useStore(newRow);
  if (!work.mayEdit) return <span class="faint">{whyReadOnly(table)}</span>;
  return (
    <>
      <button type="button" class="small" onClick={() => newRow.set({})}>
        New row
      </button>
      <button type="button" class="small" disabled={!active} onClick={() => work.remove(active!.row)}>
        {active && work.editAt(active.row)?.kind === "delete" ? "Keep the row" : "Delete the row"}
      </button>
      {values && (
        <InsertDialog
          table={table}
          values={values}
          onChange={(changed) => newRow.set(changed)}
          onStage={() => stageInsert(work.edits, values)}
          onClose={() => newRow.set(null)}
        />
      )}
    </>
  );
}

function whyReadOnly(table: Table): string {
  if (!session.allows("write")) return "Your key may only read.";
  if (!/table$/.test(table.kind)) return `A ${table.kind} cannot be edited here.`;
  if (isParent(table)) return "Rows cannot be edited: other tables inherit from this one, and may repeat its keys.";
  return "Rows cannot be edited: the table has no primary key to tell them apart by.";
}

function gridColumns(table: Table) {
  return table.columns.map((column) => ({
    name: column.name,
    type: column.type,
    note: `${column.primary_key ? "key " : ""}${column.type}`,
  }));
}

function nextOrder(order: Order | null, column: string): Order | null {
  if (order?.column !== column) return { column, descending: false };
  return order.descending ? null : { column, descending: true };
}

function TableViewer({
  table,
  place,
  value,
  rowKey,
  onClose,
}: {
  table: Table;
  place: Place;
  value: string | null;
  rowKey: Named;
  onClose: () => void;
}) {
  const column = table.columns[place.column]!;
  const from = useStore(database);
  const [whole, setWhole] = useState(value);
  useEffect(() => {
    setWhole(value);
    if (isCut(value) && Object.keys(rowKey).length) {
      readWhole(table, rowKey, column.name, from).then(
        (read) => setWhole(read.value),
        (error: unknown) => tell(asFailure(error).message, "failed"),
      );
    }
  }, [value, idOf(rowKey)]);
  const isJson = /^jsonb?$/.test(column.type);
  return (
    <Viewer
      value={isJson && whole !== null ? asJson(whole) : whole}
      name={column.name}
      type={column.type.endsWith("[]") ? "text" : column.type}
      onClose={onClose}
    />
  );
}
