/** Messages of the service. Their shapes are generated with the JavaScript client; what is added here is of the pages. */
import type { QueryAnswer } from "../../../clients/javascript/types/service";
import type { Json } from "./json";

export type {
  AuditRecord,
  CapabilitiesAnswer,
  ColumnBody,
  DatabaseRecord,
  ErrorBody,
  Health,
  KeyMade,
  KeyRecord,
  ListedSession,
  Notice,
  OrganizationMade,
  OrganizationRecord,
  OwnOrganization,
  ProbeAnswer,
  SessionRecord,
  TableBody,
  Timings,
  TransactionAnswer,
  UsageRecord,
} from "../../../clients/javascript/types/service";

/** A value of a row: int8, numeric and JSON come as text, so that no digit is lost. */
export type Value = null | boolean | number | string | Json | Value[];
export type Row = Value[];

/** The answer to a statement that asks for rows as arrays. */
export interface StatementAnswer extends Omit<QueryAnswer, "rows"> {
  rows: Row[];
}

export interface Config {
  version: string;
  data_url: string;
  control_url: string;
  alias_url: string | null;
}

export type Scope = "read" | "write" | "admin" | "operator";

export interface Page<T> {
  items: T[];
  next_cursor: string | null;
}
