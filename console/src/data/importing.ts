/** Sends the rows of a CSV file: all in one transaction, and a row that is refused is found and named. */
import { asFailure, Failure, makeFailure } from "../api/http";
import { OpenTransaction, settle } from "../api/query";
import { database } from "../app/database";
import { keepUnsent } from "../app/unsent";
import { plural } from "../parts/show";
import type { Store } from "../parts/store";
import { quoteIdentifier, quoteTable } from "../sql/quote";
import type { Table } from "../sql/schema";
import type { Csv } from "./csv";

const BATCH_ROWS = 2_000;
const BATCH_BYTES = 2 << 20;

/** A column of the file, and the one that it goes to. */
export interface Target {
  name: string;
  type: string;
  isUsed: boolean;
}

export interface Import {
  csv: Csv;
  name: string;
  existing: Table | undefined;
  targets: Target[];
}

interface Used {
  name: string;
  /** As SQL writes it. */
  type: string;
  /** Its place in the file. */
  at: number;
}

/** Columns with their types as SQL writes them. Without a length: a cast to one would cut what is too long. */
const COLUMN_TYPES = `
select attname::text, format_type(atttypid, -1) from pg_attribute
where attrelid = $1::text::regclass and attnum > 0 and not attisdropped`;

async function listUsed(opened: OpenTransaction, { targets, existing }: Import): Promise<Used[]> {
  const types = new Map<string, string>();
  if (existing) {
    const table = quoteTable(existing.schema, existing.name);
    const { rows } = await opened.query({ sql: COLUMN_TYPES, params: [table] });
    for (const [name, type] of rows) types.set(String(name), String(type));
  }
  return targets.flatMap(({ name, type, isUsed }, at) => (isUsed ? [{ name, type: types.get(name) ?? type, at }] : []));
}

/** Find the table that a name means: one of `public`, or one with its schema before it. */
export function findTarget(tables: Table[], name: string): Table | undefined {
  const own = tables.filter((table) => table.kind === "table");
  return (
    own.find((table) => table.schema === "public" && table.name === name) ??
    own.find((table) => `${table.schema}.${table.name}` === name)
  );
}

/** Return where the rows go, with the schema. */
export function nameTarget(existing: Table | undefined, name: string): string {
  return `${existing?.schema ?? "public"}.${existing?.name ?? name}`;
}

/** An import whose commit was sent. As long as this is kept, what became of it is not known. */
interface SentImport {
  transaction: string;
  /** What was sent, for the reader. */
  what: string;
}

function sentImport(): Store<SentImport | null> {
  return keepUnsent<SentImport>("import", database.value);
}

/** Find out what became of an import whose answer was lost. Fails where it is done already, or where nobody knows. */
export async function settleImport(): Promise<void> {
  const sent = sentImport();
  if (!sent.value) return;
  const { transaction, what } = sent.value;
  const outcome = await settle(transaction, database.value);
  if (outcome !== "unknown") sent.set(null);
  if (outcome === "aborted") return;
  if (outcome === "committed")
    throw makeFailure(
      "imported_before",
      `${what} before, only the answer was lost.`,
      "Import again to do it once more.",
    );
  const hint = "Look at the table before you import again.";
  throw makeFailure("outcome_unknown", `It is not known whether ${what} before.`, hint);
}

/** Import all rows in one transaction; nothing stays if one is refused. */
export async function importRows(given: Import, tellDone: (done: number) => void): Promise<void> {
  const sent = sentImport();
  const { rows } = given.csv;
  const { existing } = given;
  const table = quoteTable(existing?.schema ?? "public", existing?.name ?? given.name);
  const what = `${plural(rows.length, "row")} ${rows.length === 1 ? "was" : "were"} imported into ${nameTarget(existing, given.name)}`;
  const opened = await OpenTransaction.begin(database.value, { timeout_ms: 3_600_000, idle_timeout_ms: 60_000 });
  let isOpen = true;
  try {
    const used = await listUsed(opened, given);
    const sender = new Sender(opened, given.csv, used, writeInsert(table, used));
    if (!existing)
      await opened.query({
        sql: `create table ${table} (${used.map(({ name, type }) => `${quoteIdentifier(name)} ${type}`).join(", ")})`,
      });
    for (let from = 0; from < rows.length;) {
      const until = endOfBatch(rows, from);
      if (await sender.tryRows(from, until)) throw await sender.explainRefusal(from, until);
      from = until;
      tellDone(until);
    }
    isOpen = false;
    sent.set({ transaction: opened.id, what });
    await opened.commit();
    sent.set(null);
  } catch (error) {
    if (asFailure(error).code !== "outcome_unknown") sent.set(null);
    throw error;
  } finally {
    if (isOpen) await opened.rollback();
  }
}

function writeInsert(table: string, used: Used[]): string {
  const columns = used.map(({ name }) => quoteIdentifier(name));
  const fields = used.map((_, at) => `f${at + 1}`);
  const values = used.map(({ type }, at) => `${fields[at]}::${type}`);
  const arrays = used.map((_, at) => `$${at + 1}::text[]`);
  return `insert into ${table} (${columns.join(", ")}) select ${values.join(", ")} from unnest(${arrays.join(", ")}) as f (${fields.join(", ")})`;
}

function endOfBatch(rows: (string | null)[][], from: number): number {
  let bytes = 0;
  let at = from;
  while (at < rows.length && at - from < BATCH_ROWS && bytes < BATCH_BYTES) {
    for (const field of rows[at]!) bytes += (field?.length ?? 0) + 4;
    at += 1;
  }
  return at;
}

/** Return the first of some things that is refused, where `isRefused` tells it of a part of them, in order. */
async function findFirst(
  from: number,
  until: number,
  isRefused: (from: number, until: number) => Promise<boolean>,
): Promise<number> {
  let low = from;
  let high = until;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (await isRefused(low, middle)) high = middle;
    else low = middle;
  }
  return low;
}

/** Sends parts of a file within an open transaction, which goes on when one is refused. */
class Sender {
  readonly #opened: OpenTransaction;
  readonly #csv: Csv;
  readonly #used: Used[];
  readonly #insert: string;

  constructor(opened: OpenTransaction, csv: Csv, used: Used[], insert: string) {
    this.#opened = opened;
    this.#csv = csv;
    this.#used = used;
    this.#insert = insert;
  }

  /** Insert rows; return why they were refused. */
  tryRows(from: number, until: number): Promise<Failure | null> {
    const part = this.#csv.rows.slice(from, until);
    return this.#try(
      this.#insert,
      this.#used.map(({ at }) => part.map((row) => row[at] ?? null)),
      until - from,
    );
  }

  /** Run a statement that must reach so many rows, where that is given. */
  async #try(
    sql: string,
    params: (string | null | (string | null)[])[],
    count: number | null = null,
  ): Promise<Failure | null> {
    await this.#opened.query({ sql: "savepoint part" });
    try {
      const { affected_rows: reached } = await this.#opened.query({ sql, params });
      if (count !== null && reached !== count)
        throw makeFailure("row_swallowed", "a trigger or a rule of the table has kept rows out");
    } catch (error) {
      const failure = asFailure(error);
      // Where the transaction cannot go on there is no row to look for.
      await this.#opened.query({ sql: "rollback to savepoint part" }).catch(() => {
        throw failure;
      });
      return failure;
    }
    await this.#opened.query({ sql: "release savepoint part" });
    return null;
  }

  /** Find the row that makes a part refused, and where it can be told the column. */
  async explainRefusal(from: number, until: number): Promise<Failure> {
    const at = await findFirst(from, until, async (low, high) => (await this.tryRows(low, high)) !== null);
    const failure = await this.tryRows(at, at + 1);
    // What was refused together is taken alone: the reason has passed, as a conflict with somebody else does.
    if (!failure)
      throw makeFailure("passing", "Rows were refused, and then taken. Nothing was imported.", "Try again.");
    const column = failure.body.sqlstate?.startsWith("22") ? await this.#findColumn(at) : null;
    const where = `Line ${this.#csv.lines[at]}${column ? `, column ${column}` : ""}`;
    const message = `${where}: ${failure.message}. Nothing was imported.`;
    return new Failure(failure.status, { ...failure.body, message }, failure.requestId);
  }

  /** Return the column of a row whose text is no value of its type. */
  async #findColumn(row: number): Promise<string | null> {
    const refuses = async (from: number, until: number) => {
      const part = this.#used.slice(from, until);
      const casts = part.map(({ type }, at) => `$${at + 1}::text::${type}`);
      const values = part.map(({ at }) => this.#csv.rows[row]![at] ?? null);
      return (await this.#try(`select ${casts.join(", ")}`, values)) !== null;
    };
    const at = await findFirst(0, this.#used.length, refuses);
    return (await refuses(at, at + 1)) ? this.#used[at]!.name : null;
  }
}
