// What the JavaScript client does, one function for each thing, against a real service. The answers that `LOST` in
// package.py lists are lost on their way to `client`; `direct` asks the service itself.

import assert from "node:assert/strict";
import { Client, OpenTransaction, Result, RowStream, TuplegateError } from "@tuplegate/client";

/** Return the error of a call that must fail. */
async function failure(work) {
  try {
    await work();
  } catch (error) {
    return error;
  }
  return assert.fail("it did not fail");
}

/** Return the error of a call that must fail with this code. */
async function refusal(code, work) {
  const error = await failure(work);
  assert.ok(error instanceof TuplegateError, error.stack);
  assert.equal(error.code, code, error.message);
  return error;
}

async function waitUntil(condition) {
  for (let rest = 1500; !(await condition()); rest -= 1) {
    assert.ok(rest > 0, "it did not come true");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Make an empty table of one column, `n`, for the work alone. */
async function withTable(client, work) {
  const table = `t_${Math.random().toString(36).slice(2)}`;
  await client.query(`create table ${table} (n int primary key, note text)`);
  try {
    await work(table);
  } finally {
    await client.query(`drop table ${table}`);
  }
}

async function numbers(client, table) {
  return (await client.query(`select n from ${table} order by n`)).rows.map((row) => row.n);
}

/** Return a number for a lock that a statement holds while it runs. */
function newLock() {
  return Math.floor(Math.random() * 2 ** 31);
}

async function isHeld(client, lock) {
  return !(await client.query("select pg_try_advisory_xact_lock($1)", [lock])).value();
}

// -- values and rows

export async function values_go_both_ways({ client }) {
  const bytes = new Uint8Array([0, 255, 104]);
  const cases = [
    ["bool", true],
    ["int4", -7],
    ["int8", 42],
    ["int8", 9007199254740993n],
    ["int8", -9223372036854775808n],
    ["int8[]", [1, null, 9223372036854775807n]],
    ["int8[]", [[1, 2], [3, 4]]],
    ["float8", 0.1],
    ["float8", -0],
    ["float8", Number.NaN],
    ["float8", -Infinity],
    ["numeric", "12345678901234567890.123456789"],
    ["text", "é 😀 \" \\ \n \u2028"],
    ["text", null],
    ["text[]", ["a", null, "b,{}"]],
    ["bytea", bytes],
    ["bytea[]", [bytes, new Uint8Array()]],
    ["jsonb", { a: [1, { b: null }], c: "é" }],
    ["date", "2026-11-14"],
    ["timestamptz", "2026-11-14T23:57:08.741335Z"],
    ["uuid", "6f0c4a8e-8d5b-4f0a-9f53-0a3c3f6f1a11"],
  ];
  const sql = `select ${cases.map(([type], i) => `$${i + 1}::${type} as c${i}`).join(", ")}`;
  const result = await client.query(sql, cases.map(([, value]) => value));
  assert.deepEqual(result.types, cases.map(([type]) => type));
  cases.forEach(([, value], i) => assert.deepStrictEqual(result.one()[`c${i}`], value, `$${i + 1}`));
  const sent = [new Date(0), 12345678901234567890n, new Int16Array([1, 2]), bytes.buffer];
  sent.push({ toJSON: () => "own" }, { a: undefined });
  const types = "select $1::timestamptz, $2::numeric, $3::int[], $4::bytea, $5::text, $6::jsonb";
  const back = await client.query(types, sent, { rowMode: "arrays" });
  assert.deepEqual(back.rows, [["1970-01-01T00:00:00Z", "12345678901234567890", [1, 2], bytes, "own", {}]]);
}

export async function rows_are_objects_or_arrays({ client }) {
  const result = await client.query("select g as n, g * 2 as n, 'x' as t from generate_series(1, 3) g");
  assert.ok(result instanceof Result);
  assert.deepEqual(result.columns, ["n", "n", "t"]);
  assert.deepEqual(result.rows[1], { n: 4, t: "x" });
  assert.deepEqual([...result].length, 3);
  assert.deepEqual((await client.query("select 1 as n, 2 as n", [], { rowMode: "arrays" })).rows, [[1, 2]]);
  assert.equal((await client.query("select 1 as n, 2 as n")).value(), 1);
  await refusal("not_one_row", () => result.one());
  const cut = await client.query("select generate_series(1, 9) as n", [], { maxRows: 2 });
  assert.deepEqual([cut.rows.length, cut.truncated, result.truncated], [2, true, false]);
  const odd = (await client.query(`select 1 as "__proto__", 2 as "constructor"`)).one();
  assert.deepEqual(Object.entries(odd), [["__proto__", 1], ["constructor", 2]]);
  const told = await client.query("do $$ begin raise notice 'heard'; end $$");
  assert.equal(told.notices[0].message, "heard");
}

export async function bad_input_is_refused_before_it_is_sent({ url, key, client }) {
  const cases = [
    [/params is an array of values.*of the class Object/s, () => client.query("select $1", { timeoutMs: 1 })],
    [/parameter \$2: undefined cannot be sent/, () => client.query("select $1, $2", [1, undefined])],
    [/parameter \$1: of the class Map/, () => client.query("select $1", [new Map()])],
    [/parameter \$1: the Date is invalid/, () => client.query("select $1", [new Date("never")])],
    [/there is no option timeout; there are timeoutMs, maxRows/, () => client.query("select 1", [], { timeout: 5 })],
    [/timeoutMs is 0/, () => client.query("select 1", [], { timeoutMs: 0 })],
    [/maxRows is -1/, () => client.query("select 1", [], { maxRows: -1 })],
    [/sql is a string/, () => client.query(42)],
    [/statements is an array/, () => client.transaction("select 1")],
    [/transactionId or idempotencyKey/, () => client.transaction([], { transactionId: "t", idempotencyKey: "k" })],
    [/consistency is "any"/, () => client.query("select 1", [], { consistency: "any" })],
    [/attempts is 0/, () => client.run(() => {}, { attempts: 0 })],
    [/is not the address of a service/, () => new Client("127.0.0.1:8080", key)],
    [/holds no user or password/, () => new Client("http://user:secret@127.0.0.1", key)],
    [/there is no token/, () => new Client(url)],
    [/characters that no token has/, () => new Client(url, `${key}\n`)],
  ];
  for (const [message, work] of cases) {
    const error = await failure(async () => work());
    assert.ok(error instanceof TypeError, error.stack);
    assert.match(error.message, message);
  }
}

// -- errors

export async function an_error_says_what_and_where({ client, url, direct }) {
  const parse = await refusal("parse_error", () => client.query("select 1, from pg_class"));
  assert.deepEqual([parse.status, parse.sqlstate, parse.position, parse.retryable], [400, "42601", 11, false]);
  assert.match(parse.requestId, /^req_/);
  const column = await refusal("sql_error", () => client.query("select relnam from pg_class"));
  assert.deepEqual([column.status, column.sqlstate, column.position], [200, "42703", 8]);
  assert.match(column.hint, /relname/);
  await withTable(direct, async (table) => {
    await client.query(`insert into ${table} values (1)`);
    const twice = await refusal("sql_error", () => client.query(`insert into ${table} values (1)`));
    assert.deepEqual([twice.sqlstate, twice.detail], ["23505", "Key (n)=(1) already exists."]);
  });
  const wrong = await refusal("unauthenticated", () => new Client(url, "svc_k_wrong").query("select 1"));
  assert.equal(wrong.status, 401);
  const late = await refusal("timeout", () => client.query("select pg_sleep(60)", [], { timeoutMs: 200 }));
  assert.equal(late.sqlstate, "57014");
}

export async function a_service_that_is_away_is_said_after_a_few_tries({ unused, key }) {
  const away = new Client(unused, key, { retries: 1 });
  const error = await refusal("unreachable", () => away.query("insert into t values (1)"));
  assert.deepEqual([error.retryable, error.hint], [true, "Is the service running?"]);
}

export async function an_address_of_something_else_is_said({ control, key }) {
  const error = await refusal("not_found", () => new Client(control, key).query("select 1"));
  assert.match(error.hint, /http/);
}

// -- transactions

export async function a_transaction_commits({ client, direct }) {
  await withTable(direct, async (table) => {
    const done = await client.transaction([
      `insert into ${table} values (1)`,
      { sql: `insert into ${table} values ($1), ($2) returning n`, params: [2, 3] },
    ]);
    assert.deepEqual([done.affectedRows, done.commit, done.replayed], [3, "two_phase", false]);
    assert.deepEqual(done.results[1].rows, [{ n: 2 }, { n: 3 }]);
    assert.equal(await direct.transactionState(done.id), "committed");
    assert.deepEqual(await numbers(direct, table), [1, 2, 3]);
    const read = await client.transaction([`select count(*) from ${table}`], { readOnly: true, rowMode: "arrays" });
    assert.deepEqual(read.results[0].rows, [[3]]);
  });
}

export async function a_transaction_rolls_back({ client, direct }) {
  await withTable(direct, async (table) => {
    const error = await refusal("sql_error", () =>
      client.transaction([`insert into ${table} values (1)`, "select 1 / 0", `insert into ${table} values (2)`]),
    );
    assert.deepEqual([error.statement, error.sqlstate], [1, "22012"]);
    assert.deepEqual(await numbers(direct, table), []);
  });
}

// -- lost answers

export async function a_write_whose_answer_is_lost_is_applied_once({ client, direct }) {
  await withTable(direct, async (table) => {
    const result = await client.query(`insert into ${table} values ($1) returning n`, [7]);
    assert.deepEqual([result.value(), result.replayed], [7, true]);
    assert.deepEqual(await numbers(direct, table), [7]);
  });
}

export async function a_transaction_whose_answer_is_lost_is_applied_once({ client, direct }) {
  await withTable(direct, async (table) => {
    const done = await client.transaction([`insert into ${table} select count(*) from ${table} returning n`]);
    assert.deepEqual([done.results[0].value(), done.replayed], [0, true]);
    assert.deepEqual(await numbers(direct, table), [0]);
  });
}

export async function a_read_whose_answer_is_lost_is_read_again({ client }) {
  const result = await client.query("select g from generate_series(1, $1) g", [3], { maxRows: 2 });
  assert.deepEqual([result.rows, result.truncated], [[{ g: 1 }, { g: 2 }], true]);
}

export async function a_read_that_turns_out_to_write_is_not_repeated({ client, direct }) {
  await withTable(direct, async (table) => {
    await direct.query(`alter table ${table} add ticket serial`);
    const sql = `select nextval('${table}_ticket_seq')`;
    const error = await refusal("outcome_unknown", () => client.query(sql));
    assert.match(error.message, /may have been applied/);
    assert.equal((await direct.query(sql)).value(), 2);
  });
}

export async function without_a_key_a_lost_write_is_unknown({ client, direct }) {
  await withTable(direct, async (table) => {
    await refusal("outcome_unknown", () => client.query(`insert into ${table} values (1)`, [], { idempotent: false }));
    assert.deepEqual(await numbers(direct, table), [1]);
  });
}

export async function a_write_that_cannot_be_asked_about_gives_its_key({ client, direct }) {
  await withTable(direct, async (table) => {
    const sql = `insert into ${table} values (1)`;
    const error = await refusal("outcome_unknown", () => client.query(sql));
    assert.match(error.idempotencyKey, /^[0-9a-f]{32}$/);
    const again = await direct.query(sql, [], { idempotencyKey: error.idempotencyKey });
    assert.equal(again.replayed, true);
    assert.deepEqual(await numbers(direct, table), [1]);
  });
}

export async function a_transaction_with_an_id_of_its_own_is_asked_for({ client, direct }) {
  await withTable(direct, async (table) => {
    const transactionId = `txn_${table}_own`;
    const sql = `insert into ${table} values (1)`;
    const error = await refusal("outcome_unknown", () => client.transaction([sql], { transactionId }));
    assert.equal(error.transactionId, transactionId);
    assert.equal(await direct.transactionState(transactionId), "committed");
    assert.equal(await direct.abortTransaction(`${transactionId}_never_seen`), "aborted");
  });
}

export async function statements_outside_of_a_block_work_without_a_word({ client, direct }) {
  await withTable(direct, (table) => client.query(`vacuum ${table}`));
}

// -- open transactions

export async function an_open_transaction_commits({ client, direct }) {
  await withTable(direct, async (table) => {
    const t = client.begin();
    assert.ok(t instanceof OpenTransaction);
    assert.deepEqual([t.state, t.id, t.expiresAt], ["new", null, null]);
    assert.equal((await t.query(`insert into ${table} values ($1) returning n`, [1])).value(), 1);
    assert.deepEqual([t.state, t.expiresAt > new Date()], ["open", true]);
    assert.deepEqual(await numbers(direct, table), []);
    const [{ n }] = (await t.query(`select max(n) + 1 as n from ${table}`)).rows;
    const done = await t.commit({ sql: `insert into ${table} values ($1) returning n`, params: [n] });
    assert.deepEqual([done.results[0].value(), done.id, t.state], [2, t.id, "committed"]);
    assert.deepEqual(await numbers(direct, table), [1, 2]);
    await refusal("wrong_state", () => t.query("select 1"));
    assert.equal((await client.begin().commit()).commit, "read_only");
  });
}

export async function an_open_transaction_rolls_back({ client, direct }) {
  await withTable(direct, async (table) => {
    let seen;
    const error = await failure(() =>
      client.run(async (t) => {
        seen = t;
        await t.query(`insert into ${table} values (1)`);
        throw new RangeError("mine");
      }),
    );
    assert.deepEqual([error.message, seen.state, seen.reason], ["mine", "aborted", "rollback"]);
    const t = client.begin();
    await t.query(`insert into ${table} values (2)`);
    await refusal("sql_error", () => t.query("select 1 / 0"));
    assert.equal(t.state, "failed");
    await t.rollback();
    await t.rollback();
    assert.equal((await refusal("transaction_aborted", () => t.query("select 1"))).reason, "rollback");
    const left = client.begin();
    await left.query(`insert into ${table} values (3)`);
    await left[Symbol.asyncDispose]();
    assert.deepEqual([await direct.transactionState(left.id), await numbers(direct, table)], ["aborted", []]);
  });
}

export async function a_conflict_is_run_again({ client, direct }) {
  await withTable(direct, async (table) => {
    await direct.query(`insert into ${table} values (1, '0')`);
    const seen = [];
    const raise = async (t) => {
      seen.push(t);
      const note = Number((await t.query(`select note from ${table}`)).value());
      if (seen.length < 3) await direct.query(`update ${table} set note = note::int + 10`);
      await t.query(`update ${table} set note = $1`, [String(note + 1)]);
      return note;
    };
    assert.equal(await client.run(raise), 20);
    const conflict = ["aborted", "conflict"];
    assert.deepEqual(seen.map((t) => [t.state, t.reason]), [conflict, conflict, ["committed", null]]);
    assert.equal((await direct.query(`select note from ${table}`)).value(), "21");
    seen.length = 0;
    const error = await refusal("conflict", () => client.run(raise, { attempts: 2 }));
    assert.deepEqual([error.sqlstate, error.retryable, seen.length], ["40001", true, 2]);
  });
}

export async function nothing_of_an_open_transaction_runs_twice({ client, direct }) {
  await withTable(direct, async (table) => {
    const t = client.begin();
    await t.query("select 1");
    const inserted = await t.query(`insert into ${table} values (1) returning n`);
    assert.deepEqual([inserted.value(), inserted.replayed], [1, true]);
    await t.savepoint(() => t.query(`insert into ${table} select max(n) + 1 from ${table}`));
    const done = await t.commit(`insert into ${table} select max(n) + 1 from ${table} returning n`);
    assert.deepEqual([done.results[0].value(), done.replayed], [3, true]);
    assert.deepEqual(await numbers(direct, table), [1, 2, 3]);
  });
}

export async function a_commit_whose_answer_never_comes_can_be_asked_about({ client, direct }) {
  await withTable(direct, async (table) => {
    let seen;
    const error = await refusal("outcome_unknown", () =>
      client.run((t) => {
        seen = t;
        return t.query(`insert into ${table} values (1)`);
      }),
    );
    assert.deepEqual([seen.state, error.transactionId], ["in_progress", seen.id]);
    assert.equal(await direct.transactionState(error.transactionId), "committed");
  });
}

export async function a_statement_whose_answer_never_comes_ends_it({ client, direct }) {
  await withTable(direct, async (table) => {
    const t = client.begin();
    await t.query("select 1");
    await refusal("answer_lost", () => t.query(`insert into ${table} values (1)`));
    assert.equal((await refusal("transaction_aborted", () => t.query("select 1"))).reason, "lost");
    await t.rollback();
    assert.deepEqual([await direct.transactionState(t.id), await numbers(direct, table)], ["aborted", []]);
  });
}

export async function a_savepoint_undoes_its_function_alone({ client, direct }) {
  await withTable(direct, async (table) => {
    const insert = (t, n) => t.query(`insert into ${table} values ($1)`, [n]);
    await client.run(async (t) => {
      await t.savepoint(() => insert(t, 1));
      const error = await refusal("sql_error", () =>
        t.savepoint(async () => {
          await insert(t, 2);
          await t.savepoint(() => insert(t, 1));
        }),
      );
      assert.deepEqual([error.sqlstate, t.state], ["23505", "open"]);
      // What the service refuses does not disturb the sequences.
      await refusal("transaction_control", () => t.query("commit"));
      await insert(t, 3);
    });
    assert.deepEqual(await numbers(direct, table), [1, 3]);
  });
}

export async function a_stream_within_a_transaction({ client, direct }) {
  await withTable(direct, async (table) => {
    await client.run(async (t) => {
      const stream = t.stream(`insert into ${table} select generate_series(1, 3) returning n`);
      assert.deepEqual(await collect(stream), [{ n: 1 }, { n: 2 }, { n: 3 }]);
      assert.equal((await t.query(`select count(*) from ${table}`)).value(), 3);
      const left = await failure(() =>
        t.savepoint(async () => {
          for await (const row of t.stream("select repeat('x', 1000) from generate_series(1, 1000000)")) {
            await refusal("transaction_in_use", () => t.query("select 1"));
            throw row;
          }
        }),
      );
      assert.equal(left.repeat.length, 1000);
    });
    assert.deepEqual(await numbers(direct, table), [1, 2, 3]);
  });
}

// -- streams

async function collect(stream) {
  const rows = [];
  for await (const row of stream) rows.push(row);
  return rows;
}

export async function ten_thousand_rows_are_streamed({ client }) {
  const sql = "select g as n, g::int8 * 100000000000000 as big, repeat('é', g % 50) as t from generate_series(1, $1) g";
  const stream = client.stream(sql, [10_000]);
  assert.ok(stream instanceof RowStream);
  let count = 0;
  for await (const row of stream) {
    count += 1;
    assert.equal(row.n, count);
    assert.equal(row.t.length, count % 50);
    assert.equal(BigInt(row.big), BigInt(count) * 10n ** 14n);
  }
  assert.deepEqual([count, stream.rowCount, stream.columns], [10_000, 10_000, ["n", "big", "t"]]);
  assert.deepEqual(await collect(client.stream("select 1, 2", [], { rowMode: "arrays" })), [[1, 2]]);
  assert.deepEqual(await collect(client.stream("select 1 where false")), []);
}

export async function a_stream_takes_constant_memory({ client }) {
  let length = 0;
  const sql = "select repeat('x', 3000) as t from generate_series(1, 15000)";
  for await (const row of client.stream(sql)) length += row.t.length;
  assert.equal(length, 45_000_000);
}

export async function an_aborted_stream_ends_its_statement({ client, direct }) {
  const lock = newLock();
  const sql = `select pg_advisory_xact_lock(${lock}), pg_sleep(0.01) from generate_series(1, 1000000)`;
  const controller = new AbortController();
  const error = await failure(async () => {
    for await (const _ of client.stream(sql, [], { signal: controller.signal })) {
      assert.equal(await isHeld(direct, lock), true, "a row was given after the abort");
      controller.abort();
    }
  });
  assert.equal(error.name, "AbortError");
  await waitUntil(async () => !(await isHeld(direct, lock)));
  for await (const _ of client.stream(sql)) break;
  await waitUntil(async () => !(await isHeld(direct, lock)));
}

export async function a_stream_tells_of_its_failure({ client }) {
  const sql = "select 1 / (3 - g) from generate_series(1, 5) g";
  const divided = await refusal("sql_error", () => collect(client.stream(sql)));
  assert.deepEqual([divided.sqlstate, divided.status], ["22012", 200]);
  assert.equal((await refusal("parse_error", () => client.stream("selec").open())).position, 1);
}

export async function a_stream_that_is_cut_off_is_no_whole_result({ client }) {
  const stream = client.stream("select g, pg_sleep(0.01) from generate_series(1, 100000) g");
  await refusal("stream_cut", () => collect(stream));
}

export async function a_stream_that_is_lost_before_its_head_is_unknown({ client }) {
  await refusal("outcome_unknown", () => collect(client.stream("select 1")));
}

// -- deadlines

export async function a_signal_is_a_deadline({ client, direct }) {
  const lock = newLock();
  const sql = "select pg_advisory_xact_lock($1), pg_sleep(60)";
  const error = await failure(() => client.query(sql, [lock], { signal: AbortSignal.timeout(300) }));
  assert.equal(error.name, "TimeoutError");
  await waitUntil(async () => !(await isHeld(direct, lock)));
  const aborted = AbortSignal.abort(new RangeError("mine"));
  assert.equal((await failure(() => client.query("select 1", [], { signal: aborted }))).message, "mine");
}

export async function an_aborted_statement_ends_its_transaction({ client, direct }) {
  await withTable(direct, async (table) => {
    let seen;
    const lock = newLock();
    const controller = new AbortController();
    const running = client.run(
      async (t) => {
        seen = t;
        await t.query(`insert into ${table} values (1)`);
        await t.query("select pg_advisory_xact_lock($1), pg_sleep(60)", [lock]);
      },
      { signal: controller.signal },
    );
    running.catch(() => {});
    await waitUntil(() => isHeld(direct, lock));
    controller.abort();
    assert.equal((await failure(() => running)).name, "AbortError");
    assert.equal(await direct.transactionState(seen.id), "aborted");
    assert.deepEqual(await numbers(direct, table), []);
  });
}

// -- sessions

export async function a_session_does_what_it_may({ client, url }) {
  const session = await client.createSession({ scopes: ["read"], database: "main", expiresIn: 900 });
  assert.deepEqual([session.scopes, session.database], [["read"], "main"]);
  // The page knows the address and the token.
  const page = new Client(url, session.token);
  const { token, ...record } = session;
  assert.deepEqual(await page.whoAmI(), record);
  assert.equal((await page.query("select $1::int + 1", [41])).value(), 42);
  const write = await refusal("sql_error", () => page.query("create table page (n int)"));
  assert.ok(["25006", "42501"].includes(write.sqlstate));
  assert.equal((await page.organization()).success, true);
  await refusal("forbidden", () => page.usage());
  await refusal("forbidden", () => page.createSession());
  assert.ok((await page.refreshSession()).expires_at > session.expires_at);
  await page.endSession();
  await refusal("unauthenticated", () => page.whoAmI());
  assert.ok(Array.isArray(await client.usage({ since: new Date(Date.now() - 7_200_000) })));
}
