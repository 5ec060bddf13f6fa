/** Statements: small ones with one answer, large ones as a stream, several as a transaction, and open transactions. */
import { isRead } from "../sql/tokens";
import { asFailure, askData, askDataText, Failure, isInDoubt, makeFailure, openData } from "./http";
import { findPart, splitJson } from "./json";
import type { Notice, ErrorBody, StatementAnswer, Timings, TransactionAnswer, Value } from "./types";

const ROWS = { row_mode: "arrays", big_numbers: "string" } as const;

export interface Statement {
  sql: string;
  params?: Value[];
}

/** Run a statement whose rows are few. */
export function querySmall(
  sql: string,
  params: Value[],
  database: string | null,
  signal?: AbortSignal,
): Promise<StatementAnswer> {
  const sending = { method: "POST", body: { sql, ...(params.length ? { params } : {}), ...ROWS }, database };
  return askData<StatementAnswer>("/v1/query", signal ? { ...sending, signal } : sending);
}

/** Choose the id of a transaction before it is sent, so that its outcome can be asked for. */
export function chooseTransactionId(): string {
  return `txn_${crypto.randomUUID()}`;
}

/** Run a transaction. `rows` are those of each statement, every row as the text that came. */
export async function runTransaction(
  statements: Statement[],
  database: string | null,
  signal: AbortSignal,
  id: string | null,
): Promise<{ answer: TransactionAnswer; rows: string[][] }> {
  const headers: Record<string, string> = id ? { "Tuplegate-Transaction-Id": id } : {};
  const sending = { method: "POST", body: { statements, ...ROWS }, database, signal, headers };
  const { body, text } = await askDataText<TransactionAnswer>("/v1/transaction", sending);
  const results = splitJson(findPart(text, "results") ?? "[]")!.items;
  return { answer: body, rows: results.map((one) => splitJson(findPart(one, "rows") ?? "[]")!.items) };
}

/** What became of a transaction. `forgotten`: the service does not know it, or another key has begun it. */
export type Outcome = "committed" | "aborted" | "unknown" | "forgotten";

const SETTLE_MS = 10_000;
const SETTLE_TRIES = 10;
const SETTLE_PAUSE_MS = 300;

/** Find out what became of a transaction. One that is not committed by then never will be. */
export async function settle(id: string, database: string | null): Promise<Outcome> {
  for (let tries = 0; tries < SETTLE_TRIES; tries++) {
    try {
      const sending = { method: "POST", body: {}, database, signal: AbortSignal.timeout(SETTLE_MS) };
      const { state } = await askData<{ state: string }>(`/v1/transaction/${id}/abort`, sending);
      if (state === "committed" || state === "aborted") return state;
    } catch (error) {
      return asFailure(error).code === "not_found" ? "forgotten" : "unknown";
    }
    await new Promise((resolve) => setTimeout(resolve, SETTLE_PAUSE_MS));
  }
  return "unknown";
}

export interface Done {
  row_count: number;
  affected_rows: number;
  timings: Timings;
  notices?: Notice[];
  truncated?: boolean;
}

export interface Reader {
  columns(columns: string[], types: string[]): void;
  /** Rows as JSON, by where each starts and ends in the bytes. Return false to stop. */
  lines(bytes: Uint8Array, places: number[]): boolean;
}

const NEWLINE = 10;
const ROW_START = new TextEncoder().encode('{"event":"row","data":');
const ROW_PREFIX = ROW_START.length;

/** Run a statement as a stream. Rows are handed on as bytes: who wants one parses it. */
export async function streamQuery(
  statement: Statement,
  database: string | null,
  signal: AbortSignal,
  reader: Reader,
): Promise<Done | null> {
  const body = { sql: statement.sql, ...(statement.params?.length ? { params: statement.params } : {}), ...ROWS };
  const headers = { Accept: "application/x-ndjson" };
  const answer = await openData("/v1/query", { method: "POST", body, headers, database, signal });
  const source = answer.body!.getReader();
  // Pieces of a line that has not ended yet: a long one is joined once, not with every piece.
  let pending: Uint8Array[] = [];
  try {
    for (;;) {
      const { value, done } = await readPiece(source, signal);
      if (done) throw makeCutOff(statement.sql);
      pending.push(value);
      if (!value.includes(NEWLINE)) continue;
      const bytes = join(pending);
      const events = splitEvents(bytes);
      pending = events.end < bytes.length ? [bytes.slice(events.end)] : [];
      for (const event of events.others) {
        if (event.rowsBefore.length && !reader.lines(bytes, event.rowsBefore)) return null;
        const outcome = readEvent(event, reader);
        if (outcome) return outcome;
      }
      if (events.rows.length && !reader.lines(bytes, events.rows)) return null;
    }
  } finally {
    await source.cancel().catch(() => undefined);
  }
}

function makeCutOff(sql: string): Failure {
  const hint = `The rows shown are not all.${isRead(sql) ? " Run it again." : ""}`;
  return makeFailure("cut_off", "The connection was lost before the last row.", hint);
}

/** Read the next piece. A connection that breaks is an end like any other. */
async function readPiece(source: ReadableStreamDefaultReader<Uint8Array>, signal: AbortSignal) {
  try {
    const { value, done } = await source.read();
    return { value: value ?? new Uint8Array(0), done };
  } catch (error) {
    if (signal.aborted) throw error;
    return { value: new Uint8Array(0), done: true };
  }
}

interface OtherEvent {
  text: string;
  /** Start and end of the rows that came before it in the same piece. */
  rowsBefore: number[];
}

/** Find the lines of a piece: rows by where they start and end, in pairs, and other events as text. */
function splitEvents(bytes: Uint8Array): { rows: number[]; others: OtherEvent[]; end: number } {
  let rows: number[] = [];
  const others: OtherEvent[] = [];
  let start = 0;
  for (;;) {
    const end = bytes.indexOf(NEWLINE, start);
    if (end < 0) return { rows, others, end: start };
    if (isRow(bytes, start)) rows.push(start + ROW_PREFIX, end - 1);
    else if (end > start) {
      others.push({ text: new TextDecoder().decode(bytes.subarray(start, end)), rowsBefore: rows });
      rows = [];
    }
    start = end + 1;
  }
}

function isRow(bytes: Uint8Array, start: number): boolean {
  // "row" and "done", "error", "columns", "heartbeat" differ in their first letter.
  return bytes[start + 10] === 0x72;
}

function readEvent(event: OtherEvent, reader: Reader): Done | null {
  const { event: kind, data } = JSON.parse(event.text) as { event: string; data: Record<string, unknown> };
  if (kind === "columns") reader.columns(data["columns"] as string[], data["types"] as string[]);
  if (kind === "error") throw new Failure(200, data["error"] as ErrorBody);
  return kind === "done" ? (data as unknown as Done) : null;
}

function join(pieces: Uint8Array[]): Uint8Array {
  if (pieces.length === 1) return pieces[0]!;
  const joined = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    joined.set(piece, at);
    at += piece.length;
  }
  return joined;
}

/** A transaction that stays open between requests. */
export class OpenTransaction {
  readonly id: string;
  readonly #database: string | null;

  private constructor(id: string, database: string | null) {
    this.id = id;
    this.#database = database;
  }

  static async begin(
    database: string | null,
    options: { read_only?: boolean; timeout_ms?: number; idle_timeout_ms?: number } = {},
  ): Promise<OpenTransaction> {
    const begun = await askData<{ transaction_id: string }>("/v1/transaction/begin", {
      method: "POST",
      body: options,
      database,
    });
    return new OpenTransaction(begun.transaction_id, database);
  }

  query(statement: Statement, signal?: AbortSignal): Promise<StatementAnswer> {
    const body = { ...statement, ...ROWS };
    return askData(`/v1/transaction/${this.id}/query`, {
      method: "POST",
      body,
      database: this.#database,
      ...(signal ? { signal } : {}),
    });
  }

  /** Commit. Where the answer is lost it is sent again, which is safe, and then asked what became of it. Where nobody
   * tells that, it fails with `outcome_unknown`; every other failure means that nothing was applied. */
  async commit(): Promise<void> {
    try {
      await this.#sendCommit();
    } catch (error) {
      if (!isInDoubt(asFailure(error))) throw error;
      await this.#sendCommit().catch(() => this.#settle());
    }
  }

  async #sendCommit(): Promise<void> {
    await askData(`/v1/transaction/${this.id}/commit`, { method: "POST", body: {}, database: this.#database });
  }

  async #settle(): Promise<void> {
    const outcome = await settle(this.id, this.#database);
    if (outcome === "committed") return;
    if (outcome === "aborted")
      throw makeFailure(
        "transaction_aborted",
        "The commit did not reach the service. Nothing was applied.",
        "Try again.",
      );
    throw makeFailure("outcome_unknown", "No answer came to the commit: whether it was done is not known.");
  }

  async rollback(): Promise<void> {
    await askData(`/v1/transaction/${this.id}/rollback`, { method: "POST", database: this.#database }).catch(
      () => undefined,
    );
  }
}
