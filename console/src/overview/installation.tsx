/** Numbers of the whole installation, for operators: over the time that the page is open, and since its start. */
import { formatCount, formatMicros, plural } from "../parts/show";
import { FailureBox, Waiting } from "../parts/states";
import { type Line, Lines } from "./lines";
import { quantile, readBuckets, type Sample, sumOf } from "./metrics";
import { useSamples } from "./samples";

const LATENCY: Line[] = [
  { name: "median", of: (point) => point.median },
  { name: "p95", of: (point) => point.p95 },
];
const REQUESTS: Line[] = [
  { name: "requests", of: (point) => point.requests },
  { name: "errors", of: (point) => point.errors, isBad: true },
];
const ROWS: Line[] = [{ name: "rows", of: (point) => point.rows }];

function formatSeconds(seconds: number): string {
  return formatMicros(seconds * 1e6);
}

function formatRate(rate: number): string {
  return `${rate < 10 ? rate.toFixed(1) : formatCount(Math.round(rate))}/s`;
}

export function Installation() {
  const { points, samples, failure, look } = useSamples();
  if (!samples)
    return failure ? <FailureBox failure={failure} onRetry={look} /> : <Waiting what="Reading the metrics" />;
  return (
    <>
      {failure && <FailureBox failure={failure} onRetry={look} />}
      <div class="charts" aria-label="The installation while this page is open" role="group">
        <Lines title="Latency now" points={points} lines={LATENCY} format={formatSeconds} />
        <Lines title="Requests now" points={points} lines={REQUESTS} format={formatRate} />
        <Lines title="Rows now" points={points} lines={ROWS} format={formatRate} />
      </div>
      <p class="faint">
        Of the whole installation, every few seconds while this page is open. Latency is that of requests to the data
        plane, from the whole request to the end of its answer.
      </p>
      <section>
        <h2>The installation since its start</h2>
        <div class="cards">
          {listNumbers(samples).map(([title, number, note]) => (
            <div class="card" key={title}>
              <span class="faint">{title}</span>
              <span class="card-number">{number}</span>
              <span class="faint">{note}</span>
            </div>
          ))}
        </div>
      </section>
    </>
  );
}

function listNumbers(samples: Sample[]): [string, string, string][] {
  const buckets = readBuckets(samples, "tuplegate_request_seconds", { plane: "data" });
  const latency = (part: number) => {
    const seconds = quantile(buckets, part);
    return seconds === null ? "–" : formatSeconds(seconds);
  };
  const requests = sumOf(samples, "tuplegate_requests_total", { plane: "data" });
  const workers = new Set(samples.map((one) => one.labels["worker"]).filter(Boolean)).size;
  return [
    ["Requests", formatCount(requests), "to the data plane"],
    ["Errors", formatCount(sumOf(samples, "tuplegate_errors_total", { plane: "data" })), "also those with status 200"],
    ["Latency, median", latency(0.5), `p95 ${latency(0.95)}, p99 ${latency(0.99)}`],
    [
      "Conflicts",
      formatCount(sumOf(samples, "tuplegate_conflicts_total")),
      `${formatCount(sumOf(samples, "tuplegate_retries_total"))} attempts begun again`,
    ],
    [
      "Engine connections",
      formatCount(sumOf(samples, "tuplegate_engine_connections", { state: "open" })),
      `of ${formatCount(sumOf(samples, "tuplegate_engine_connections_max"))}`,
    ],
    [
      "Running now",
      formatCount(sumOf(samples, "tuplegate_requests_running", { plane: "data" })),
      workers ? `requests, in ${plural(workers, "worker")}` : "requests",
    ],
  ];
}
