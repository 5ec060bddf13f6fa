/** Looks at the service's counters, again and again while somebody looks on. They are kept as long as the page is. */
import { useEffect } from "preact/hooks";
import { asFailure, type Failure, openControl } from "../api/http";
import { Store, useStore } from "../parts/store";
import { type Buckets, parseMetrics, quantile, readBuckets, type Sample, subtractBuckets, sumOf } from "./metrics";

const LOOK_MS = 3_000;
const POINTS_MAX = 200;
const DATA = { plane: "data" };

interface Look {
  at: number;
  latency: Buckets;
  requests: number;
  errors: number;
  rows: number;
}

/** What happened between two looks, a second. Quantiles are in seconds, and null where nothing was asked. */
export interface Point {
  at: number;
  median: number | null;
  p95: number | null;
  requests: number;
  errors: number;
  rows: number;
}

export interface Seen {
  points: Point[];
  /** All numbers of the last look; null before the first. */
  samples: Sample[] | null;
  failure: Failure | null;
}

const seen = new Store<Seen>({ points: [], samples: null, failure: null });
let last: Look | null = null;

function readLook(samples: Sample[]): Look {
  return {
    at: Date.now(),
    latency: readBuckets(samples, "tuplegate_request_seconds", DATA),
    requests: sumOf(samples, "tuplegate_requests_total", DATA),
    errors: sumOf(samples, "tuplegate_errors_total", DATA),
    rows: sumOf(samples, "tuplegate_database_rows_total"),
  };
}

/** Return what happened since a look; null where the service was started anew, and counts from 0. */
function comparePoint(before: Look, now: Look): Point | null {
  const seconds = (now.at - before.at) / 1000;
  if (now.requests < before.requests || seconds <= 0) return null;
  const latency = subtractBuckets(now.latency, before.latency);
  return {
    at: now.at,
    median: quantile(latency, 0.5),
    p95: quantile(latency, 0.95),
    requests: (now.requests - before.requests) / seconds,
    errors: Math.max(0, now.errors - before.errors) / seconds,
    rows: Math.max(0, now.rows - before.rows) / seconds,
  };
}

async function look(): Promise<void> {
  try {
    const samples = parseMetrics(await (await openControl("/metrics")).text());
    const now = readLook(samples);
    const point = last && comparePoint(last, now);
    last = now;
    seen.update(({ points }) => ({
      points: point ? [...points.slice(1 - POINTS_MAX), point] : points,
      samples,
      failure: null,
    }));
  } catch (error) {
    seen.update((before) => ({ ...before, failure: asFailure(error) }));
  }
}

/** Look while the component is there and the page is not hidden; one look at a time. */
export function useSamples(): Seen & { look: () => void } {
  useEffect(() => {
    let timer = 0;
    let isThere = true;
    const goOn = async () => {
      if (!document.hidden) await look();
      if (isThere) timer = window.setTimeout(() => void goOn(), LOOK_MS);
    };
    void goOn();
    return () => {
      isThere = false;
      window.clearTimeout(timer);
    };
  }, []);
  return { ...useStore(seen), look: () => void look() };
}
