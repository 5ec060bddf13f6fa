/** Requests to the two planes, and the one shape of their failures. */
import { writeJson } from "./json";
import { session } from "./session";
import type { Config, ErrorBody } from "./types";

/** A refusal of the service, or of the network (code `unreachable`). */
export class Failure extends Error {
  readonly code: string;
  readonly status: number;
  readonly body: ErrorBody;
  readonly requestId: string | null;

  constructor(status: number, body: ErrorBody, requestId: string | null = null) {
    super(body.message);
    this.code = body.code;
    this.status = status;
    this.body = body;
    this.requestId = requestId;
  }
}

export function makeFailure(code: string, message: string, hint: string | null = null, status = 0): Failure {
  const empty = { sqlstate: null, position: null, detail: null, statement: null, retryable: true };
  return new Failure(status, { code, message, hint, ...empty });
}

const DOUBTS = new Set([
  "unreachable",
  "unreadable",
  "cut_off",
  "outcome_unknown",
  "internal",
  "cancelled",
  "page_error",
]);

/** Return whether the request may have been done all the same: its answer is lost, or does not tell. */
export function isInDoubt(failure: Failure): boolean {
  return DOUBTS.has(failure.code) && !(failure.status >= 400 && failure.status < 500);
}

/** Return the failure that an exception stands for; an abort of the reader's own passes as it is. */
export function asFailure(error: unknown): Failure {
  if (error instanceof Failure) return error;
  if (error instanceof DOMException && error.name === "AbortError") return makeFailure("cancelled", "Cancelled.");
  return makeFailure("page_error", error instanceof Error ? error.message : String(error));
}

let config: Config = { version: "", data_url: location.origin, control_url: location.origin, alias_url: null };

export async function loadConfig(): Promise<void> {
  const answer = await fetch("config.json", { cache: "no-cache" });
  if (!answer.ok) throw makeFailure("no_config", `The service answered ${answer.status} to config.json.`);
  config = (await answer.json()) as Config;
}

export function getConfig(): Config {
  return config;
}

export interface Sending {
  method?: string;
  body?: unknown;
  headers?: Record<string, string>;
  database?: string | null;
  signal?: AbortSignal;
  /** A token other than the session's, or none. */
  token?: string | null;
  /** Send it also where the page goes. */
  keepalive?: boolean;
}

const UNREACHABLE = "Check the network, and that the service runs. What you have typed is kept.";

async function send(base: string, path: string, sending: Sending): Promise<Response> {
  const token = sending.token === undefined ? session.token : sending.token;
  const headers: Record<string, string> = { ...sending.headers };
  if (token) headers["Authorization"] = `Bearer ${token}`;
  if (sending.body !== undefined) headers["Content-Type"] = "application/json";
  if (sending.database) headers["Tuplegate-Database"] = sending.database;
  const request: RequestInit = { method: sending.method ?? "GET", headers, credentials: "omit", cache: "no-store" };
  if (sending.body !== undefined) request.body = writeJson(sending.body);
  if (sending.signal) request.signal = sending.signal;
  if (sending.keepalive) request.keepalive = true;
  try {
    return await fetch(base + path, request);
  } catch (error) {
    if (sending.signal?.aborted) throw error;
    throw makeFailure("unreachable", "The service cannot be reached.", UNREACHABLE);
  }
}

async function readJson(answer: Response): Promise<Record<string, unknown>> {
  try {
    return (await answer.json()) as Record<string, unknown>;
  } catch {
    throw makeFailure("unreadable", `The answer (status ${answer.status}) cannot be read.`, UNREACHABLE, answer.status);
  }
}

/** Return the answer if it is no failure; a 401 to the session's own token ends the session. */
export async function check(answer: Response, isOwn = true): Promise<Response> {
  if (answer.ok) return answer;
  const body = await readJson(answer);
  if (answer.status === 401 && isOwn) session.end("expired");
  const error = body["error"] as ErrorBody | undefined;
  if (!error) throw makeFailure("unreadable", `The service answered ${answer.status}.`, null, answer.status);
  throw new Failure(answer.status, error, (body["request_id"] as string | undefined) ?? null);
}

async function ask<T>(base: string, path: string, sending: Sending): Promise<T> {
  const isOwn = sending.token === undefined;
  const answer = await check(await send(base, path, sending), isOwn);
  return takeBody<T>(answer, await readJson(answer));
}

function takeBody<T>(answer: Response, body: Record<string, unknown>): T {
  if (body["success"] === false) {
    throw new Failure(answer.status, body["error"] as ErrorBody, (body["request_id"] as string) ?? null);
  }
  return body as T;
}

export function askControl<T>(path: string, sending: Sending = {}): Promise<T> {
  return ask<T>("", path, sending);
}

export function askData<T>(path: string, sending: Sending = {}): Promise<T> {
  return ask<T>(config.data_url, path, sending);
}

/** Ask the data plane, and return the answer also as the text that came. */
export async function askDataText<T>(path: string, sending: Sending): Promise<{ body: T; text: string }> {
  const answer = await openData(path, sending);
  const text = await answer.clone().text();
  return { body: takeBody<T>(answer, await readJson(answer)), text };
}

/** Send a request to the data plane whose answer is read piece by piece. */
export async function openData(path: string, sending: Sending): Promise<Response> {
  return check(await send(config.data_url, path, sending));
}

export async function openControl(path: string, sending: Sending = {}): Promise<Response> {
  return check(await send("", path, sending));
}
