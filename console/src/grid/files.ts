/** Rows as files, and as text for the clipboard. */
import { quoteIdentifier } from "../sql/quote";
import type { Rows } from "./rows";
import { csvLine, insertStatement, rowJson, valueText } from "./values";

export type Format = "csv" | "ndjson" | "json" | "insert" | "text";
export const FORMATS: Record<Format, { name: string; ending: string; type: string }> = {
  csv: { name: "CSV", ending: "csv", type: "text/csv" },
  ndjson: { name: "NDJSON", ending: "ndjson", type: "application/x-ndjson" },
  json: { name: "JSON", ending: "json", type: "application/json" },
  insert: { name: "INSERT", ending: "sql", type: "application/sql" },
  text: { name: "text", ending: "txt", type: "text/plain" },
};
const PORTION = 5_000;

/** Return the table that a statement reads, where it names one; for INSERT. */
export function guessTable(sql: string): string {
  const found = /\b(?:from|into|update|table)\s+((?:"(?:[^"]|"")+"|\w+)(?:\.(?:"(?:[^"]|"")+"|\w+))?)/i.exec(sql)?.[1];
  return found ?? quoteIdentifier("result");
}

/** Write rows in a format, a piece at a time. `at` says which row stands at a place. */
export async function* writeRows(
  rows: Rows,
  count: number,
  at: (index: number) => number,
  format: Format,
  table: string,
): AsyncGenerator<string> {
  const { columns, types } = rows;
  if (format === "csv") yield `${csvLine(columns)}\r\n`;
  if (format === "json") yield "[";
  for (let from = 0; from < count; from += PORTION) {
    let piece = "";
    for (let index = from; index < Math.min(count, from + PORTION); index++) {
      const row = rows.get(at(index));
      if (format === "csv") piece += `${csvLine(row)}\r\n`;
      else if (format === "insert") piece += `${insertStatement(table, columns, types, row)}\n`;
      else if (format === "text") piece += `${row.map(valueText).join("\t")}\n`;
      else if (format === "ndjson") piece += `${rowJson(columns, row)}\n`;
      else piece += `${index ? ",\n " : "\n "}${rowJson(columns, row)}`;
    }
    yield piece;
    await new Promise((resolve) => setTimeout(resolve));
  }
  if (format === "json") yield "\n]\n";
}

export async function writeText(...given: Parameters<typeof writeRows>): Promise<string> {
  let text = "";
  for await (const piece of writeRows(...given)) text += piece;
  return text;
}

export async function writeBlob(...given: Parameters<typeof writeRows>): Promise<Blob> {
  const pieces: Blob[] = [];
  for await (const piece of writeRows(...given)) pieces.push(new Blob([piece]));
  return new Blob(pieces, { type: FORMATS[given[3]].type });
}
