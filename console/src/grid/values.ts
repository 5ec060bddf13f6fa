/** Values as text: in a cell, in a file, in SQL. */
import { Json, splitJson, writeJson } from "../api/json";
import type { Row, Value } from "../api/types";
import { quoteIdentifier, quoteLiteral } from "../sql/quote";

const CELL_LENGTH = 300;
const NUMBERS = new Set(["int2", "int4", "int8", "oid", "float4", "float8", "numeric", "money"]);

export type Kind = "null" | "number" | "bool" | "json" | "array" | "bytes" | "text";

export function isNumeric(type: string | undefined): boolean {
  return NUMBERS.has(type ?? "");
}

export function isJsonType(type: string | undefined): boolean {
  return /^jsonb?(\[\])*$/.test(type ?? "");
}

export function kindOf(value: Value, type: string | undefined): Kind {
  if (value === null) return "null";
  if (type?.endsWith("[]")) return "array";
  if (isJsonType(type)) return "json";
  if (type === "bool") return "bool";
  if (type === "bytea") return "bytes";
  return isNumeric(type) ? "number" : "text";
}

/** The whole value as text; the empty string for NULL. */
export function valueText(value: Value): string {
  if (value === null) return "";
  return typeof value === "object" ? writeJson(value) : String(value);
}

/** As much of a value as fits a cell, on one line. */
export function cellText(value: Value): string {
  const text = typeof value === "string" ? value.slice(0, CELL_LENGTH + 1) : valueText(value);
  const cut = text.length > CELL_LENGTH ? `${text.slice(0, CELL_LENGTH)}…` : text;
  return cut.replace(/\r\n|\r|\n/g, "↵").replace(/\t/g, "→");
}

/** RFC 4180; NULL is an empty field, the empty string is "". A field that a spreadsheet would run as a formula stays as it is. */
export function csvField(value: Value): string {
  if (value === null) return "";
  const text = valueText(value);
  return text === "" || /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function csvLine(values: Row): string {
  return values.map(csvField).join(",");
}

/** A row as a JSON object; of two columns with one name, the later gets a number. */
export function rowJson(columns: string[], row: Row, isWide = false): string {
  const names = new Set<string>();
  const fields = columns.map((name, at) => {
    let key = name;
    for (let number = 2; names.has(key); number++) key = `${name}_${number}`;
    names.add(key);
    return `${JSON.stringify(key)}:${isWide ? " " : ""}${writeJson(row[at] ?? null)}`;
  });
  return isWide ? `{\n  ${fields.join(",\n  ")}\n}` : `{${fields.join(",")}}`;
}

export function sqlLiteral(value: Value, type: string | undefined): string {
  if (value === null) return "null";
  if (typeof value === "boolean") return value ? "true" : "false";
  if (isNumeric(type) && /^-?\d+(\.\d+)?([eE][-+]?\d+)?$/.test(String(value))) return String(value);
  if (type?.endsWith("[]")) return `${quoteLiteral(arrayText(value))}::${type}`;
  if (isJsonType(type)) return `${quoteLiteral(writeJson(value))}::${type}`;
  return quoteLiteral(valueText(value));
}

/** An array as PostgreSQL writes it. */
export function arrayText(value: Value): string {
  if (value === null) return "NULL";
  if (Array.isArray(value)) return `{${value.map(arrayText).join(",")}}`;
  if (value instanceof Json) return `{${splitJson(value.text)!.items.map(itemText).join(",")}}`;
  const text = valueText(value);
  return typeof value === "string" || typeof value === "object" ? `"${text.replace(/(["\\])/g, "\\$1")}"` : text;
}

/** An item of an array of JSON: what is an array itself is taken as one of the engine's. */
function itemText(text: string): string {
  if (text === "null") return "NULL";
  return text.startsWith("[") ? arrayText(new Json(text)) : `"${text.replace(/(["\\])/g, "\\$1")}"`;
}

export function insertStatement(table: string, columns: string[], types: string[], row: Row): string {
  const names = columns.map(quoteIdentifier).join(", ");
  const values = row.map((value, at) => sqlLiteral(value, types[at])).join(", ");
  return `insert into ${table} (${names}) values (${values});`;
}

/** Order two values of one column; NULL is last. */
export function compareValues(a: Value, b: Value, isNumber: boolean): number {
  if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1;
  if (isNumber) return compareNumbers(String(a), String(b));
  const left = valueText(a);
  const right = valueText(b);
  return left < right ? -1 : left > right ? 1 : 0;
}

function compareNumbers(a: string, b: string): number {
  const difference = Number(a) - Number(b);
  if (difference !== 0 || !/^-?\d{16,}$/.test(a) || !/^-?\d{16,}$/.test(b))
    return Number.isNaN(difference) ? (a < b ? -1 : a > b ? 1 : 0) : difference;
  const exact = BigInt(a) - BigInt(b);
  return exact < 0n ? -1 : exact > 0n ? 1 : 0;
}
