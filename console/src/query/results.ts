/** Results of what was run, and the running itself. */
import { asFailure, type Failure, isInDoubt } from "../api/http";
import {
  chooseTransactionId,
  type Done,
  OpenTransaction,
  type Outcome,
  runTransaction,
  settle,
  type Statement,
  streamQuery,
} from "../api/query";
import { session } from "../api/session";
import type { Notice, Timings } from "../api/types";
import { database } from "../app/database";
import { Rows } from "../grid/rows";
import { Store } from "../parts/store";
import { loadSchema, mayChangeSchema } from "../sql/schema";
import { isRead } from "../sql/tokens";
import { noteRun } from "./drafts";
import { type PlanNode, readPlan } from "./plan";

export type State = "running" | "done" | "failed" | "cancelled";

export interface Result {
  id: number;
  title: string;
  sql: string;
  state: State;
  isPinned: boolean;
  startedAt: number;
  endedAt: number | null;
  rows: Rows | null;
  affected: number | null;
  timings: Timings | null;
  notices: Notice[];
  failure: Failure | null;
  plan: PlanNode | null;
  /** A remark on the result as a whole: rows that were cut, how a transaction was committed. */
  remark: string | null;
  /** Rises with every change. */
  version: number;
}

export const results = new Store<Result[]>([]);
export const chosenResult = new Store<number>(0);
export const running = new Store<AbortController | null>(null);

let nextId = 1;

function makeResult(sql: string, title: string): Result {
  return {
    id: nextId++,
    title,
    sql,
    state: "running",
    isPinned: false,
    startedAt: performance.now(),
    endedAt: null,
    rows: null,
    affected: null,
    timings: null,
    notices: [],
    failure: null,
    plan: null,
    remark: null,
    version: 0,
  };
}

function titleOf(sql: string): string {
  const text = sql.replace(/\s+/g, " ").trim();
  return text.length > 28 ? `${text.slice(0, 27)}…` : text;
}

/** Show results in place of those that are not pinned. */
function show(made: Result[]): void {
  results.update((all) => [...all.filter((one) => one.isPinned), ...made]);
  chosenResult.set(made[0]!.id);
}

function touch(result: Result): void {
  result.version += 1;
  results.update((all) => [...all]);
}

function finish(result: Result, state: State, failure: Failure | null = null): void {
  result.state = state;
  result.failure = failure;
  result.endedAt = performance.now();
  touch(result);
}

export function closeResult(id: number): void {
  results.update((all) => all.filter((one) => one.id !== id));
  if (chosenResult.value === id) chosenResult.set(results.value.at(-1)?.id ?? 0);
}

export function pinResult(result: Result): void {
  result.isPinned = !result.isPinned;
  touch(result);
}

export function cancelRunning(): boolean {
  running.value?.abort();
  return running.value !== null;
}

const DRAW_MS = 120;

/** Run one statement; its rows are shown as they come. Return the failure, if any. */
export function runOne(statement: Statement): Promise<Failure | null> {
  const made = [makeResult(statement.sql, titleOf(statement.sql))];
  const ask = async (): Promise<Outcome> => (isRead(statement.sql) ? "aborted" : "unknown");
  return run(made, ask, async ([result], signal) => {
    const rows = new Rows();
    let drawnAt = 0;
    const reader = {
      columns: (columns: string[], types: string[]) => {
        rows.columns = columns;
        rows.types = types;
        if (columns.length) result!.rows = rows;
        touch(result!);
      },
      lines: (bytes: Uint8Array, places: number[]) => {
        const hasRoom = rows.add(bytes, places);
        if (performance.now() - drawnAt > DRAW_MS) {
          drawnAt = performance.now();
          touch(result!);
        }
        return hasRoom;
      },
    };
    const done = await streamQuery(statement, database.value, signal, reader);
    if (done) takeDone(result!, done);
    else
      result!.remark =
        "The page keeps no more rows than these; the statement was stopped. Narrow it to see the others.";
  });
}

function takeDone(result: Result, done: Done): void {
  result.affected = done.affected_rows;
  result.timings = done.timings;
  result.notices = done.notices ?? [];
}

const COMMITS = {
  two_phase: "Committed in two phases.",
  one_phase: "Committed.",
  engine: "Committed by the engine, at once.",
  read_only: "It only read: there was nothing to commit.",
};

/** Return whether a full database has refused to note an id: it would still let rows be deleted. */
function isFull({ body }: Failure): boolean {
  return body.sqlstate === "53100" && (body.statement ?? null) === null;
}

/** Run several statements as one transaction: all of them or none. */
export function runTogether(statements: Statement[]): Promise<Failure | null> {
  const made = statements.map((one, at) => makeResult(one.sql, `${at + 1}: ${titleOf(one.sql)}`));
  const from = database.value;
  // Where nothing can be written there is nothing to ask for.
  const mayWrite = session.allows("write");
  let id = mayWrite ? chooseTransactionId() : null;
  const ask = async (): Promise<Outcome> => (id ? await settle(id, from) : mayWrite ? "unknown" : "aborted");
  return run(made, ask, async (all, signal) => {
    const { answer, rows } = await runTransaction(statements, from, signal, id).catch((error: unknown) => {
      if (!isFull(asFailure(error))) throw error;
      id = null;
      return runTransaction(statements, from, signal, null);
    });
    answer.results.forEach((one, at) => {
      const result = all[at]!;
      if (one.columns.length) result.rows = Rows.of(one.columns, one.types, rows[at]!);
      result.affected = one.affected_rows;
      result.timings = answer.timings;
      result.remark =
        COMMITS[answer.commit] + (one.truncated ? " Rows were cut: run the statement alone to get all." : "");
    });
    chooseRows(all);
  });
}

/** Choose the first result that has rows, unless the reader has chosen another meanwhile. */
function chooseRows(made: Result[]): void {
  const withRows = made.find((result) => result.rows);
  if (withRows && chosenResult.value === made[0]!.id) chosenResult.set(withRows.id);
}

/** Return what stands before an explained statement. */
export function explainPrefix(analyze: boolean): string {
  return `explain (format json, verbose false${analyze ? ", analyze, buffers" : ""}) `;
}

/** Show how the engine would run a statement, or with `analyze` runs it: in a transaction that is rolled back. */
export function explain(statement: Statement, analyze: boolean): Promise<Failure | null> {
  const result = makeResult(statement.sql, `${analyze ? "Analyze" : "Explain"}: ${titleOf(statement.sql)}`);
  const ask = async (): Promise<Outcome> => "aborted";
  return run([result], ask, async ([shown], signal) => {
    const sql = explainPrefix(analyze) + statement.sql;
    const opened = await OpenTransaction.begin(database.value);
    try {
      const answer = await opened.query({ ...statement, sql }, signal);
      shown!.plan = readPlan(answer.rows[0]![0]!);
      shown!.remark = analyze ? "The statement ran in a transaction that was rolled back: nothing was changed." : null;
      shown!.timings = answer.timings ?? null;
    } finally {
      await opened.rollback();
    }
  });
}

/** Run work, and show how it ended. `ask` finds out what became of it where no answer tells. */
async function run(
  made: Result[],
  ask: () => Promise<Outcome>,
  work: (made: Result[], signal: AbortSignal) => Promise<void>,
): Promise<Failure | null> {
  if (running.value) return null;
  const controller = new AbortController();
  const from = database.value;
  running.set(controller);
  show(made);
  let failure: Failure | null = null;
  let outcome: Outcome = "committed";
  try {
    await work(made, controller.signal);
    for (const result of made) finish(result, "done");
  } catch (error) {
    failure = asFailure(error);
    const isCancelled = controller.signal.aborted;
    outcome = isCancelled || isInDoubt(failure) ? await ask() : "aborted";
    if (outcome === "committed") showCommitted(made);
    else fail(made, failure, isCancelled, outcome);
  } finally {
    running.set(null);
  }
  for (const result of made) note(result, from);
  if (outcome !== "aborted" && made.some((result) => mayChangeSchema(result.sql))) void loadSchema();
  return outcome === "committed" ? null : failure;
}

function showCommitted(made: Result[]): void {
  for (const result of made) {
    result.remark = "Committed. The answer is lost: its rows and counts are not known.";
    finish(result, "done");
  }
}

function fail(made: Result[], failure: Failure, isCancelled: boolean, outcome: Outcome): void {
  const statement = failure.body.statement ?? null;
  const at = statement ?? 0;
  made.forEach((result, index) => {
    const isFailed = !isCancelled && (made.length === 1 || index === at);
    if (outcome !== "aborted") result.remark = "Whether it was applied is not known. Look before you run it again.";
    else if (made.length > 1 && (isCancelled || statement === null)) result.remark = "Nothing was applied.";
    else if (!isFailed && !isCancelled) result.remark = `Nothing was applied: statement ${at + 1} failed.`;
    finish(result, isFailed ? "failed" : "cancelled", isFailed ? failure : null);
  });
  chosenResult.set((made[at] ?? made[0]!).id);
}

function note(result: Result, from: string | null): void {
  noteRun({
    sql: result.sql,
    at: new Date().toISOString(),
    database: from,
    ms: Math.round((result.endedAt ?? 0) - result.startedAt),
    rows: result.rows?.count ?? result.affected ?? 0,
    problem: result.failure?.message ?? (result.state === "cancelled" ? "cancelled" : null),
  });
}
