/** The rows of a table: pages by key, filters, foreign keys to follow, and edits that are staged. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { asFailure, type Failure } from "../api/http";
import { querySmall } from "../api/query";
import { session } from "../api/session";
import type { Row } from "../api/types";
import { database } from "../app/database";
import { formatRoute, go, replaceAddress } from "../app/router";
import { CellValue, Grid, type Place } from "../grid/grid";
import { Viewer } from "../grid/viewer";
import { plural } from "../parts/show";
import { Empty, FailureBox, useLoaded, Waiting } from "../parts/states";
import { useStore } from "../parts/store";
import { tell } from "../parts/toast";
import { type ForeignKey, schema, type Table } from "../sql/schema";
import { CellEditor } from "./celleditor";
import { editsOf, idOf, readWhole, stageChange, stageDelete } from "./edits";
import { Filters } from "./filters";
import { InsertDialog } from "./insert";
import { buildPage, type Cursor, type FilterRule, isCut, keyOf, type Order, PAGE_ROWS, pagingOf } from "./pages";
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
      <button type="button" class="small" disabled={!hasBefore || isLoading} onClick={onBefore}>
        Page before
      </button>
      <span role="status">
        Page {number}, {plural(count, "row")}
      </span>
      <button type="button" class="small" disabled={!hasNext || isLoading} onClick={onNext}>
        Next page
      </button>
      <button type="button" class="small quiet" onClick={onReload}>
        Load again
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

interface Editing extends Place {
  value: string | null;
  isWhole: boolean;
}

/** What can be done with the rows that are shown, and what is staged for them. */
function useRowEdits(table: Table, rows: Row[]) {
  const from = useStore(database);
  const store = editsOf(from, table);
  const edits = useStore(store);
  const [editing, setEditing] = useState<Editing | null>(null);
  const [failure, setFailure] = useState<Failure | null>(null);
  const key = keyOf(table);
  const mayEdit = session.allows("write") && key.length > 0 && /table$/.test(table.kind);
  const byId = useMemo(() => new Map(edits.map((edit) => [edit.id, edit])), [edits]);
  const shownAt = (row: number, column: number) => (rows[row]?.[column] ?? null) as string | null;
  const keyAt = (row: number) =>
    key.map(
      (name) =>
        shownAt(
          row,
          table.columns.findIndex((column) => column.name === name),
        ) ?? "",
    );
  const editAt = (row: number) => (key.length ? byId.get(idOf(keyAt(row))) : undefined);
  const changeAt = (row: number, column: number) => {
    const edit = editAt(row);
    return edit?.kind === "update" ? edit.changes[table.columns[column]!.name] : undefined;
  };
  const valueAt = (row: number, column: number) => {
    const change = changeAt(row, column);
    return change ? change.value : shownAt(row, column);
  };
  useEffect(() => setEditing(null), [rows]);
  const open = async (place: Place) => {
    setFailure(null);
    const shown = valueAt(place.row, place.column);
    try {
      const whole = isCut(shown)
        ? await readWhole(table, keyAt(place.row), table.columns[place.column]!.name, from)
        : shown;
      setEditing({ ...place, value: whole as string | null, isWhole: isCut(shown) });
    } catch (error) {
      setFailure(asFailure(error));
    }
  };
  const finish = (value: string | null) => {
    const { row, column, isWhole, value: before } = editing!;
    setEditing(null);
    stageChange(store, keyAt(row), table.columns[column]!.name, {
      old: isWhole ? before : shownAt(row, column),
      isWhole,
      value,
    });
    focusGrid();
  };
  const remove = (row: number) =>
    stageDelete(
      store,
      keyAt(row),
      table.columns.map((_, column) => shownAt(row, column)),
    );
  const leave = () => {
    setEditing(null);
    focusGrid();
  };
  return { store, edits, editing, failure, mayEdit, keyAt, editAt, changeAt, valueAt, open, finish, remove, leave };
}

function TableGrid({ table, rows, page, order, onOrder }: TableGridProps) {
  const work = useRowEdits(table, rows);
  const { editing, mayEdit, valueAt, editAt } = work;
  const [active, setActive] = useState<Place | null>(null);
  const [isViewing, setViewing] = useState(false);
  const [isInserting, setInserting] = useState(false);
  useEffect(() => {
    setActive(null);
    document.querySelector(".data-rows .grid")?.scrollTo(0, 0);
  }, [page]);
  const open = (place: Place) => {
    setActive(place);
    if (mayEdit) void work.open(place);
    else setViewing(true);
  };
  const renderCell = (place: Place, value: Row[number]) =>
    editing?.row === place.row && editing.column === place.column ? (
      <CellEditor
        column={table.columns[place.column]!}
        value={editing.value}
        onDone={work.finish}
        onCancel={work.leave}
      />
    ) : (
      <LinkedValue table={table} row={rows[place.row]!} column={place.column}>
        <CellValue value={value} />
      </LinkedValue>
    );
  return (
    <>
      <div class="toolbar data-tools">
        {mayEdit ? (
          <>
            <button type="button" class="small" onClick={() => setInserting(true)}>
              New row
            </button>
            <button type="button" class="small" disabled={!active} onClick={() => work.remove(active!.row)}>
              {active && editAt(active.row)?.kind === "delete" ? "Keep the row" : "Delete the row"}
            </button>
          </>
        ) : (
          <span class="faint">{whyReadOnly(table)}</span>
        )}
        <button
          type="button"
          class="small"
          disabled={!active}
          aria-pressed={isViewing}
          onClick={() => setViewing(!isViewing)}
        >
          Value
        </button>
        {active && <Follow table={table} row={rows[active.row]} column={active.column} />}
      </div>
      {work.failure && <FailureBox failure={work.failure} />}
      {rows.length === 0 ? (
        <Empty title="No rows here">
          <p>
            {mayEdit
              ? "New row adds one, Import brings a CSV file."
              : "Nothing fits the filters, or the table is empty."}
          </p>
        </Empty>
      ) : (
        <div class="rows-and-value">
          <Grid
            label={`Rows of ${table.name}`}
            columns={gridColumns(table)}
            count={rows.length}
            getRow={(row) => table.columns.map((_, column) => valueAt(row, column))}
            active={active}
            onActive={setActive}
            onOpen={open}
            renderCell={renderCell}
            sorting={
              order
                ? {
                    column: table.columns.findIndex((column) => column.name === order.column),
                    descending: order.descending,
                  }
                : null
            }
            onSort={(column) => onOrder(nextOrder(order, table.columns[column]!.name))}
            onKey={(event, place) => {
              if (event.key === "Delete" && mayEdit) {
                work.remove(place.row);
                return true;
              }
              return false;
            }}
            cellClass={(place) => (work.changeAt(place.row, place.column) ? "changed" : "")}
            rowClass={(row) => (editAt(row)?.kind === "delete" ? "deleted" : "")}
          />
          {isViewing && active && (
            <TableViewer
              table={table}
              place={active}
              value={valueAt(active.row, active.column)}
              rowKey={work.keyAt(active.row)}
              onClose={() => setViewing(false)}
            />
          )}
        </div>
      )}
      {isInserting && <InsertDialog table={table} edits={work.store} onClose={() => setInserting(false)} />}
    </>
  );
}

function focusGrid(): void {
  window.setTimeout(() => document.querySelector<HTMLElement>(".data-rows .grid")?.focus());
}

function whyReadOnly(table: Table): string {
  if (!session.allows("write")) return "Your key may only read.";
  if (!/table$/.test(table.kind)) return `A ${table.kind} cannot be edited here.`;
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
  rowKey: string[];
  onClose: () => void;
}) {
  const column = table.columns[place.column]!;
  const from = useStore(database);
  const [whole, setWhole] = useState(value);
  useEffect(() => {
    setWhole(value);
    if (isCut(value) && rowKey.length) {
      readWhole(table, rowKey, column.name, from).then(
        (read) => setWhole(read as string | null),
        (error: unknown) => tell(asFailure(error).message, "failed"),
      );
    }
  }, [value, idOf(rowKey)]);
  const isJson = /^jsonb?$/.test(column.type);
  return (
    <Viewer
      value={isJson && whole !== null ? parseJson(whole) : whole}
      name={column.name}
      type={column.type.endsWith("[]") ? "text" : column.type}
      onClose={onClose}
    />
  );
}

function parseJson(text: string) {
  try {
    return JSON.parse(text) as Row[number];
  } catch {
    return text;
  }
}

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
function LinkedValue({
  table,
  row,
  column,
  children,
}: {
  table: Table;
  row: Row;
  column: number;
  children: preact.ComponentChildren;
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
function Follow({ table, row, column }: { table: Table; row: Row | undefined; column: number }) {
  if (!row) return null;
  const name = table.columns[column]!.name;
  const out = keysFrom(table)
    .filter((key) => key.columns.includes(name))
    .map((key) => ({ title: `→ ${key.toTable}`, address: addressOf(key, table, row) }));
  const back = (schema.value?.foreignKeys ?? [])
    .filter((key) => key.toSchema === table.schema && key.toTable === table.name)
    .map((key) => {
      const values = key.toColumns.map((one) => row[table.columns.findIndex((other) => other.name === one)] ?? null);
      const rules = key.columns.map((one, at) => [one, "=", String(values[at])]);
      return {
        title: `← ${key.table}.${key.columns.join(", ")}`,
        address: formatRoute("data", [key.schema, key.table], { where: JSON.stringify(rules) }),
      };
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
