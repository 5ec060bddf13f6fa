/** Numbers over time, as lines. */
import type { Point } from "./samples";

export interface Line {
  name: string;
  of: (point: Point) => number | null;
  isBad?: boolean;
}

interface LinesProps {
  title: string;
  points: Point[];
  lines: Line[];
  format: (value: number) => string;
}

const TIME: Intl.DateTimeFormatOptions = { hour: "2-digit", minute: "2-digit", second: "2-digit" };

function lastOf(points: Point[], line: Line): number | null {
  const values = points.map(line.of).filter((value) => value !== null);
  return values.at(-1) ?? null;
}

/** Return a line in a square of 100 by 100; where there is no value it is broken. */
function drawPath(points: Point[], line: Line, most: number): string {
  const from = points[0]!.at;
  const span = Math.max(1, points.at(-1)!.at - from);
  let isDrawn = false;
  return points
    .map((point) => {
      const value = line.of(point);
      if (value === null) {
        isDrawn = false;
        return "";
      }
      const place = `${(((point.at - from) / span) * 100).toFixed(2)} ${(100 - (value / most) * 100).toFixed(2)}`;
      // A point with nothing beside it is a line of no length, which round ends make visible.
      const step = isDrawn ? `L${place}` : `M${place}h0`;
      isDrawn = true;
      return step;
    })
    .join("");
}

export function Lines({ title, points, lines, format }: LinesProps) {
  const values = points.flatMap((point) => lines.map((line) => line.of(point) ?? 0));
  const most = Math.max(...values, 0) || 1;
  const told = lines.map((line) => {
    const value = lastOf(points, line);
    return { ...line, text: value === null ? "–" : format(value) };
  });
  const summary = told.map((line) => `${line.name} ${line.text}`).join(", ");
  return (
    <section>
      <h2>{title}</h2>
      <div class="bars-box" role="img" aria-label={`${title}: ${summary}`}>
        <div class="lines-legend">
          {told.map((line) => (
            <span
              key={line.name}
              class={line.isBad ? "bad-line" : `line-${lines.findIndex((one) => one.name === line.name)}`}
            >
              {line.name} <b>{line.text}</b>
            </span>
          ))}
        </div>
        <svg class="lines" viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">
          {points.length > 0 &&
            lines.map((line, at) => (
              <path key={line.name} class={line.isBad ? "bad-line" : `line-${at}`} d={drawPath(points, line, most)} />
            ))}
        </svg>
        <div class="lines-foot">
          <span>{points[0] && new Date(points[0].at).toLocaleTimeString([], TIME)}</span>
          <span>at most {format(values.length ? Math.max(...values) : 0)}</span>
          <span>{points.length > 1 && new Date(points.at(-1)!.at).toLocaleTimeString([], TIME)}</span>
        </div>
      </div>
    </section>
  );
}
