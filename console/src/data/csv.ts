/** CSV as RFC 4180 writes it, and the types that its fields look like. */

export interface Csv {
  header: string[];
  rows: (string | null)[][];
  /** Lines whose number of fields differs from the header's, by their number in the file. */
  uneven: number[];
}

/** Read a CSV text. A field without quotes that is empty is NULL; `""` is the empty text. */
export function parseCsv(text: string, separator: string): Csv {
  const records: (string | null)[][] = [];
  const quoted = new RegExp(`"((?:[^"]|"")*)"|([^${separator === "\t" ? "\\t" : separator}\\r\\n]*)`, "y");
  let record: (string | null)[] = [];
  let at = text.charCodeAt(0) === 0xfeff ? 1 : 0;
  while (at < text.length) {
    quoted.lastIndex = at;
    const field = quoted.exec(text)!;
    record.push(field[1] !== undefined ? field[1].replaceAll('""', '"') : field[2] === "" ? null : field[2]!);
    at = quoted.lastIndex;
    const next = text[at];
    if (next === separator) {
      at += 1;
      if (at === text.length) record.push(null);
      continue;
    }
    if (next !== undefined && next !== "\r" && next !== "\n") {
      // Letters behind a closing quote belong to the field, as most readers have it.
      quoted.lastIndex = at;
      const rest = /[^\r\n]*/y;
      rest.lastIndex = at;
      record.push(`${record.pop() ?? ""}${rest.exec(text)![0]}`);
      at = rest.lastIndex;
    }
    if (text.startsWith("\r\n", at)) at += 2;
    else at += 1;
    if (record.length > 1 || record[0] !== null) records.push(record);
    record = [];
  }
  if (record.length) records.push(record);
  const header = (records.shift() ?? []).map((name, index) => name?.trim() || `column_${index + 1}`);
  const uneven = records.flatMap((row, index) => (row.length === header.length ? [] : [index + 2]));
  return { header, rows: records, uneven };
}

export function guessSeparator(text: string): string {
  const line = text.slice(0, 10_000).split(/\r?\n/, 1)[0] ?? "";
  const counts = [",", ";", "\t", "|"].map((one) => ({ one, count: line.split(one).length }));
  return counts.reduce((most, next) => (next.count > most.count ? next : most)).one;
}

const GUESSES: [string, (text: string) => boolean][] = [
  ["boolean", (text) => /^(true|false|t|f|yes|no)$/i.test(text)],
  ["integer", (text) => /^-?(0|[1-9]\d{0,8})$/.test(text)],
  ["bigint", (text) => /^-?(0|[1-9]\d{0,17})$/.test(text)],
  ["numeric", (text) => /^-?(0|[1-9]\d*)(\.\d+)?$/.test(text)],
  ["date", (text) => /^\d{4}-\d\d-\d\d$/.test(text) && !Number.isNaN(Date.parse(text))],
  [
    "timestamptz",
    (text) =>
      /^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?\s?(Z|[+-]\d\d(:?\d\d)?)?$/.test(text) &&
      !Number.isNaN(Date.parse(text)),
  ],
  ["uuid", (text) => /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(text)],
  ["jsonb", (text) => /^[[{]/.test(text) && isJson(text)],
];
export const TYPES = [...GUESSES.map(([name]) => name), "text"];

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** Return the narrowest type that all values fit. Numbers with leading zeros stay text: they are codes. */
export function guessType(values: (string | null)[]): string {
  const given = values.filter((value): value is string => value !== null && value !== "");
  if (given.length === 0) return "text";
  return GUESSES.find(([, fits]) => given.every(fits))?.[0] ?? "text";
}

export function columnName(title: string): string {
  const name = title
    .trim()
    .toLowerCase()
    .replace(/[^a-z0-9_]+/g, "_")
    .replace(/^_+|_+$/g, "")
    .slice(0, 60);
  return /^[a-z_]/.test(name) ? name : `c_${name}`;
}
