// Uses every route through the client that is made from the description. It is type-checked and never run.
import createClient from "openapi-fetch";
import type { paths as ControlPaths } from "./control";
import type { components, paths as DataPaths } from "./data";

type Visit = { id: number; note: string | null };
type Failure = components["schemas"]["ErrorBody"];

const headers = { Authorization: "Bearer svc_k_…" };
const data = createClient<DataPaths, "application/json">({ baseUrl: "http://127.0.0.1:8080", headers });
const control = createClient<ControlPaths, "application/json">({ baseUrl: "http://127.0.0.1:8082", headers });

function told(error: Failure): string {
  const place: number | null = error.position;
  return `${error.code} ${error.sqlstate ?? ""} ${place ?? 0} ${error.retryable}`;
}

export async function queries(): Promise<string> {
  const { data: answer, error } = await data.POST("/v1/query", { body: { sql: "select 1 as id, null as note" } });
  if (error) return told(error.error);
  if (!answer.success) return told(answer.error) + answer.request_id;
  const visits = answer.rows as Visit[];
  const columns: string[] = answer.columns;
  const cut: true | undefined = answer.truncated;
  for (const notice of answer.notices ?? []) console.log(notice.severity, notice.message);
  const full = await data.POST("/v1/query", {
    params: { header: { "Idempotency-Key": "once", "Tuplegate-Database": "main" } },
    body: { sql: "select $1::int", params: [1, "a", null, { a: [1] }], row_mode: "arrays", timeout_ms: 1000, max_rows: 5 },
  });
  if (full.data?.success) {
    for (const row of full.data.rows) if (Array.isArray(row)) console.log(row[0]);
      else console.log(row["id"]);
  }
  const plain = await data.POST("/query", { body: "select 1", bodySerializer: (sql) => sql });
  return `${visits[0]?.note} ${columns} ${cut} ${plain.data?.affected_rows} ${answer.timings.exec_us}`;
}

export async function transactions(): Promise<string> {
  const { data: done, error } = await data.POST("/v1/transaction", {
    body: { statements: ["select 1", { sql: "select $1", params: [1] }], read_only: true },
  });
  if (error) return told(error.error) + error.request_id;
  if (!done.success) return told(done.error) + done.transaction_id;
  const how: "two_phase" | "one_phase" | "engine" | "read_only" = done.commit;
  const path = { id: done.transaction_id };
  const state = await data.GET("/v1/transaction/{id}", { params: { path } });
  const aborted = await data.POST("/v1/transaction/{id}/abort", { params: { path } });
  if (state.data?.success) console.log(state.data.state === "committed");
  return `${how} ${done.results[0]?.rows.length} ${aborted.data?.success}`;
}

export async function otherProtocols(): Promise<string> {
  const { data: answer, error } = await data.POST("/sql", {
    params: { header: { "Neon-Array-Mode": "true", "Neon-Batch-Isolation-Level": "ReadCommitted" } },
    body: { query: "select $1", params: ["1"], arrayMode: true },
  });
  if (error) return `${"code" in error ? error.code : ""} ${told(error.error)}`;
  if ("results" in answer) return `${answer.results[0]?.command}`;
  const count: number | null = answer.rowCount;
  return `${answer.fields[0]?.dataTypeID} ${answer.rows.length} ${count ?? 0}`;
}

export async function openTransactions(): Promise<string> {
  const opened = await data.POST("/v1/transaction/begin", { body: { statement: "select 1", timeout_ms: 1000 } });
  if (!opened.data?.success) return "";
  const path = { id: opened.data.transaction_id };
  const inner = await data.POST("/v1/transaction/{id}/query", { params: { path }, body: { sql: "select 1", sequence: 1 } });
  const done = await data.POST("/v1/transaction/{id}/commit", { params: { path }, body: { sequence: 2 } });
  const undone = await data.POST("/v1/transaction/{id}/rollback", { params: { path } });
  if (inner.data?.success) console.log(inner.data.rows[0], opened.data.expires_at);
  return `${done.data?.success} ${undone.data?.success}`;
}

export async function database(): Promise<void> {
  const tables = await data.GET("/tables");
  if (tables.data?.success) for (const table of tables.data.tables) console.log(table.name, table.columns[0]?.default);
  const matrix = await data.GET("/capabilities");
  if (matrix.data?.success) console.log(matrix.data.limits["statement_timeout_ms"], matrix.data.probes[0]?.supported);
  const probe = await data.GET("/capabilities/{name}", { params: { path: { name: "joins" } } });
  if (probe.data?.success) console.log(probe.data.statements[0]?.rows?.[0]?.[0], probe.data.statements[0]?.as_expected);
  const measured = await data.GET("/bench", { params: { query: { workload: "point_read", seconds: 1 } } });
  if (measured.data?.success) console.log(measured.data.latency_us.p99 ?? 0, (await data.GET("/bench")).response.ok);
  const stored = await data.GET("/storage/test", { params: { query: { bytes: 1000 } } });
  if (stored.data?.success) console.log(stored.data.engine_settings["fsync"], stored.data.steps_us.commit);
  const reset = await data.POST("/admin/reset");
  if (reset.data?.success) console.log(reset.data.timings.total_us);
}

export async function about(): Promise<void> {
  const health = await data.GET("/health");
  console.log(health.data?.status === "ok", health.data?.engine?.version, health.data?.checks["engine"]);
  const banner = await data.GET("/");
  console.log(banner.data?.endpoints["GET /"], banner.data?.version);
  const described = await data.GET("/openapi.json");
  console.log(described.data?.paths["/v1/query"]);
  await data.GET("/docs", { parseAs: "text" });
  await Promise.all([control.GET("/health"), control.GET("/"), control.GET("/openapi.json")]);
  await Promise.all([control.GET("/docs", { parseAs: "text" }), control.GET("/metrics", { parseAs: "text" })]);
}

export async function sessions(): Promise<void> {
  const opened = await control.POST("/v1/session", { body: { scopes: ["read"], database: "main" } });
  await control.POST("/v1/session");
  if (opened.data) console.log(opened.data.token, opened.data.expires_in, opened.data.session.database ?? "all");
  const shown = await control.GET("/v1/session");
  const later = await control.POST("/v1/session/refresh");
  const ended = await control.DELETE("/v1/session");
  console.log(shown.data?.session.scopes, later.data?.expires_at, ended.data?.state === "destroyed");
  const listed = await control.GET("/v1/sessions", { params: { query: { limit: 10 } } });
  const other = listed.data?.items[0];
  if (other && !other.current) await control.DELETE("/v1/sessions/{id}", { params: { path: { id: other.id } } });
}

export async function oneTimeCode(): Promise<string> {
  const made = await control.POST("/v1/console/codes", { body: { scopes: ["read"] } });
  const signedIn = await control.POST("/v1/console/sessions", { body: { code: made.data?.code ?? "" } });
  return `${made.data?.url ?? "nowhere"} ${signedIn.data?.token}`;
}

export async function databases(): Promise<void> {
  const made = await control.POST("/v1/databases", { body: { name: "staging" } });
  await control.POST("/v1/databases", { body: { name: "copy", clone_of: "staging" } });
  const path = { name: made.data?.name ?? "staging" };
  const page = await control.GET("/v1/databases", { params: { query: { limit: 10 } } });
  if (page.data?.next_cursor) await control.GET("/v1/databases", { params: { query: { cursor: page.data.next_cursor } } });
  const one = await control.GET("/v1/databases/{name}", { params: { path } });
  console.log(page.data?.items[0]?.size_bytes ?? 0, one.data?.delete_protection);
  await control.PATCH("/v1/databases/{name}", { params: { path }, body: { delete_protection: false } });
  await control.GET("/v1/databases/{name}/dump", { params: { path }, parseAs: "blob" });
  const gone = await control.DELETE("/v1/databases/{name}", { params: { path } });
  console.log(gone.data?.state === "gone", gone.error?.error.hint?.length);
}

export async function keys(): Promise<void> {
  const made = await control.POST("/v1/keys", { body: { name: "reports", scopes: ["read"], expires_in: 60 } });
  if (!made.data) return;
  const path = { id: made.data.id };
  const [list, one] = [await control.GET("/v1/keys"), await control.GET("/v1/keys/{id}", { params: { path } })];
  console.log(made.data.key, list.data?.items[0]?.expires_at ?? "never", one.data?.hint);
  await control.PATCH("/v1/keys/{id}", { params: { path }, body: { expires_in: null } });
  const rotated = await control.POST("/v1/keys/{id}/rotate", { params: { path }, body: { grace_seconds: 5 } });
  await control.POST("/v1/keys/{id}/rotate", { params: { path } });
  await control.DELETE("/v1/keys/{id}", { params: { path } });
  console.log(rotated.data?.key);
}

export async function organizations(): Promise<void> {
  const own = await control.GET("/v1/organization");
  console.log(own.data?.limits.rate.requests ?? "any number");
  const used = await control.GET("/v1/usage", { params: { query: { since: "2026-11-14T23:00:00Z" } } });
  const audit = await control.GET("/v1/audit", { params: { query: { limit: 5 } } });
  console.log(used.data?.items[0]?.requests, audit.data?.items[0]?.action);
  const made = await control.POST("/v1/organizations", { body: { name: "acme" } });
  const path = { id: made.data?.id ?? "" };
  await control.GET("/v1/organizations");
  await control.GET("/v1/organizations/{id}", { params: { path } });
  await control.PATCH("/v1/organizations/{id}", { params: { path }, body: { tier: "pro" } });
  await control.DELETE("/v1/organizations/{id}", { params: { path } });
}

export async function engines(): Promise<void> {
  const found = await control.GET("/v1/engines");
  const name = found.data?.items[0]?.name ?? "first";
  await control.PATCH("/v1/engines/{name}", { params: { path: { name } }, body: { state: "draining" } });
  const moved = await control.POST("/v1/databases/{name}/move", {
    params: { path: { name: "staging" } },
    body: { engine: "second" },
  });
  console.log(moved.data?.engine, moved.data?.held_ms);
}
