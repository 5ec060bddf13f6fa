/** Values as text: in a cell, in a file, in SQL. */
import type { Row, Value } from "../api/types";
import { quoteIdentifier, quoteLiteral } from "../sql/quote";

const CELL_LENGTH = 300;
const NUMBERS = new Set(["int2", "int4", "int8", "oid", "float4", "float8", "numeric", "money"]);

export type Kind = "null" | "number" | "bool" | "json" | "array" | "bytes" | "text";

export function isNumeric(type: string | undefined): boolean {
  return NUMBERS.has(type ?? "");
}

export function kindOf(value: Value, type: string | undefined): Kind {
  if (value === null) return "null";
  if (type?.endsWith("[]")) return "array";
  if (type === "json" || type === "jsonb") return "json";
  if (type === "bool") return "bool";
  if (type === "bytea") return "bytes";
  return isNumeric(type) ? "number" : "text";
}

/** The whole value as text; the empty string for NULL. */
export function valueText(value: Value): string {
  if (value === null) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
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

/** A row as an object; of two columns with one name, the later gets a number. */
export function rowObject(columns: string[], row: Row): Record<string, Value> {
  const made: Record<string, Value> = Object.create(null) as Record<string, Value>;
  columns.forEach((name, at) => {
    let key = name;
    for (let number = 2; key in made; number++) key = `${name}_${number}`;
    made[key] = row[at] ?? null;
  });
  return made;
}

export function sqlLiteral(value: Value, type: string | undefined): string {
  if (value === null) return "null";
  if (typeof value === "boolean") return value ? "true" : "false";
  if (isNumeric(type) && /^-?\d+(\.\d+)?([eE][-+]?\d+)?$/.test(String(value))) return String(value);
  if (type?.endsWith("[]")) return `${quoteLiteral(arrayText(value))}::${type}`;
  if (type === "json" || type === "jsonb") return `${quoteLiteral(JSON.stringify(value))}::${type}`;
  return quoteLiteral(valueText(value));
}

/** An array as PostgreSQL writes it. */
export function arrayText(value: Value): string {
  if (value === null) return "NULL";
  if (Array.isArray(value)) return `{${value.map(arrayText).join(",")}}`;
  const text = valueText(value);
  return typeof value === "string" || typeof value === "object" ? `"${text.replace(/(["\\])/g, "\\$1")}"` : text;
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
