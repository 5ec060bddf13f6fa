/** A table of any length and width of which only what is seen is drawn. One cell is active; keys move it. */
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Row, Value } from "../api/types";
import { copyText } from "../parts/toast";
import { cellText, isNumeric, kindOf, valueText } from "./values";
import { type ShownColumns, useColumns, useRows } from "./virtual";

export const ROW_HEIGHT = 27;
const NUMBER_WIDTH = 64;
const PAGE_ROWS = 20;

export interface GridColumn {
  name: string;
  type: string;
  note?: string;
}

export interface Place {
  row: number;
  column: number;
}

export interface Sorting {
  column: number;
  descending: boolean;
}

export interface GridProps {
  label: string;
  columns: GridColumn[];
  count: number;
  getRow: (index: number) => Row;
  rowLabel?: (index: number) => string;
  sorting?: Sorting | null;
  onSort?: (column: number) => void;
  active: Place | null;
  onActive: (place: Place) => void;
  onOpen?: (place: Place) => void;
  onKey?: (event: KeyboardEvent, place: Place) => boolean;
  cellClass?: (place: Place) => string;
  rowClass?: (index: number) => string;
  /** Drawn in place of a cell's value, as an editor. */
  renderCell?: (place: Place, value: Value) => ComponentChildren | null;
}

export function Grid(props: GridProps) {
  const { columns, count, active } = props;
  const element = useRef<HTMLDivElement>(null);
  const [widths, setWidths] = useWidths(props);
  const rows = useRows(() => element.current, count, ROW_HEIGHT, ROW_HEIGHT);
  const cells = useColumns(() => element.current, widths, NUMBER_WIDTH);
  useEffect(() => {
    if (!active || !element.current?.contains(document.activeElement)) return;
    rows.scrollTo(active.row);
    cells.scrollTo(active.column);
  }, [active?.row, active?.column]);
  const id = useMemo(() => `grid-${Math.random().toString(36).slice(2)}`, []);
  return (
    <div
      class="grid"
      role="grid"
      tabIndex={0}
      ref={element}
      aria-label={props.label}
      aria-rowcount={count + 1}
      aria-colcount={columns.length + 1}
      aria-activedescendant={active ? `${id}-${active.row}-${active.column}` : undefined}
      onKeyDown={(event) => handleKey(event, props)}
      onFocus={() => {
        if (!active && count && columns.length) props.onActive({ row: 0, column: 0 });
      }}
    >
      <div class="grid-canvas" role="presentation" style={{ height: `${rows.size}px`, width: `${cells.size}px` }}>
        <Head props={props} cells={cells} widths={widths} setWidths={setWidths} />
        {Array.from({ length: Math.max(0, rows.end - rows.first) }, (_, at) => rows.first + at).map((index) => (
          <GridRow key={index} id={id} index={index} top={rows.place(index)} cells={cells} props={props} />
        ))}
      </div>
    </div>
  );
}

interface HeadProps {
  props: GridProps;
  cells: ShownColumns;
  widths: number[];
  setWidths: (widths: number[]) => void;
}

function Head({ props, cells, widths, setWidths }: HeadProps) {
  const sortOf = (column: number) =>
    props.sorting?.column === column ? (props.sorting.descending ? "descending" : "ascending") : undefined;
  return (
    <div class="grid-head" role="row" aria-rowindex={1}>
      <div class="grid-number head" role="columnheader" aria-colindex={1} style={{ width: `${NUMBER_WIDTH}px` }}>
        <span class="hidden">Row</span>
      </div>
      {cells.items.map((item) => {
        const column = props.columns[item.index]!;
        const sort = sortOf(item.index);
        return (
          <div
            key={item.index}
            class="grid-cell head"
            role="columnheader"
            aria-colindex={item.index + 2}
            aria-sort={sort}
            title={`${column.name} ${column.type}`}
            style={{ left: `${item.start}px`, width: `${item.size}px` }}
          >
            <button
              type="button"
              tabIndex={-1}
              class="head-button"
              disabled={!props.onSort}
              onClick={() => props.onSort?.(item.index)}
            >
              <span class="head-name" dir="auto">
                {column.name}
              </span>
              <span class="head-type">{column.note ?? column.type}</span>
              {sort && <span aria-hidden="true">{sort === "ascending" ? "↑" : "↓"}</span>}
            </button>
            <span
              class="head-edge"
              aria-hidden="true"
              onPointerDown={(event) => resize(event, item.index, widths, setWidths)}
            />
          </div>
        );
      })}
    </div>
  );
}

interface RowProps {
  id: string;
  index: number;
  top: number;
  cells: ShownColumns;
  props: GridProps;
}

function GridRow({ id, index, top, cells, props }: RowProps) {
  const row = props.getRow(index);
  const { active } = props;
  return (
    <div
      class={`grid-row ${props.rowClass?.(index) ?? ""}`}
      role="row"
      aria-rowindex={index + 2}
      style={{ transform: `translateY(${top}px)` }}
    >
      <div class="grid-number" role="rowheader" aria-colindex={1} style={{ width: `${NUMBER_WIDTH}px` }}>
        {props.rowLabel ? props.rowLabel(index) : index + 1}
      </div>
      {cells.items.map((item) => {
        const place = { row: index, column: item.index };
        const value = row[item.index] ?? null;
        const isActive = active?.row === index && active.column === item.index;
        const type = props.columns[item.index]!.type;
        return (
          <div
            key={item.index}
            id={`${id}-${index}-${item.index}`}
            role="gridcell"
            aria-colindex={item.index + 2}
            aria-selected={isActive}
            class={`grid-cell kind-${kindOf(value, type)}${isNumeric(type) ? " right" : ""}${isActive ? " active" : ""} ${props.cellClass?.(place) ?? ""}`}
            style={{ left: `${item.start}px`, width: `${item.size}px` }}
            onMouseDown={(event) => {
              if (event.detail > 1) event.preventDefault();
              props.onActive(place);
            }}
            onDblClick={() => props.onOpen?.(place)}
          >
            {props.renderCell?.(place, value) ?? <CellValue value={value} />}
          </div>
        );
      })}
    </div>
  );
}

export function CellValue({ value }: { value: Value }) {
  if (value === null) return <span class="null">NULL</span>;
  if (value === "") return <span class="null">empty</span>;
  return <bdi>{cellText(value)}</bdi>;
}

const MOVES: Record<string, (place: Place, props: GridProps) => Place> = {
  ArrowDown: (at) => ({ ...at, row: at.row + 1 }),
  ArrowUp: (at) => ({ ...at, row: at.row - 1 }),
  ArrowRight: (at) => ({ ...at, column: at.column + 1 }),
  ArrowLeft: (at) => ({ ...at, column: at.column - 1 }),
  PageDown: (at) => ({ ...at, row: at.row + PAGE_ROWS }),
  PageUp: (at) => ({ ...at, row: at.row - PAGE_ROWS }),
  Home: (at) => ({ ...at, column: 0 }),
  End: (at, props) => ({ ...at, column: props.columns.length - 1 }),
};

function handleKey(event: KeyboardEvent, props: GridProps): void {
  const { active, count, columns } = props;
  if (!active || (event.target as HTMLElement).closest("input, textarea, select")) return;
  if (props.onKey?.(event, active)) {
    event.preventDefault();
    return;
  }
  const isControl = event.ctrlKey || event.metaKey;
  let to = MOVES[event.key]?.(active, props);
  if (isControl && event.key === "Home") to = { row: 0, column: 0 };
  if (isControl && event.key === "End") to = { row: count - 1, column: columns.length - 1 };
  if (to) {
    event.preventDefault();
    props.onActive({ row: clamp(to.row, count), column: clamp(to.column, columns.length) });
  } else if (event.key === "Enter") {
    event.preventDefault();
    props.onOpen?.(active);
  } else if (isControl && event.key.toLowerCase() === "c" && !String(window.getSelection())) {
    event.preventDefault();
    void copyText(valueText(props.getRow(active.row)[active.column] ?? null), "Cell copied");
  }
}

function clamp(value: number, count: number): number {
  return Math.max(0, Math.min(value, count - 1));
}

const SAMPLED_ROWS = 30;
const LETTER = 7.4;

/** Return widths that fit names and the first rows; they stay once the columns are known. */
function useWidths(props: GridProps): [number[], (widths: number[]) => void] {
  const { columns, count } = props;
  const names = columns.map((column) => column.name).join("\u0000");
  const isSampled = count > 0;
  const fitted = useMemo(() => fitWidths(props), [names, isSampled]);
  const [own, setOwn] = useState<{ for: number[]; widths: number[] } | null>(null);
  return [own?.for === fitted ? own.widths : fitted, (widths) => setOwn({ for: fitted, widths })];
}

function fitWidths({ columns, count, getRow }: GridProps): number[] {
  const letters = columns.map(
    (column) => Math.min(30, column.name.length) + Math.min(12, (column.note ?? column.type).length) * 0.85 + 1,
  );
  for (let row = 0; row < Math.min(count, SAMPLED_ROWS); row++) {
    const values = getRow(row);
    letters.forEach((length, at) => {
      letters[at] = Math.max(length, Math.min(46, cellText(values[at] ?? null).length));
    });
  }
  return letters.map((length) => Math.round(Math.max(64, length * LETTER + 22)));
}

function resize(event: PointerEvent, index: number, widths: number[], setWidths: (widths: number[]) => void): void {
  event.preventDefault();
  const from = event.clientX;
  const before = widths[index] ?? 100;
  const move = (moved: PointerEvent) => setWidths(widths.with(index, Math.max(40, before + moved.clientX - from)));
  const stop = () => {
    window.removeEventListener("pointermove", move);
    window.removeEventListener("pointerup", stop);
  };
  window.addEventListener("pointermove", move);
  window.addEventListener("pointerup", stop);
}
