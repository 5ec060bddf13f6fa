// Made by tools/javascript_types.py of the OpenAPI documents of the service. Do not edit.

/** The codes of errors; docs/errors.md says what each means. */
export type ErrorCode =
  | "already_exists"
  | "already_running"
  | "answers_full"
  | "body_too_large"
  | "busy"
  | "conflict"
  | "copy_not_supported"
  | "data_plane_unavailable"
  | "delete_protected"
  | "dump_failed"
  | "empty_statement"
  | "engine_unavailable"
  | "forbidden"
  | "idempotency_in_progress"
  | "idempotency_mismatch"
  | "internal"
  | "malformed_request"
  | "method_not_allowed"
  | "move_failed"
  | "multiple_statements"
  | "not_acceptable"
  | "not_found"
  | "not_supported"
  | "organization_full"
  | "out_of_sequence"
  | "outcome_unknown"
  | "parameter_mismatch"
  | "parse_error"
  | "rate_limited"
  | "request_timeout"
  | "shutting_down"
  | "sql_error"
  | "storage_mismatch"
  | "timeout"
  | "too_many_comments"
  | "too_many_databases"
  | "transaction_aborted"
  | "transaction_control"
  | "transaction_expired"
  | "transaction_id_used"
  | "transaction_in_use"
  | "unauthenticated"
  | "unsupported_media_type"
  | "upgrade_required"
  | "weaker_walls"
  | "wrong_state";

export interface AuditList {
  success: true;
  next_cursor: string | null;
  items: AuditRecord[];
}

/**
 * `address` is where the request came from: of a proxy or the alias, if there is one in between. Null for what was
 * done on the machine itself. What the same key does again within an hour, as opening a session, is counted in one
 * entry: `count`, with the time of the last.
 */
export interface AuditRecord {
  id: number;
  at: string;
  action: string;
  subject: string;
  key: string | null;
  session: string | null;
  address: string | null;
  request_id: string;
  count: number;
  last_at: string | null;
}

/** `data_url`, `control_url` and `console` are addresses; null if this plane does not know them. */
export interface Banner {
  service: string;
  plane: string;
  version: string;
  description: string;
  endpoints: Record<string, string>;
  data_url: string | null;
  control_url: string | null;
  authentication: string;
  documentation: string;
  console: string | null;
  openapi: string;
}

/** The body of `POST /v1/transaction/begin`. */
export interface BeginRequest {
  statement?: string | FirstItem | null;
  /** Without it: `false`. */
  read_only?: boolean;
  timeout_ms?: number | null;
  idle_timeout_ms?: number | null;
  /** Without it: `"objects"`. */
  row_mode?: "arrays" | "objects";
  /** Without it: `"number"`. */
  big_numbers?: "number" | "string";
}

export interface BenchAnswer {
  success: true;
  workload: string;
  concurrency: number;
  seconds: number;
  operations: number;
  retries: number;
  errors: number;
  per_second: number;
  latency_us: Percentiles;
}

/**
 * `limits` are by the names of the settings, which include their units. `weaknesses` is empty where every database
 * has the bundled engine.
 */
export interface CapabilitiesAnswer {
  success: true;
  engine: EngineBody;
  limits: Record<string, unknown>;
  weaknesses: WeaknessBody[];
  probes: ProbeVerdict[];
}

/** `url` opens the console, signed in; null where the service does not know its own address. */
export interface CodeMade {
  success: true;
  code: string;
  expires_at: string;
  url: string | null;
}

/** `scopes`, `database` and `expires_in` restrict the session that the code is for. */
export interface CodeRequest {
  scopes?: ("admin" | "operator" | "read" | "write")[] | null;
  database?: string | null;
  expires_in?: number | null;
}

export interface ColumnBody {
  name: string;
  type: string;
  nullable: boolean;
  default: string | null;
  primary_key: boolean;
}

/** The body of `POST /v1/transaction/{id}/commit`. */
export interface CommitRequest {
  statement?: string | StatementItem | null;
  sequence?: number | null;
  timeout_ms?: number | null;
  /** Without it: `"objects"`. */
  row_mode?: "arrays" | "objects";
  /** Without it: `"number"`. */
  big_numbers?: "number" | "string";
}

export interface ConsoleSessionRequest {
  code: string;
}

export interface DatabaseAnswer {
  id: string;
  name: string;
  state: string;
  activity: "asleep" | "awake";
  engine: string;
  default: boolean;
  delete_protection: boolean;
  size_bytes: number | null;
  created_at: string;
  success: true;
}

export interface DatabaseChange {
  name?: string;
  default?: true;
  delete_protection?: boolean;
}

export interface DatabaseList {
  success: true;
  next_cursor: string | null;
  items: DatabaseRecord[];
}

/**
 * `way` is how the database was moved: by replication, while it was in use, or by a dump; then `reason` says why.
 * `held_ms` is how long its requests were held.
 */
export interface DatabaseMoved {
  id: string;
  name: string;
  state: string;
  activity: "asleep" | "awake";
  engine: string;
  default: boolean;
  delete_protection: boolean;
  size_bytes: number | null;
  created_at: string;
  success: true;
  way: "dump" | "replication";
  held_ms: number;
  reason: string | null;
}

/** A database that the token can use; `default` marks the one that is used where none is named. */
export interface DatabaseName {
  name: string;
  default: boolean;
}

export interface DatabaseRecord {
  id: string;
  name: string;
  state: string;
  activity: "asleep" | "awake";
  engine: string;
  default: boolean;
  delete_protection: boolean;
  size_bytes: number | null;
  created_at: string;
}

export interface DatabaseRequest {
  name: string;
  clone_of?: string | null;
}

export interface EngineAnswer {
  name: string;
  state: string;
  weight: number;
  problem: string | null;
  databases: number;
  size_bytes: number | null;
  connections: number | null;
  running: number | null;
  connections_max: number | null;
  success: true;
}

export interface EngineBody {
  kind: string;
  version: string;
}

/** New databases go to the engine with the fewest for its weight; with weight 0 none do. */
export interface EngineChange {
  weight?: number;
  state?: "active" | "draining";
}

export interface EngineList {
  success: true;
  next_cursor: string | null;
  items: EngineRecord[];
}

/**
 * `problem` says why the engine cannot be used now; then what it would have to be asked for is null. `running` are
 * connections that run a statement.
 */
export interface EngineRecord {
  name: string;
  state: string;
  weight: number;
  problem: string | null;
  databases: number;
  size_bytes: number | null;
  connections: number | null;
  running: number | null;
  connections_max: number | null;
}

/** A `replicated` commit waits until a standby has it; a `local` one does not. */
export interface EngineState {
  kind: string;
  version: string;
  commits: "local" | "replicated";
}

/** Every failure of every route, whatever its status. */
export interface ErrorAnswer {
  success: false;
  error: ErrorBody;
  request_id: string;
  transaction_id?: string;
}

/** The `error` object of an answer. Every field is always there. */
export interface ErrorBody {
  code: string;
  message: string;
  sqlstate: string | null;
  position: number | null;
  hint: string | null;
  detail: string | null;
  statement: number | null;
  retryable: boolean;
}

/** The first statement of an open transaction. */
export interface FirstItem {
  sql: string;
  params?: unknown[] | null;
  params_list?: unknown[][] | null;
}

export interface Gone {
  success: true;
  state: "gone";
}

/**
 * `checks` names every check with `ok` or `failing`; an operator's token is told what is wrong. A `degraded`
 * service works, but not in full. The alias reports no engine.
 */
export interface Health {
  status: "degraded" | "failing" | "ok";
  version: string;
  checks: Record<string, string>;
  engine?: EngineState;
}

/** As of a query, with the state of its transaction. */
export interface InnerAnswer {
  success: true;
  columns: string[];
  types: string[];
  rows: (Record<string, unknown> | unknown[])[];
  affected_rows: number;
  timings: Timings;
  notices?: Notice[];
  truncated?: true;
  hint?: string;
  transaction?: OpenState;
}

/** As of a query, with the state of its transaction. */
export interface InnerFailure {
  success: false;
  columns: string[];
  types: string[];
  rows: (Record<string, unknown> | unknown[])[];
  affected_rows: number;
  timings: Timings;
  error: ErrorBody;
  request_id: string;
  notices?: Notice[];
  transaction?: OpenState;
}

/** The body of `POST /v1/transaction/{id}/query`. */
export interface InnerQueryRequest {
  sql: string;
  params?: unknown[] | null;
  params_list?: unknown[][] | null;
  sequence?: number | null;
  timeout_ms?: number | null;
  max_rows?: number | null;
  /** Without it: `"objects"`. */
  row_mode?: "arrays" | "objects";
  /** Without it: `"number"`. */
  big_numbers?: "number" | "string";
  /** Without it: `false`. */
  export?: boolean;
}

export interface KeyAnswer {
  id: string;
  name: string;
  hint: string;
  scopes: string[];
  database: string | null;
  state: string;
  created_at: string;
  expires_at: string | null;
  last_used_at: string | null;
  consistency: string;
  success: true;
}

/** `expires_in` counts from now; null removes the expiry. */
export interface KeyChange {
  name?: string;
  scopes?: ("admin" | "operator" | "read" | "write")[];
  expires_in?: number | null;
  consistency?: "serializable" | "snapshot";
}

export interface KeyList {
  success: true;
  next_cursor: string | null;
  items: KeyRecord[];
}

/** `key` is shown only this once. */
export interface KeyMade {
  id: string;
  name: string;
  hint: string;
  scopes: string[];
  database: string | null;
  state: string;
  created_at: string;
  expires_at: string | null;
  last_used_at: string | null;
  consistency: string;
  success: true;
  key: string;
}

export interface KeyRecord {
  id: string;
  name: string;
  hint: string;
  scopes: string[];
  database: string | null;
  state: string;
  created_at: string;
  expires_at: string | null;
  last_used_at: string | null;
  consistency: string;
}

/** `consistency` applies to requests that do not name one. */
export interface KeyRequest {
  name: string;
  scopes: ("admin" | "operator" | "read" | "write")[];
  database?: string | null;
  expires_in?: number | null;
  /** Without it: `"serializable"`. */
  consistency?: "serializable" | "snapshot";
}

/** `key` is the id of the session's key; `current` marks the session that asks. */
export interface ListedSession {
  id: string;
  created_at: string;
  expires_at: string;
  organization: string;
  database: string | null;
  scopes: string[];
  key: string;
  /** Without it: `false`. */
  current?: boolean;
}

/** `organization` is the id of the database's owner, if that is not the token's own organization. */
export interface MoveRequest {
  engine: string;
  organization?: string | null;
}

/** A message that the engine sent beside the result. */
export interface Notice {
  severity: string;
  message: string;
  sqlstate: string | null;
  detail: string | null;
  hint: string | null;
}

/** A transaction that stays open. `result` is that of its first statement, if it was begun with one. */
export interface OpenAnswer {
  success: true;
  transaction_id: string;
  state: "open";
  expires_at: string;
  result?: QueryAnswer;
}

/** A description according to the OpenAPI Specification. */
export interface OpenApi {
  openapi: string;
  info: Record<string, unknown>;
  paths: Record<string, unknown>;
  components: Record<string, unknown>;
}

/** The state of a transaction that stays open, behind a statement of it. */
export interface OpenState {
  state: "aborted" | "failed" | "open";
  expires_at?: string;
  reason?: "conflict" | "idle" | "lifetime" | "limit" | "lost" | "revoked" | "rollback";
}

export interface OrganizationAnswer {
  id: string;
  name: string;
  tier: string;
  created_at: string;
  limits: Record<string, number>;
  success: true;
}

/**
 * The changes of an organization. `limits` are changed one by one; null leaves one to the tier and the settings
 * again.
 */
export interface OrganizationChange {
  name?: string;
  tier?: string;
  limits?: Record<string, number | null>;
}

/** `database_bytes` is null if a database may have any size, `organization_bytes` if all together may. */
export interface OrganizationLimits {
  rate: Rate;
  database_bytes: number | null;
  organization_bytes: number | null;
  databases: number;
  statement_timeout_ms: number;
  statement_timeout_ms_max: number;
  stream_timeout_ms: number;
  stream_timeout_ms_max: number;
  export_timeout_ms: number;
  export_timeout_ms_max: number;
  definition_timeout_ms: number;
  definition_timeout_ms_max: number;
  transaction_timeout_ms: number;
  transaction_timeout_ms_max: number;
  transaction_statements: number;
  body_bytes: number;
  answer_bytes: number;
}

export interface OrganizationList {
  success: true;
  next_cursor: string | null;
  items: OrganizationRecord[];
}

/** The organization has its first database; `key` is shown only this once. */
export interface OrganizationMade {
  id: string;
  name: string;
  tier: string;
  created_at: string;
  limits: Record<string, number>;
  success: true;
  key: string;
}

/** `limits` are those that it has for itself, by the names of their settings. */
export interface OrganizationRecord {
  id: string;
  name: string;
  tier: string;
  created_at: string;
  limits: Record<string, number>;
}

export interface OrganizationRequest {
  name: string;
  tier?: string | null;
}

/** `limits` are those in force. */
export interface OwnOrganization {
  id: string;
  name: string;
  tier: string;
  created_at: string;
  success: true;
  databases: DatabaseName[];
  limits: OrganizationLimits;
}

/** In microseconds; null if no operation succeeded. */
export interface Percentiles {
  p50: number | null;
  p95: number | null;
  p99: number | null;
}

export interface ProbeAnswer {
  success: true;
  name: string;
  group: string;
  title: string;
  supported: boolean;
  statements: ProbeStatement[];
  timings: ProbeTimings;
}

export interface ProbeError {
  message: string;
  sqlstate: string | null;
}

/** In a race, `transaction` names the transaction that ran the statement; elsewhere there is `as_expected`. */
export interface ProbeStatement {
  sql: string;
  rows: ((string | null)[])[] | null;
  error: ProbeError | null;
  exec_us: number;
  as_expected?: boolean;
  transaction?: string;
}

export interface ProbeTimings {
  exec_us: number;
}

export interface ProbeVerdict {
  name: string;
  group: string;
  title: string;
  supported: boolean;
}

/** `rows` are objects by column name, or arrays where `row_mode` asks for them. */
export interface QueryAnswer {
  success: true;
  columns: string[];
  types: string[];
  rows: (Record<string, unknown> | unknown[])[];
  affected_rows: number;
  timings: Timings;
  notices?: Notice[];
  truncated?: true;
  hint?: string;
}

/** The engine refused the statement, and `error` says why. The lists are empty. */
export interface QueryFailure {
  success: false;
  columns: string[];
  types: string[];
  rows: (Record<string, unknown> | unknown[])[];
  affected_rows: number;
  timings: Timings;
  error: ErrorBody;
  request_id: string;
  notices?: Notice[];
}

/** The body of `POST /v1/query`. Parameters stay JSON text to keep the digits of numbers. */
export interface QueryRequest {
  sql: string;
  params?: unknown[] | null;
  timeout_ms?: number | null;
  max_rows?: number | null;
  /** Without it: `"objects"`. */
  row_mode?: "arrays" | "objects";
  /** Without it: `"number"`. */
  big_numbers?: "number" | "string";
  /** Without it: `false`. */
  export?: boolean;
}

/** `requests` is null if there is no limit. */
export interface Rate {
  requests: number | null;
  window_seconds: number;
}

export interface ResetAnswer {
  success: true;
  timings: ResetTimings;
}

export interface ResetTimings {
  total_us: number;
}

export interface RotateRequest {
  /** Without it: `0`. */
  grace_seconds?: number;
}

export interface SessionAnswer {
  success: true;
  session: SessionRecord;
}

export interface SessionDestroyed {
  success: true;
  state: "destroyed";
}

export interface SessionList {
  success: true;
  next_cursor: string | null;
  items: ListedSession[];
}

export interface SessionOpened {
  success: true;
  token: string;
  expires_at: string;
  expires_in: number;
  session: SessionRecord;
}

/** `database` is the name of the database that the session is bound to; null for all of the organization. */
export interface SessionRecord {
  id: string;
  created_at: string;
  expires_at: string;
  organization: string;
  database: string | null;
  scopes: string[];
}

export interface SessionRefreshed {
  success: true;
  session: SessionRecord;
  expires_at: string;
}

/** `scopes`, `database` and `expires_in` restrict the session. */
export interface SessionRequest {
  api_key?: string | null;
  scopes?: ("admin" | "operator" | "read" | "write")[] | null;
  database?: string | null;
  expires_in?: number | null;
}

/** An error in Neon's words, with `code` as the SQLSTATE; and the `error` of all other routes beside it. */
export interface SqlFailure {
  message: string;
  code: string;
  severity: string;
  detail: string | null;
  hint: string | null;
  position: string | null;
  internalPosition: string | null;
  internalQuery: string | null;
  where: string | null;
  schema: string | null;
  table: string | null;
  column: string | null;
  dataType: string | null;
  constraint: string | null;
  file: string | null;
  line: string | null;
  routine: string | null;
  success: false;
  error: ErrorBody;
  request_id: string;
}

/** A column. Its table and its number there are 0 where it is an expression. */
export interface SqlField {
  name: string;
  dataTypeID: number;
  tableID: number;
  columnID: number;
  dataTypeSize: number;
  dataTypeModifier: number;
  format: "text";
}

/** One of several statements, and its parameters. */
export interface SqlQuery {
  query: string;
  params?: unknown[] | null;
  arrayMode?: boolean | null;
}

/** The body: one statement as `query`, or several as `queries`, which run as one transaction. */
export interface SqlRequest {
  query?: string | null;
  params?: unknown[] | null;
  arrayMode?: boolean | null;
  queries?: SqlQuery[] | null;
}

/** The result of a statement. `rowCount` is null where the engine counts no rows, as for DDL. */
export interface SqlResult {
  fields: SqlField[];
  rows: (Record<string, unknown> | unknown[])[];
  command: string;
  rowCount: number | null;
  rowAsArray: boolean;
}

/** The results of a transaction, in the order of its statements. */
export interface SqlResults {
  results: SqlResult[];
}

/** A statement of a transaction and its parameters. */
export interface StatementItem {
  sql: string;
  params?: unknown[] | null;
}

/** The result of one statement of a transaction. */
export interface StatementResult {
  columns: string[];
  types: string[];
  rows: (Record<string, unknown> | unknown[])[];
  affected_rows: number;
  truncated?: true;
}

/**
 * `durable` tells whether the engine's settings let a commit survive a loss of power, `replicated` whether a commit
 * waits until a standby has it.
 */
export interface StorageAnswer {
  success: true;
  bytes: number;
  sha256: string;
  durable: boolean;
  replicated: boolean;
  engine_settings: Record<string, string>;
  steps_us: StorageSteps;
}

export interface StorageSteps {
  write: number;
  commit: number;
  read: number;
  compare: number;
  delete: number;
}

/** `locked`: another transaction has exclusive use of it, so neither size nor defaults are known. */
export interface TableBody {
  schema: string;
  name: string;
  kind: "foreign table" | "materialized view" | "partitioned table" | "table" | "view";
  columns: ColumnBody[];
  row_estimate: number | null;
  size_bytes: number | null;
  locked: boolean;
}

export interface TablesAnswer {
  success: true;
  tables: TableBody[];
  truncated?: true;
}

/** In microseconds: the whole request, and the part of the engine. */
export interface Timings {
  total_us: number;
  exec_us: number;
}

/** All statements are applied; if `commit` is `read_only`, there was nothing to apply. */
export interface TransactionAnswer {
  success: true;
  transaction_id: string;
  results: StatementResult[];
  affected_rows: number;
  attempts: number;
  commit: "engine" | "one_phase" | "read_only" | "two_phase";
  timings: Timings;
}

/** Nothing was applied; `error.statement` is the index of the statement that failed. `results` is empty. */
export interface TransactionFailure {
  success: false;
  transaction_id: string;
  results: StatementResult[];
  affected_rows: number;
  attempts: number;
  timings: Timings;
  error: ErrorBody;
  request_id: string;
}

/** The body of `POST /v1/transaction`. */
export interface TransactionRequest {
  statements: (string | StatementItem)[];
  /** Without it: `false`. */
  read_only?: boolean;
  timeout_ms?: number | null;
  /** Without it: `"objects"`. */
  row_mode?: "arrays" | "objects";
  /** Without it: `"number"`. */
  big_numbers?: "number" | "string";
}

/**
 * The state of a transaction. `expires_at` is there while it is open, `reason` if it was open and was rolled back.
 */
export interface TransactionState {
  success: true;
  transaction_id: string;
  state: "aborted" | "committed" | "failed" | "in_progress" | "open";
  expires_at?: string;
  reason?: "conflict" | "idle" | "lifetime" | "limit" | "lost" | "revoked" | "rollback";
}

export interface UsageList {
  success: true;
  next_cursor: string | null;
  items: UsageRecord[];
}

export interface UsageRecord {
  hour: string;
  database: string;
  requests: number;
  rows: number;
  bytes: number;
  errors: number;
}

export interface WeaknessBody {
  name: string;
  reaches_others: boolean;
  meaning: string;
  remedy: string;
}
