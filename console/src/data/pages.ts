/** The SQL of a table's page of rows: paging by key, filters, sorting. Pure: decides, and sends nothing. */
import type { Value } from "../api/types";
import { quoteIdentifier, quoteLiteral, quoteTable } from "../sql/quote";
import type { Column, Table } from "../sql/schema";

export const PAGE_ROWS = 100;
/** Longer values are cut in the grid and fetched in full when they are opened. */
export const CUT_LENGTH = 4_096;

export type Operator = "=" | "<>" | "<" | "<=" | ">" | ">=" | "contains" | "is null" | "is not null";
export const OPERATORS: Operator[] = ["=", "<>", "<", "<=", ">", ">=", "contains", "is null", "is not null"];

export interface FilterRule {
  column: string;
  operator: Operator;
  value: string;
}

export interface Order {
  column: string;
  descending: boolean;
}

/** Where a page begins: behind a row, or before one. Values are those of the order's column and of the key. */
export interface Cursor {
  isBefore: boolean;
  sorted: string | null;
  key: string[];
  offset: number;
}

const SHORT = new Set([
  "int2",
  "int4",
  "int8",
  "oid",
  "float4",
  "float8",
  "bool",
  "date",
  "timestamp",
  "timestamptz",
  "time",
  "timetz",
  "uuid",
  "interval",
  "money",
  "inet",
]);
/** Types of which two equal values are written the same. */
const EXACT = new Set([
  "int2",
  "int4",
  "int8",
  "oid",
  "bool",
  "date",
  "timestamp",
  "timestamptz",
  "time",
  "uuid",
  "text",
  "varchar",
]);

export function keyOf(table: Table): string[] {
  return table.columns.filter((column) => column.primary_key).map((column) => column.name);
}

export type Paging = "key" | "ctid" | "offset";

export function pagingOf(table: Table): Paging {
  if (keyOf(table).length) return "key";
  return table.kind === "table" ? "ctid" : "offset";
}

/** A column of the table that is read as `t`: without it, ORDER BY would mean the text that is selected. */
function ofTable(name: string): string {
  return `t.${quoteIdentifier(name)}`;
}

/** A value of a key is never cut: rows are told apart by it. */
export function cellExpression(column: Column, name = ofTable(column.name)): string {
  return SHORT.has(column.type) || column.primary_key ? `${name}::text` : `left(${name}::text, ${CUT_LENGTH + 1})`;
}

/** The digests of a row's long values, as an array by the places of the columns: null where a value is short. */
export function digestsExpression(table: Table): string {
  const digests = table.columns.map((column) => {
    if (SHORT.has(column.type) || column.primary_key) return "null";
    const name = ofTable(column.name);
    return `case when octet_length(${name}::text) > ${CUT_LENGTH} then ${digestOf(name)} end`;
  });
  return `array[${digests.join(", ")}]::text[]`;
}

/** A digest of the whole of a value. */
export function digestOf(name: string): string {
  return `sha256(convert_to(${name}::text, 'UTF8'))::text`;
}

/** A parameter that holds a value of a column as its text: one of JSON would be taken for a JSON string otherwise. */
export function castFor(table: Table, name: string): string {
  const type = table.columns.find((column) => column.name === name)?.type ?? "";
  return /^jsonb?$/.test(type) ? `::text::${type}` : "";
}

export interface PageQuery {
  sql: string;
  params: Value[];
}

/** Build the statement for one page; it asks for one row more than is shown. */
export function buildPage(table: Table, filters: FilterRule[], order: Order | null, cursor: Cursor | null): PageQuery {
  const params: Value[] = [];
  const put = (value: Value) => `$${params.push(value)}`;
  const paging = pagingOf(table);
  const key = paging === "key" ? keyOf(table).map(ofTable) : paging === "ctid" ? ["t.ctid"] : [];
  const conditions = filters.map((rule) => buildCondition(rule, castFor(table, rule.column), put));
  const isBack = cursor?.isBefore ?? false;
  if (cursor && key.length) {
    const casts = paging === "ctid" ? ["::tid"] : keyOf(table).map((name) => castFor(table, name));
    const sorted = order ? castFor(table, order.column) : "";
    conditions.push(buildKeyset(key, order, cursor, { key: casts, sorted }, put));
  }
  const columns = table.columns.map((column) => cellExpression(column));
  if (paging === "ctid") columns.push("t.ctid::text");
  if (paging === "key") columns.push(digestsExpression(table));
  const lines = [`select ${columns.join(", ")}`, `from ${quoteTable(table.schema, table.name)} as t`];
  if (conditions.length) lines.push(`where ${conditions.join(" and ")}`);
  const orders = buildOrder(key, order, isBack);
  if (orders.length) lines.push(`order by ${orders.join(", ")}`);
  lines.push(`limit ${PAGE_ROWS + 1}`);
  if (paging === "offset" && cursor) lines.push(`offset ${cursor.offset}`);
  return { sql: lines.join("\n"), params };
}

function buildCondition({ column, operator, value }: FilterRule, cast: string, put: (value: Value) => string): string {
  const name = ofTable(column);
  if (operator === "is null" || operator === "is not null") return `${name} ${operator}`;
  if (operator === "contains")
    return `${name}::text ilike '%' || ${put(value.replace(/[\\%_]/g, "\\$&"))}::text || '%'`;
  return `${name} ${operator} ${put(value)}${cast}`;
}

function buildOrder(key: string[], order: Order | null, isBack: boolean): string[] {
  const direction = (descending: boolean) => (descending !== isBack ? " desc" : "");
  const keys = key.map((name) => `${name}${direction(order?.descending ?? false)}`);
  if (!order) return keys;
  const isDescending = order.descending !== isBack;
  return [`${ofTable(order.column)}${isDescending ? " desc nulls first" : " asc nulls last"}`, ...keys];
}

/** Rows behind the cursor. NULL sorts behind all values, in both directions of the page. */
function buildKeyset(
  key: string[],
  order: Order | null,
  cursor: Cursor,
  casts: { key: string[]; sorted: string },
  put: (value: Value) => string,
): string {
  const isDescending = (order?.descending ?? false) !== cursor.isBefore;
  const sign = isDescending ? "<" : ">";
  const values = cursor.key.map((value, at) => `${put(value)}${casts.key[at]!}`);
  const keyCondition = `(${key.join(", ")}) ${sign} (${values.join(", ")})`;
  if (!order) return keyCondition;
  const name = ofTable(order.column);
  if (cursor.sorted === null)
    return isDescending
      ? `(${name} is not null or (${name} is null and ${keyCondition}))`
      : `(${name} is null and ${keyCondition})`;
  const value = `${put(cursor.sorted)}${casts.sorted}`;
  const same = `(${name} = ${value} and ${keyCondition})`;
  return isDescending ? `(${name} < ${value} or ${same})` : `(${name} > ${value} or ${same} or ${name} is null)`;
}

/** A value as a literal of its column's type. */
export function literalFor(column: Column, value: string | null): string {
  if (value === null) return "null";
  // A number that is none of the type must reach the type's own input: as a number it would be rounded.
  if (/^int[248]$/.test(column.type) && /^-?\d+$/.test(value)) return value;
  if (column.type === "numeric" && /^-?\d+(\.\d+)?$/.test(value)) return value;
  return quoteLiteral(value);
}

/** The condition that a column still has the value that was seen, to the letter. A long one is known by its digest. */
export function isUnchanged(column: Column, old: string | null, digest: string | null, isLax: boolean): string {
  const name = quoteIdentifier(column.name);
  if (old === null) return `${name} is null`;
  if (digest !== null) return `${digestOf(name)} = ${quoteLiteral(digest)}`;
  if (isLax) return `${name}::text = ${quoteLiteral(old)} collate "C"`;
  if (EXACT.has(column.type)) return `${name} = ${literalFor(column, old)}`;
  return `${name}::text = ${quoteLiteral(old)}`;
}

export function isCut(value: Value): boolean {
  return typeof value === "string" && value.length > CUT_LENGTH;
}
