/** Numbers in Prometheus's text format, as far as the overview reads them. */

export interface Sample {
  name: string;
  labels: Record<string, string>;
  value: number;
}

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

export function parseMetrics(text: string): Sample[] {
  return text.split("\n").flatMap((line) => {
    const found = line.startsWith("#") ? null : LINE.exec(line);
    if (!found) return [];
    const labels = Object.fromEntries([...(found[2] ?? "").matchAll(LABEL)].map((label) => [label[1]!, label[2]!]));
    return [{ name: found[1]!, labels, value: Number(found[3]!.replace("+Inf", "Infinity")) }];
  });
}

export function sumOf(samples: Sample[], name: string, where: Record<string, string> = {}): number {
  return samples
    .filter((one) => one.name === name && Object.entries(where).every(([label, value]) => one.labels[label] === value))
    .reduce((sum, one) => sum + one.value, 0);
}

/** How often each bound of a histogram was not exceeded. */
export type Buckets = Map<number, number>;

/** Return the buckets of a histogram, over all of its series. */
export function readBuckets(samples: Sample[], name: string, where: Record<string, string> = {}): Buckets {
  const buckets: Buckets = new Map();
  for (const one of samples) {
    if (one.name !== `${name}_bucket` || !Object.entries(where).every(([label, value]) => one.labels[label] === value))
      continue;
    const bound = one.labels["le"] === "+Inf" ? Infinity : Number(one.labels["le"]);
    buckets.set(bound, (buckets.get(bound) ?? 0) + one.value);
  }
  return buckets;
}

/** Return what was counted between two looks at a histogram. */
export function subtractBuckets(after: Buckets, before: Buckets): Buckets {
  return new Map([...after].map(([bound, count]) => [bound, count - (before.get(bound) ?? 0)]));
}

/** Return a quantile of a histogram; null where it has counted nothing. */
export function quantile(buckets: Buckets, part: number): number | null {
  const total = buckets.get(Infinity) ?? 0;
  if (total <= 0) return null;
  let below = 0;
  let from = 0;
  for (const bound of [...buckets.keys()].sort((a, b) => a - b)) {
    const count = buckets.get(bound)!;
    if (count >= total * part) {
      if (bound === Infinity) return from;
      return from + ((bound - from) * (total * part - below)) / Math.max(1e-9, count - below);
    }
    below = count;
    from = bound;
  }
  return from;
}
