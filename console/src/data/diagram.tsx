/** Tables and their foreign keys as a picture. Tables that refer to others stand right of them. */
import { useMemo } from "preact/hooks";
import { formatRoute } from "../app/router";
import { plural } from "../parts/show";
import { Empty } from "../parts/states";
import { useStore } from "../parts/store";
import { type ForeignKey, type Schema, schema, type Table } from "../sql/schema";

const WIDTH = 220;
const LINE = 18;
const HEAD = 26;
const GAP_X = 90;
const GAP_Y = 24;
const COLUMNS_MAX = 12;
const TABLES_MAX = 150;
const HEIGHT_WANTED = 900;

interface Box {
  table: Table;
  x: number;
  y: number;
  height: number;
  shown: Table["columns"];
}

function nameOf(of: { schema: string; name: string }): string {
  return JSON.stringify([of.schema, of.name]);
}

/** Return how deep a table stands: one more than the deepest that it refers to. */
function findDepths(tables: Table[], keys: ForeignKey[]): Map<string, number> {
  const depths = new Map(tables.map((table) => [nameOf(table), 0]));
  for (let round = 0; round < Math.min(tables.length, 12); round++) {
    for (const key of keys) {
      const from = nameOf({ schema: key.schema, name: key.table });
      const to = nameOf({ schema: key.toSchema, name: key.toTable });
      if (from !== to && depths.has(from) && depths.has(to))
        depths.set(from, Math.min(12, Math.max(depths.get(from)!, depths.get(to)! + 1)));
    }
  }
  return depths;
}

function layOut(known: Schema): Map<string, Box> {
  const keys = known.foreignKeys;
  const tables = known.tables.filter((table) => /table$/.test(table.kind)).slice(0, TABLES_MAX);
  const depths = findDepths(tables, keys);
  const boxes = new Map<string, Box>();
  let x = 20;
  for (const depth of [...new Set(depths.values())].sort((a, b) => a - b)) {
    let y = 20;
    for (const table of tables.filter((one) => depths.get(nameOf(one)) === depth)) {
      const inKeys = new Set(
        keys.filter((key) => key.schema === table.schema && key.table === table.name).flatMap((key) => key.columns),
      );
      const shown = [...table.columns].sort((a, b) => weigh(b, inKeys) - weigh(a, inKeys)).slice(0, COLUMNS_MAX);
      const more = table.columns.length > shown.length ? 1 : 0;
      const height = HEAD + (shown.length + more) * LINE + 6;
      if (y > 20 && y + height > HEIGHT_WANTED) {
        y = 20;
        x += WIDTH + GAP_X;
      }
      boxes.set(nameOf(table), { table, x, y, height, shown });
      y += height + GAP_Y;
    }
    x += WIDTH + GAP_X;
  }
  return boxes;
}

function weigh(column: Table["columns"][number], inKeys: Set<string>): number {
  return column.primary_key ? 2 : inKeys.has(column.name) ? 1 : 0;
}

const SMALLEST = 0.7;

export function Diagram() {
  const known = useStore(schema)!;
  const boxes = useMemo(() => layOut(known), [known]);
  const all = [...boxes.values()];
  if (all.length === 0)
    return (
      <Empty title="There are no tables to draw">
        <p>Make one on the Query page, or import a CSV file.</p>
      </Empty>
    );
  const width = Math.max(...all.map((box) => box.x)) + WIDTH + 30;
  const height = Math.max(...all.map((box) => box.y + box.height)) + 20;
  return (
    <div class="diagram-page">
      <div class="page-head data-head">
        <h1>Diagram</h1>
        <span class="faint">
          {plural(all.length, "table")}, {plural(known.foreignKeys.length, "foreign key")}
          {known.tables.length > TABLES_MAX ? `; the first ${TABLES_MAX} are drawn` : ""}
        </span>
      </div>
      <div class="diagram" tabIndex={0} role="group" aria-label="Tables and foreign keys">
        <svg style={fit(width)} viewBox={`0 0 ${width} ${height}`}>
          {known.foreignKeys.map((key) => (
            <Link key={key.schema + key.table + key.name} foreign={key} boxes={boxes} />
          ))}
          {all.map((box) => (
            <TableBox key={nameOf(box.table)} box={box} />
          ))}
        </svg>
      </div>
    </div>
  );
}

/** As wide as the page, but neither larger than it is drawn nor too small to read. */
function fit(width: number): { width: string } {
  return { width: `max(min(100%, ${width}px), ${Math.round(width * SMALLEST)}px)` };
}

function TableBox({ box }: { box: Box }) {
  const { table, x, y, height, shown } = box;
  const title = table.schema === "public" ? table.name : `${table.schema}.${table.name}`;
  return (
    <a href={formatRoute("data", [table.schema, table.name])}>
      <g transform={`translate(${x} ${y})`}>
        <rect class="box" width={WIDTH} height={height} rx="6" />
        <rect class="box-head" width={WIDTH} height={HEAD} rx="6" />
        <text class="box-title" x="10" y="17">
          {cut(title, 28)}
        </text>
        {shown.map((column, at) => (
          <g key={column.name} transform={`translate(0 ${HEAD + at * LINE + 14})`}>
            <text class={column.primary_key ? "box-key" : "box-column"} x="10">
              {cut(column.name, 18)}
            </text>
            <text class="box-type" x={WIDTH - 8} text-anchor="end">
              {cut(column.type, 12)}
            </text>
          </g>
        ))}
        {table.columns.length > shown.length && (
          <text class="box-type" x="10" y={HEAD + shown.length * LINE + 14}>
            {table.columns.length - shown.length} more
          </text>
        )}
      </g>
    </a>
  );
}

function cut(text: string, length: number): string {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}

function Link({ foreign, boxes }: { foreign: ForeignKey; boxes: Map<string, Box> }) {
  const from = boxes.get(nameOf({ schema: foreign.schema, name: foreign.table }));
  const to = boxes.get(nameOf({ schema: foreign.toSchema, name: foreign.toTable }));
  if (!from || !to) return null;
  const heightOf = (box: Box, column: string | undefined) => {
    const at = box.shown.findIndex((one) => one.name === column);
    return box.y + HEAD + (at < 0 ? box.shown.length : at) * LINE + 10;
  };
  const y1 = heightOf(from, foreign.columns[0]);
  const y2 = heightOf(to, foreign.toColumns[0]);
  const isSame = from.x === to.x;
  const x1 = isSame ? from.x + WIDTH : from.x;
  const x2 = to.x + WIDTH;
  const bend = isSame ? 50 : Math.max(40, Math.abs(x1 - x2) / 2);
  const path = isSame
    ? `M${x1} ${y1} C${x1 + bend} ${y1} ${x2 + bend} ${y2} ${x2} ${y2}`
    : `M${x1} ${y1} C${x1 - bend} ${y1} ${x2 + bend} ${y2} ${x2} ${y2}`;
  return (
    <path class="link" d={path}>
      <title>{`${foreign.table}.${foreign.columns.join(", ")} → ${foreign.toTable}.${foreign.toColumns.join(", ")}`}</title>
    </path>
  );
}
