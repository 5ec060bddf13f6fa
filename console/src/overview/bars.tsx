/** Numbers over hours, as bars. */
import { formatCount } from "../parts/show";

export interface Bar {
  at: Date;
  value: number;
  bad: number;
}

const LABEL_EVERY = 6;

export function Bars({
  bars,
  label,
  format = formatCount,
}: {
  bars: Bar[];
  label: string;
  format?: (value: number) => string;
}) {
  const most = Math.max(...bars.map((bar) => bar.value));
  const heightOf = (value: number) => `${value === 0 ? 0 : Math.max(2, (value / most) * 100)}%`;
  const total = bars.reduce((sum, bar) => sum + bar.value, 0);
  return (
    <div class="bars-box" role="img" aria-label={`${label}: ${format(total)} in the last ${bars.length} hours`}>
      <div class="bars-most">{most > 0 ? format(most) : "nothing in this time"}</div>
      <div class="bars">
        {bars.map((bar, at) => (
          <div
            class="bars-hour"
            key={at}
            title={`${bar.at.toLocaleString([], { weekday: "short", hour: "2-digit", minute: "2-digit" })}: ${format(bar.value)}${bar.bad ? `, ${format(bar.bad)} failed` : ""}`}
          >
            <div class="bar" style={{ height: heightOf(bar.value) }} />
            {bar.bad > 0 && <div class="bar bad-bar" style={{ height: heightOf(bar.bad) }} />}
          </div>
        ))}
      </div>
      <div class="bars-foot">
        {bars.map((bar, at) =>
          at % LABEL_EVERY === 0 ? (
            <span key={at}>{bar.at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })}</span>
          ) : null,
        )}
      </div>
    </div>
  );
}
