/** CSV as RFC 4180 writes it, and the types that its fields look like. */

export interface Csv {
  header: string[];
  rows: (string | null)[][];
  /** The line of the file that each row begins on. */
  lines: number[];
  /** What keeps it from being imported, with the lines. */
  problems: string[];
}

const PROBLEMS_MAX = 5;

interface Field {
  value: string | null;
  end: number;
  /** A quote that is never closed. */
  isOpen?: boolean;
}

/** Read a CSV text. A field without quotes that is empty is NULL; `""` is the empty text. */
export function parseCsv(text: string, separator: string): Csv {
  const records: { fields: (string | null)[]; line: number }[] = [];
  const problems: string[] = [];
  const plain = new RegExp(`[^${separator === "\t" ? "\\t" : separator}\\r\\n]*`, "y");
  let at = text.charCodeAt(0) === 0xfeff ? 1 : 0;
  let line = 1;
  while (at < text.length) {
    const fields: (string | null)[] = [];
    const begins = line;
    for (;;) {
      const field = text[at] === '"' ? readQuoted(text, at, plain) : readPlain(text, at, plain);
      if (field.isOpen) problems.push(`Line ${line}, field ${fields.length + 1}: a quote is opened and never closed.`);
      fields.push(field.value);
      line += countLines(field.value ?? "");
      at = field.end;
      if (text[at] !== separator) break;
      at += 1;
    }
    at += text.startsWith("\r\n", at) ? 2 : 1;
    line += 1;
    // In a file with one column an empty line is a NULL.
    const isEmpty = fields.length === 1 && fields[0] === null && records[0]?.fields.length !== 1;
    if (!isEmpty) records.push({ fields, line: begins });
  }
  const header = (records.shift()?.fields ?? []).map((name, index) => name?.trim() || `column_${index + 1}`);
  const uneven = records.filter(({ fields }) => fields.length !== header.length);
  for (const { fields, line: where } of uneven.slice(0, PROBLEMS_MAX))
    problems.push(`Line ${where} has ${fields.length} fields, and the first line has ${header.length}.`);
  if (uneven.length > PROBLEMS_MAX) problems.push(`So have ${uneven.length - PROBLEMS_MAX} other lines.`);
  return { header, rows: records.map((one) => one.fields), lines: records.map((one) => one.line), problems };
}

function readPlain(text: string, at: number, plain: RegExp): Field {
  plain.lastIndex = at;
  plain.test(text);
  const end = plain.lastIndex;
  return { value: end > at ? text.slice(at, end) : null, end };
}

/** Read a field in quotes, which may hold line breaks. Letters behind its closing quote belong to it. */
function readQuoted(text: string, at: number, plain: RegExp): Field {
  let close = text.indexOf('"', at + 1);
  while (close >= 0 && text[close + 1] === '"') close = text.indexOf('"', close + 2);
  if (close < 0) return { value: text.slice(at + 1), end: text.length, isOpen: true };
  const value = text.slice(at + 1, close).replaceAll('""', '"');
  const rest = readPlain(text, close + 1, plain);
  return { value: value + (rest.value ?? ""), end: rest.end };
}

function countLines(text: string): number {
  return text.includes("\n") || text.includes("\r") ? text.match(/\r\n|\r|\n/g)!.length : 0;
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
