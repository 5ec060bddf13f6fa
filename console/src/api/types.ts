/** Messages of the service, as far as the pages read them. */
import type { Json } from "./json";

export interface ServiceErrorBody {
  code: string;
  message: string;
  sqlstate: string | null;
  position: number | null;
  hint: string | null;
  detail: string | null;
  statement: number | null;
  retryable: boolean;
}

export interface Notice {
  severity: string;
  message: string;
  sqlstate?: string | null;
  detail?: string | null;
  hint?: string | null;
}

export interface Timings {
  total_us: number;
  exec_us: number;
}

/** A value of a row: int8, numeric and JSON come as text, so that no digit is lost. */
export type Value = null | boolean | number | string | Json | Value[];
export type Row = Value[];

export interface StatementResult {
  columns: string[];
  types: string[];
  rows: Row[];
  affected_rows: number;
  timings?: Timings;
  notices?: Notice[];
  truncated?: boolean;
}

export interface TransactionResult {
  transaction_id: string;
  results: StatementResult[];
  affected_rows: number;
  attempts: number;
  commit: "two_phase" | "one_phase" | "read_only";
  timings: Timings;
}

export interface Config {
  version: string;
  data_url: string;
  control_url: string;
  alias_url: string | null;
}

export type Scope = "read" | "write" | "admin" | "operator";

export interface Session {
  id: string;
  created_at: string;
  expires_at: string;
  organization: string;
  database: string | null;
  scopes: Scope[];
}

export interface Page<T> {
  items: T[];
  next_cursor: string | null;
}

export interface Database {
  id: string;
  name: string;
  state: string;
  engine: string;
  default: boolean;
  delete_protection: boolean;
  size_bytes: number | null;
  created_at: string;
}

export interface Key {
  id: string;
  name: string;
  hint: string;
  scopes: Scope[];
  database: string | null;
  state: "active" | "revoked" | "expired";
  created_at: string;
  expires_at: string | null;
  last_used_at: string | null;
  consistency: string;
  limits?: Record<string, number | null> | null;
  key?: string;
}

export interface Organization {
  id: string;
  name: string;
  tier: string;
  created_at: string;
  key?: string;
  databases?: { name: string; default: boolean }[];
  limits?: {
    rate: { requests: number | null; window_seconds: number };
    database_bytes: number | null;
    [name: string]: unknown;
  };
}

export interface AuditEntry {
  id: number;
  at: string;
  action: string;
  subject: string;
  key: string | null;
  session: string | null;
  address: string | null;
  request_id: string | null;
}

export interface UsageHour {
  hour: string;
  database: string;
  requests: number;
  rows: number;
  bytes: number;
  errors: number;
}

export interface Probe {
  name: string;
  group: string;
  title: string;
  supported: boolean;
}

export interface Capabilities {
  engine: { kind: string; version: string };
  limits: Record<string, unknown>;
  probes: Probe[];
}

export interface Health {
  status: string;
  version: string;
  engine?: { kind: string; version: string };
  checks: Record<string, string>;
}
