// Uses everything that the package declares. It is type-checked and never run. A `@ts-expect-error` must be an error.
import { Client, OpenTransaction, Result, RowStream, TuplegateError } from "@tuplegate/client";
import type { ClientOptions, ErrorCode, SessionRecord, Statement, Transaction, UsageRecord } from "@tuplegate/client";

interface Account {
  id: number;
  owner: string | null;
}

const options: ClientOptions = { timeoutMs: 1000, retries: 2, consistency: "snapshot", fetch };
const client = new Client("https://db.example", "svc_k_…", options);

export async function queries(signal: AbortSignal): Promise<string> {
  const sql = "select id, owner from account where id = $1";
  const result: Result<Account> = await client.query<Account>(sql, [1], { signal });
  const owners: (string | null)[] = result.rows.map((row) => row.owner);
  for (const { id } of result) console.log(id.toFixed(), result.one().owner?.length, result.value());
  const arrays = await client.query<[number, string]>("select 1, 'a'", undefined, { rowMode: "arrays", maxRows: 1 });
  const [number, text] = arrays.rows[0] ?? [0, ""];
  const any = await client.query("select 1 as n");
  const timings: number = any.timings?.exec_us ?? 0;
  // @ts-expect-error no such option
  await client.query("select 1", [], { timeout: 5 });
  // @ts-expect-error parameters are an array
  await client.query("select $1", 1);
  // @ts-expect-error no such row
  console.log(result.one().balance);
  return `${owners} ${number + 1} ${text.length} ${any.rows[0]?.n} ${timings} ${any.notices[0]?.severity}`;
}

export async function transactions(): Promise<bigint> {
  const statements: Statement[] = ["select 1", { sql: "select $1", params: [1n] }];
  const done: Transaction = await client.transaction(statements, { readOnly: true, idempotencyKey: "once" });
  const how: "two_phase" | "one_phase" | "engine" | "read_only" = done.commit;
  const state: "committed" | "aborted" | "in_progress" | "open" | "failed" = await client.transactionState(done.id);
  console.log(how, state, done.results[0]?.affectedRows, await client.abortTransaction("txn_12345678"));
  await using t: OpenTransaction = client.begin({ idleTimeoutMs: 5 });
  await t.commit({ sql: "select 1" }, { timeoutMs: 5 });
  return client.run(
    async (t) => {
      await t.savepoint(async () => t.query("select 1"));
      for await (const row of t.stream<Account>("select 1")) console.log(row.owner);
      const expires: number | undefined = t.expiresAt?.getTime();
      if (t.state === "failed" || t.reason === "conflict" || expires === 0) await t.rollback();
      return BigInt(t.id?.length ?? 0);
    },
    { attempts: 3, readOnly: true },
  );
}

export async function streams(): Promise<number> {
  await using stream: RowStream<Account> = await client.stream<Account>("select 1").open();
  for await (const { id } of stream) if (id > stream.rowCount) break;
  return stream.columns.length + stream.affectedRows;
}

export async function sessions(): Promise<SessionRecord> {
  const { token, expires_at, database } = await client.createSession({ scopes: ["read"], expiresIn: 60 });
  const page = new Client(client.url, token);
  const used: UsageRecord[] = await client.usage({ since: new Date() });
  console.log(used[0]?.requests, expires_at, database ?? "all", (await page.organization()).limits.rate.requests);
  await page.refreshSession();
  await page.endSession();
  // @ts-expect-error no such scope
  await client.createSession({ scopes: ["everything"] });
  return page.whoAmI();
}

export function told(error: unknown): string {
  if (!(error instanceof TuplegateError)) throw error;
  const known: ErrorCode = "parse_error";
  const lost: boolean = error.code === known || error.code === "answer_lost" || error.code === "outcome_unknown";
  const place: number | null = error.position;
  return `${lost} ${place} ${error.sqlstate} ${error.hint} ${error.retryable} ${error.requestId}`;
}
