/** The rows of a result: grid, filter, chart, copies and files, and the value that is looked at. */
import { useEffect, useMemo, useState } from "preact/hooks";
import type { Value } from "../api/types";
import { FORMATS, type Format, guessTable, writeBlob, writeText } from "../grid/files";
import { Grid, type Place, type Sorting } from "../grid/grid";
import type { Rows } from "../grid/rows";
import { csvLine, insertStatement, isJsonType, rowJson, valueText } from "../grid/values";
import { type View, useView } from "../grid/view";
import { Viewer } from "../grid/viewer";
import { Lazy } from "../parts/lazy";
import { Menu } from "../parts/menu";
import { plural, saveFile } from "../parts/show";
import { Empty } from "../parts/states";
import { copyText, tell } from "../parts/toast";
import { Toggle } from "../parts/toggle";

const loadChart = async () => (await import("./chart")).Chart;

interface RowsPaneProps {
  rows: Rows;
  /** Rises as rows come: the pane is drawn again. */
  version: number;
  isComplete: boolean;
  sql: string;
}

export function RowsPane({ rows, isComplete, sql }: RowsPaneProps) {
  const [sorting, setSorting] = useState<Sorting | null>(null);
  const [filter, setFilter] = useState("");
  const [active, setActive] = useState<Place | null>(null);
  const [isViewing, setViewing] = useState(false);
  const [isChart, setChart] = useState(false);
  const view = useView(rows, isComplete, sorting, filter);
  const at = (index: number) => view.order?.[index] ?? index;
  const count = view.order?.length ?? rows.count;
  const columns = useMemo(
    () => rows.columns.map((name, index) => ({ name, type: rows.types[index]! })),
    [rows, rows.columns],
  );
  const sort = (column: number) => {
    if (sorting?.column !== column) setSorting({ column, descending: false });
    else setSorting(sorting.descending ? null : { column, descending: true });
    setActive(null);
  };
  const value = active && active.row < count ? (rows.get(at(active.row))[active.column] ?? null) : null;
  const open = (place: Place) => {
    setActive(place);
    setViewing(true);
  };
  const closeOnEscape = (event: KeyboardEvent) => {
    const isClosed = event.key === "Escape" && isViewing;
    if (isClosed) setViewing(false);
    return isClosed;
  };
  return (
    <div class="rows-pane">
      <div class="toolbar">
        <Filter value={filter} onChange={setFilter} isReady={isComplete} view={view} count={count} total={rows.count} />
        <CopyMenu rows={rows} count={count} at={at} active={active} sql={sql} />
        <DownloadMenu rows={rows} count={count} at={at} sql={sql} isReady={isComplete} />
        <Toggle label="Chart" isOn={isChart} isDisabled={!isComplete || count === 0} onChange={setChart} />
        <Toggle label="Value" isOn={isViewing} isDisabled={!active} onChange={setViewing} />
      </div>
      {isChart && <Lazy load={loadChart} what="The chart" props={{ rows, count, at }} />}
      <div class="rows-and-value">
        {rows.count === 0 && isComplete ? (
          <Empty title="No rows">
            <p>The statement returned {plural(columns.length, "column")} and no row.</p>
          </Empty>
        ) : (
          <Grid
            label="Rows"
            columns={columns}
            count={count}
            getRow={(index) => rows.get(at(index))}
            sorting={sorting}
            {...(isComplete ? { onSort: sort } : {})}
            active={active}
            onActive={setActive}
            onOpen={open}
            onKey={closeOnEscape}
            renderCell={(place, shown) => renderJsonNull(shown, rows.types[place.column])}
          />
        )}
        {isViewing && active && (
          <ResultViewer rows={rows} column={active.column} value={value} onClose={() => setViewing(false)} />
        )}
      </div>
    </div>
  );
}

const JSON_NULL = "NULL, or the null of JSON: an answer has one word for both. IS NULL tells them apart.";

/** Show a null of a JSON column as what it may be; other values as usual. */
function renderJsonNull(value: Value, type: string | undefined) {
  if (value !== null || !isJsonType(type)) return null;
  return (
    <span class="null" title={JSON_NULL}>
      NULL or null
    </span>
  );
}

interface ResultViewerProps {
  rows: Rows;
  column: number;
  value: Value;
  onClose: () => void;
}

function ResultViewer({ rows, column, value, onClose }: ResultViewerProps) {
  const type = rows.types[column]!;
  const note = isJsonType(type) ? { nullText: JSON_NULL } : {};
  return <Viewer value={value} name={rows.columns[column]!} type={type} {...note} onClose={onClose} />;
}

interface FilterProps {
  value: string;
  onChange: (value: string) => void;
  isReady: boolean;
  view: View;
  count: number;
  total: number;
}

function Filter({ value, onChange, isReady, view, count, total }: FilterProps) {
  const [typed, setTyped] = useState(value);
  useEffect(() => {
    const timer = window.setTimeout(() => onChange(typed), 150);
    return () => window.clearTimeout(timer);
  }, [typed]);
  return (
    <>
      <input
        type="search"
        class="filter"
        placeholder="Filter rows"
        aria-label="Filter rows"
        value={typed}
        disabled={!isReady}
        onInput={(event) => setTyped(event.currentTarget.value)}
      />
      {view.progress !== null && <progress max={1} value={view.progress} aria-label="Filtering and sorting" />}
      {view.order && count !== total && <span class="faint">{plural(count, "row")} of these</span>}
    </>
  );
}

interface Shown {
  rows: Rows;
  count: number;
  at: (index: number) => number;
  sql: string;
}

function CopyMenu({ rows, count, at, active, sql }: Shown & { active: Place | null }) {
  const place = active && active.row < count ? active : null;
  const row = () => rows.get(at(place!.row));
  const table = guessTable(sql);
  const all = (format: Format) =>
    writeText(rows, count, at, format, table).then((text) =>
      copyText(text, `${plural(count, "row")} copied as ${FORMATS[format].name}`),
    );
  const column = () => {
    const values = Array.from({ length: count }, (_, index) => valueText(rows.get(at(index))[place!.column] ?? null));
    return copyText(values.join("\n"), `Column ${rows.columns[place!.column]} copied`);
  };
  return (
    <Menu
      label="Copy"
      items={[
        {
          title: "Cell",
          isOff: !place,
          run: () => void copyText(valueText(row()[place!.column] ?? null), "Cell copied"),
        },
        { title: "Column", isOff: !place, run: () => void column() },
        {
          title: "Row as text",
          isOff: !place,
          run: () => void copyText(row().map(valueText).join("\t"), "Row copied"),
        },
        { title: "Row as CSV", isOff: !place, run: () => void copyText(csvLine(row()), "Row copied") },
        {
          title: "Row as JSON",
          isOff: !place,
          run: () => void copyText(rowJson(rows.columns, row(), true), "Row copied"),
        },
        {
          title: "Row as INSERT",
          isOff: !place,
          run: () => void copyText(insertStatement(table, rows.columns, rows.types, row()), "Row copied"),
        },
        ...(["csv", "json", "insert"] as const).map((format) => ({
          title: `All as ${FORMATS[format].name}`,
          isOff: count === 0,
          run: () => void all(format),
        })),
      ]}
    />
  );
}

function DownloadMenu({ rows, count, at, sql, isReady }: Shown & { isReady: boolean }) {
  const save = async (format: Format) => {
    const blob = await writeBlob(rows, count, at, format, guessTable(sql));
    saveFile(`result.${FORMATS[format].ending}`, blob);
    tell(`${plural(count, "row")} saved as ${FORMATS[format].name}.`);
  };
  const items = (["csv", "ndjson", "json", "insert"] as const).map((format) => ({
    title: FORMATS[format].name,
    isOff: !isReady,
    run: () => void save(format),
  }));
  return <Menu label="Download" items={items} />;
}
