// What the package exports, written by hand. A test compares it with `src/`.

/// <reference lib="esnext.disposable" />

import type {
  ErrorBody,
  ErrorCode,
  Notice,
  OpenState as ServiceState,
  OwnOrganization,
  SessionRecord,
  Timings,
  TransactionAnswer,
  TransactionState,
  UsageRecord,
} from "./service.js";

export type { ErrorBody, ErrorCode, Notice, OwnOrganization, SessionRecord, Timings, UsageRecord };

/** With `snapshot`, a replica may answer what only reads. */
export type Consistency = "serializable" | "snapshot";

/** Rows as objects by column name, or as arrays in the order of the columns. */
export type RowMode = "objects" | "arrays";

/** A statement of a transaction: SQL, or SQL and parameters. */
export type Statement = string | { sql: string; params?: readonly unknown[] };

export interface ClientOptions {
  /** Address of the control plane. Without it, the service at `url` is asked for it when it is first needed. */
  controlUrl?: string;
  /** A database by name, where the token is for all of them. */
  database?: string;
  /** Time of one call, retries included, in milliseconds: 60,000 by default. */
  timeoutMs?: number;
  /** How often a call is sent again: 5 by default. */
  retries?: number;
  /** With `"snapshot"`, a replica may answer reads; they show at least what this client has written and seen. */
  consistency?: Consistency;
  /** What sends a request; by default the global `fetch`. */
  fetch?: typeof fetch;
}

export interface CallOptions {
  /** Ends the call: it then throws the signal's reason. */
  signal?: AbortSignal;
}

export interface CommitOptions extends CallOptions {
  timeoutMs?: number;
}

export interface StatementOptions extends CommitOptions {
  /** More rows than this are cut, and `truncated` is set. */
  maxRows?: number;
  rowMode?: RowMode;
}

export interface StreamOptions extends StatementOptions {
  consistency?: Consistency;
}

export interface QueryOptions extends StreamOptions {
  /** With false a write is sent without an Idempotency-Key: it is faster, and after a lost answer it is unknown. */
  idempotent?: boolean;
  /** The same call with the same key runs at most once. */
  idempotencyKey?: string;
}

export interface TransactionOptions extends CommitOptions {
  readOnly?: boolean;
  rowMode?: RowMode;
  idempotencyKey?: string;
  /** An id of your own, used once. The call is then not repeated: `transactionState` tells the outcome. */
  transactionId?: string;
  consistency?: Consistency;
}

export interface BeginOptions extends CallOptions {
  readOnly?: boolean;
  /** Time of the whole transaction. */
  timeoutMs?: number;
  /** The service rolls it back after this time without a statement. */
  idleTimeoutMs?: number;
}

export interface RunOptions extends BeginOptions {
  /** How often it is run at most: 5 by default. */
  attempts?: number;
}

export interface SessionOptions extends CallOptions {
  scopes?: readonly ("read" | "write" | "admin" | "operator")[];
  database?: string;
  /** Lifetime in seconds: 24 hours by default. */
  expiresIn?: number;
}

export interface UsageOptions extends CallOptions {
  since?: Date;
  until?: Date;
}

/** A session. Its token does what the session may, until it expires. */
export interface Session extends SessionRecord {
  token: string;
}

/** A committed transaction: the rows of each statement, and how it went. */
export interface Transaction<Row = Record<string, any>> {
  id: string;
  results: Result<Row>[];
  affectedRows: number;
  attempts: number;
  commit: TransactionAnswer["commit"];
  /** True if it is the answer of an earlier request. */
  replayed: boolean;
}

/** `new` before the first statement; `in_progress` if the answer to its commit was lost. */
export type OpenState = "new" | TransactionState["state"];

/** What an answer says about its open transaction. */
export type Report = ServiceState;

/** A result as the service sends it. */
export interface ResultBody {
  columns: string[];
  types: string[];
  rows: unknown[];
  affected_rows: number;
  truncated?: true;
  notices?: Notice[];
  timings?: Timings;
}

/** The answer to a request that failed. */
export interface FailureBody {
  error: ErrorBody;
  request_id?: string;
  transaction_id?: string;
}

/** Codes that come from the client itself. */
export type ClientCode = "unreachable" | "answer_lost" | "stream_cut" | "foreign_answer" | "not_one_row" | "rows_lost";

export interface ErrorFields {
  code: ErrorCode | ClientCode | (string & {});
  status?: number | null;
  sqlstate?: string | null;
  position?: number | null;
  hint?: string | null;
  detail?: string | null;
  statement?: number | null;
  retryable?: boolean;
  retryAfterMs?: number | null;
  requestId?: string | null;
  idempotencyKey?: string | null;
  transactionId?: string | null;
  reason?: string | null;
  answer?: FailureBody | null;
  cause?: unknown;
}

/** Anything that went wrong between a call and its answer. `code` says what. */
export class TuplegateError extends Error {
  constructor(message: string, fields: ErrorFields);
  /** A code of the service, or one of the client's own. */
  readonly code: ErrorFields["code"];
  /** The status of the answer; null if there was none. */
  readonly status: number | null;
  /** What PostgreSQL says of a statement. */
  readonly sqlstate: string | null;
  /** Where in the SQL, in characters from 1. */
  readonly position: number | null;
  readonly hint: string | null;
  readonly detail: string | null;
  /** The index of the statement that failed, in a transaction. */
  readonly statement: number | null;
  /** True if the same call may succeed later. The client has already tried as often as it may. */
  readonly retryable: boolean;
  readonly retryAfterMs: number | null;
  /** Names the exchange in the log of the service. */
  readonly requestId: string | null;
  /** Of an unknown outcome: the same call with this key runs at most once. */
  readonly idempotencyKey: string | null;
  /** Of an unknown outcome: `client.transactionState` tells what became of it. */
  readonly transactionId: string | null;
  /** Why a transaction was aborted. */
  readonly reason: string | null;
  /** The body of the answer, if one came. */
  readonly answer: FailureBody | null;
}

/** The rows of one statement. It can be iterated. */
export class Result<Row = Record<string, any>> implements Iterable<Row> {
  private constructor();
  readonly rows: Row[];
  readonly columns: string[];
  /** The type of each column, as `int4` or `text[]`. */
  readonly types: string[];
  readonly affectedRows: number;
  /** True if rows were cut. */
  readonly truncated: boolean;
  readonly notices: Notice[];
  readonly timings: Timings | null;
  /** True if it is the answer of an earlier request. */
  readonly replayed: boolean;
  /** Return the only row. Throws `not_one_row` if there are none or several. */
  one(): Row;
  /** Return the first column of the only row. */
  value(): any;
  [Symbol.iterator](): IterableIterator<Row>;
}

/**
 * The rows of a statement as they arrive, in constant memory.
 *
 * They are provisional until the last one: an error can still end the iteration. To leave the loop closes the stream.
 */
export class RowStream<Row = Record<string, any>> implements AsyncIterable<Row> {
  private constructor();
  /** Known once the stream is open, as is `types`. */
  readonly columns: string[];
  readonly types: string[];
  /** Known after the last row, as are the following. */
  readonly rowCount: number;
  readonly affectedRows: number;
  readonly truncated: boolean;
  readonly notices: Notice[];
  /** Open the stream, and read the columns. The first row does so too. */
  open(): Promise<this>;
  /** End the stream. A statement that is still running is cancelled. */
  close(): Promise<void>;
  [Symbol.asyncIterator](): AsyncGenerator<Row, void, undefined>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** A transaction whose statements are sent one by one. It runs one at a time. */
export class OpenTransaction {
  private constructor();
  /** Null before the first statement. */
  readonly id: string | null;
  readonly state: OpenState;
  /** Why it was aborted: `rollback`, `conflict`, `expired`, `revoked`, `limit` or `lost`. */
  readonly reason: string | null;
  /** When the service rolls it back if no further statement comes. */
  readonly expiresAt: Date | null;
  /**
   * Run one statement. After a lost answer it is sent again, and not run again.
   *
   * After a conflict all of the transaction must be run again, as `client.run` does. After any other failure it can
   * only be rolled back, or rolled back to a savepoint.
   */
  query<Row extends unknown[] = any[]>(
    sql: string,
    params: readonly unknown[] | undefined,
    options: StatementOptions & { rowMode: "arrays" },
  ): Promise<Result<Row>>;
  query<Row = Record<string, any>>(
    sql: string,
    params?: readonly unknown[],
    options?: StatementOptions,
  ): Promise<Result<Row>>;
  /** Return the rows of one statement as they arrive. The transaction runs nothing else until the stream has ended. */
  stream<Row = Record<string, any>>(
    sql: string,
    params?: readonly unknown[],
    options?: StatementOptions,
  ): RowStream<Row>;
  /** Call the function. If it throws, what was run in it is undone, and no more. */
  savepoint<T>(work: () => Promise<T>): Promise<T>;
  /** Commit, after running a last statement if one is given. After a lost answer it is asked what happened. */
  commit(statement?: Statement, options?: CommitOptions): Promise<Transaction>;
  /** Roll back. Nothing happens if that has happened already. */
  rollback(): Promise<void>;
  /** Roll back what is not committed. */
  [Symbol.asyncDispose](): Promise<void>;
}

/** A client of a Tuplegate service. `token` is an API key, or the token of a session. */
export class Client {
  constructor(url: string, token: string, options?: ClientOptions);
  readonly url: string;
  /** Run one statement. `params` fill `$1`, `$2`, … After a lost answer it is repeated, and never writes twice. */
  query<Row extends unknown[] = any[]>(
    sql: string,
    params: readonly unknown[] | undefined,
    options: QueryOptions & { rowMode: "arrays" },
  ): Promise<Result<Row>>;
  query<Row = Record<string, any>>(
    sql: string,
    params?: readonly unknown[],
    options?: QueryOptions,
  ): Promise<Result<Row>>;
  /** Return the rows of one statement as they arrive. Nothing is repeated once it has been sent. */
  stream<Row = Record<string, any>>(
    sql: string,
    params?: readonly unknown[],
    options?: StreamOptions,
  ): RowStream<Row>;
  /** Run statements as one atomic unit. After a lost answer it is repeated, and never writes twice. */
  transaction(statements: readonly Statement[], options?: TransactionOptions): Promise<Transaction>;
  /** Return a transaction to run statements in one by one. Nothing is sent before its first statement. */
  begin(options?: BeginOptions): OpenTransaction;
  /**
   * Call the function with a transaction, commit, and return what the function returned.
   *
   * After a conflict all of it is run again in a new transaction. So the function must do nothing that cannot be done
   * twice, except through the transaction.
   */
  run<T>(work: (transaction: OpenTransaction) => Promise<T> | T, options?: RunOptions): Promise<T>;
  /** Return what became of a transaction. Throws `not_found` for an id that was never seen. */
  transactionState(id: string, options?: CallOptions): Promise<TransactionState["state"]>;
  /** Abort an unfinished or unknown id for good, and return its final state. */
  abortTransaction(id: string, options?: CallOptions): Promise<TransactionState["state"]>;
  /** Make a session for somebody else, such as a page in a browser. The client's token must be an API key. */
  createSession(options?: SessionOptions): Promise<Session>;
  /** Return the session whose token this client has. */
  whoAmI(options?: CallOptions): Promise<SessionRecord>;
  /** Extend the session. */
  refreshSession(options?: CallOptions): Promise<SessionRecord>;
  /** End the session: its token is refused from now on. */
  endSession(options?: CallOptions): Promise<void>;
  /** Return the organization of the token, with its tier and limits. */
  organization(options?: CallOptions): Promise<OwnOrganization>;
  /** Return requests, rows, bytes and errors by hour and database: of the last 24 hours by default. */
  usage(options?: UsageOptions): Promise<UsageRecord[]>;
}
