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
const COMPARABLE = new Set([...SHORT, "numeric", "text", "varchar", "citext"]);

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

export function cellExpression(column: Column, name = ofTable(column.name)): string {
  return SHORT.has(column.type) ? `${name}::text` : `left(${name}::text, ${CUT_LENGTH + 1})`;
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
  const conditions = filters.map((rule) => buildCondition(rule, put));
  const isBack = cursor?.isBefore ?? false;
  if (cursor && key.length) conditions.push(buildKeyset(key, order, cursor, put));
  const columns = table.columns.map((column) => cellExpression(column));
  if (paging === "ctid") columns.push("t.ctid::text");
  const lines = [`select ${columns.join(", ")}`, `from ${quoteTable(table.schema, table.name)} as t`];
  if (conditions.length) lines.push(`where ${conditions.join(" and ")}`);
  const orders = buildOrder(key, order, isBack);
  if (orders.length) lines.push(`order by ${orders.join(", ")}`);
  lines.push(`limit ${PAGE_ROWS + 1}`);
  if (paging === "offset" && cursor) lines.push(`offset ${cursor.offset}`);
  return { sql: lines.join("\n"), params };
}

function buildCondition({ column, operator, value }: FilterRule, put: (value: Value) => string): string {
  const name = ofTable(column);
  if (operator === "is null" || operator === "is not null") return `${name} ${operator}`;
  if (operator === "contains")
    return `${name}::text ilike '%' || ${put(value.replace(/[\\%_]/g, "\\$&"))}::text || '%'`;
  return `${name} ${operator} ${put(value)}`;
}

function buildOrder(key: string[], order: Order | null, isBack: boolean): string[] {
  const direction = (descending: boolean) => (descending !== isBack ? " desc" : "");
  const keys = key.map((name) => `${name}${direction(order?.descending ?? false)}`);
  if (!order) return keys;
  const isDescending = order.descending !== isBack;
  return [`${ofTable(order.column)}${isDescending ? " desc nulls first" : " asc nulls last"}`, ...keys];
}

/** Rows behind the cursor. NULL sorts behind all values, in both directions of the page. */
function buildKeyset(key: string[], order: Order | null, cursor: Cursor, put: (value: Value) => string): string {
  const isDescending = (order?.descending ?? false) !== cursor.isBefore;
  const sign = isDescending ? "<" : ">";
  const cast = key[0] === "t.ctid" ? "::tid" : "";
  const values = cursor.key.map((value) => `${put(value)}${cast}`);
  const keyCondition = `(${key.join(", ")}) ${sign} (${values.join(", ")})`;
  if (!order) return keyCondition;
  const name = ofTable(order.column);
  if (cursor.sorted === null)
    return isDescending
      ? `(${name} is not null or (${name} is null and ${keyCondition}))`
      : `(${name} is null and ${keyCondition})`;
  const value = put(cursor.sorted);
  const same = `(${name} = ${value} and ${keyCondition})`;
  return isDescending ? `(${name} < ${value} or ${same})` : `(${name} > ${value} or ${same} or ${name} is null)`;
}

/** A value as a literal of its column's type. */
export function literalFor(column: Column, value: string | null): string {
  if (value === null) return "null";
  if (/^(int2|int4|int8|numeric)$/.test(column.type) && /^-?\d+(\.\d+)?$/.test(value)) return value;
  return quoteLiteral(value);
}

/** The condition that a column still has the value that was shown. */
export function isUnchanged(column: Column, old: string | null, isWhole: boolean): string {
  const name = quoteIdentifier(column.name);
  if (old === null) return `${name} is null`;
  if (COMPARABLE.has(column.type) && old.length <= CUT_LENGTH) return `${name} = ${literalFor(column, old)}`;
  const expression = isWhole ? `${name}::text` : cellExpression(column, name);
  return `${expression} = ${quoteLiteral(old)}`;
}

export function isCut(value: Value): boolean {
  return typeof value === "string" && value.length > CUT_LENGTH;
}
