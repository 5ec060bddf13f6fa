/** A chart of a result. Loaded when somebody asks for one. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { Value } from "../api/types";
import { isDark, theme } from "../app/theme";
import type { Rows } from "../grid/rows";
import { isNumeric } from "../grid/values";
import { formatCount } from "../parts/show";
import { Empty } from "../parts/states";
import { useStore } from "../parts/store";

const POINTS_MAX = 20_000;
const HEIGHT = 210;
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 });
const COLORS = {
  light: ["#0c6f6a", "#b4541a", "#4b4fb8", "#8a2f72", "#5a6b00"],
  dark: ["#52d0c0", "#f0a35e", "#9aa0ff", "#e48ac6", "#b9cf4a"],
};

export interface ChartProps {
  rows: Rows;
  count: number;
  at: (index: number) => number;
}

type Shape = "line" | "bars" | "points";

function isTime(type: string): boolean {
  return /^(timestamptz|timestamp|date)$/.test(type);
}

export function Chart({ rows, count, at }: ChartProps) {
  const numbers = rows.columns.flatMap((name, index) => (isNumeric(rows.types[index]) ? [{ name, index }] : []));
  const [x, setX] = useState(() =>
    Math.max(
      0,
      rows.types.findIndex((type) => isTime(type)),
      0,
    ),
  );
  const [chosen, setChosen] = useState<number[]>(() =>
    numbers
      .filter((one) => one.index !== x)
      .slice(0, 3)
      .map((one) => one.index),
  );
  const [shape, setShape] = useState<Shape>("line");
  if (numbers.length === 0)
    return (
      <Empty title="Nothing to draw">
        <p>A chart needs a column of numbers.</p>
      </Empty>
    );
  const ys = chosen.length ? chosen : numbers.slice(0, 1).map((one) => one.index);
  const toggle = (index: number) => setChosen(ys.includes(index) ? ys.filter((one) => one !== index) : [...ys, index]);
  return (
    <div class="chart">
      <div class="toolbar">
        <label class="field inline">
          <span>Across</span>
          <select value={x} onChange={(event) => setX(Number(event.currentTarget.value))}>
            {rows.columns.map((name, index) => (
              <option key={index} value={index}>
                {name}
              </option>
            ))}
          </select>
        </label>
        <fieldset class="checks">
          <legend class="hidden">Columns drawn</legend>
          {numbers.slice(0, 12).map(({ name, index }) => (
            <label key={index}>
              <input type="checkbox" checked={ys.includes(index)} onChange={() => toggle(index)} /> {name}
            </label>
          ))}
        </fieldset>
        <label class="field inline">
          <span>As</span>
          <select value={shape} onChange={(event) => setShape(event.currentTarget.value as Shape)}>
            <option value="line">line</option>
            <option value="bars">bars</option>
            <option value="points">points</option>
          </select>
        </label>
        {count > POINTS_MAX && <span class="faint">every {formatCount(Math.ceil(count / POINTS_MAX))}th row</span>}
      </div>
      <Plot rows={rows} count={count} at={at} x={x} ys={ys} shape={shape} />
    </div>
  );
}

interface PlotProps extends ChartProps {
  x: number;
  ys: number[];
  shape: Shape;
}

function Plot({ rows, count, at, x, ys, shape }: PlotProps) {
  const host = useRef<HTMLDivElement>(null);
  const chosenTheme = useStore(theme);
  const { data, labels } = useMemo(() => readPoints(rows, count, at, x, ys), [rows, count, at, x, ys]);
  useEffect(() => {
    const element = host.current!;
    const make = () =>
      new uPlot(makeOptions(element.clientWidth, rows, x, ys, shape, labels), data as uPlot.AlignedData, element);
    let plot = make();
    const observer = new ResizeObserver(() => plot.setSize({ width: element.clientWidth, height: HEIGHT }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.destroy();
    };
  }, [data, shape, chosenTheme]);
  return (
    <div
      class="chart-host"
      ref={host}
      role="img"
      aria-label={`${ys.map((y) => rows.columns[y]).join(", ")} across ${rows.columns[x]}`}
    />
  );
}

function readPoints(rows: Rows, count: number, at: (index: number) => number, x: number, ys: number[]) {
  const type = rows.types[x]!;
  const step = Math.max(1, Math.ceil(count / POINTS_MAX));
  const points: { x: number; label: string; ys: (number | null)[] }[] = [];
  for (let index = 0; index < count; index += step) {
    const row = rows.get(at(index));
    const across = isTime(type)
      ? new Date(withZone(row[x] ?? null)).getTime() / 1000
      : isNumeric(type)
        ? Number(row[x])
        : points.length;
    if (Number.isFinite(across))
      points.push({ x: across, label: String(row[x] ?? ""), ys: ys.map((y) => asNumber(row[y] ?? null)) });
  }
  if (isTime(type) || isNumeric(type)) points.sort((a, b) => a.x - b.x);
  return {
    data: [points.map((point) => point.x), ...ys.map((_, y) => points.map((point) => point.ys[y] ?? null))],
    labels: points.map((point) => point.label),
  };
}

function withZone(value: Value): string {
  return value === null ? "" : String(value);
}

function asNumber(value: Value): number | null {
  const number = Number(value);
  return value === null || !Number.isFinite(number) ? null : number;
}

function makeOptions(
  width: number,
  rows: Rows,
  x: number,
  ys: number[],
  shape: Shape,
  labels: string[],
): uPlot.Options {
  const colors = COLORS[isDark() ? "dark" : "light"];
  const style = getComputedStyle(document.documentElement);
  const axis = {
    stroke: style.getPropertyValue("--muted"),
    grid: { stroke: style.getPropertyValue("--line"), width: 1 },
  };
  const isText = !isTime(rows.types[x]!) && !isNumeric(rows.types[x]);
  const across: uPlot.Axis = isText
    ? {
        ...axis,
        values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? (labels[tick] ?? "").slice(0, 16) : "")),
      }
    : axis;
  return {
    width,
    height: HEIGHT,
    scales: { x: { time: isTime(rows.types[x]!) } },
    axes: [across, { ...axis, size: 64, values: (_, ticks) => ticks.map((tick) => SHORT.format(tick)) }],
    series: [
      { label: rows.columns[x]! },
      ...ys.map((y, at) => {
        const color = colors[at % colors.length]!;
        const series: uPlot.Series = {
          label: rows.columns[y]!,
          stroke: color,
          width: 1.5,
          points: { show: shape === "points" },
        };
        if (shape === "bars") return { ...series, fill: `${color}99`, paths: uPlot.paths.bars!({ size: [0.7, 60] }) };
        return shape === "points" ? { ...series, paths: () => null } : series;
      }),
    ],
  };
}
