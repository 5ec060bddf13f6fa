// What every client with the interface of node-postgres does: types both ways, errors, transactions, many rows, a
// statement that is cancelled.
import { failureOf, table } from "./place.mjs";

const moment = new Date("2026-11-14T23:57:08.500Z");

function describe({ message, code, position, severity, constraint, detail }) {
  return { message, code, position, severity, constraint, detail };
}

async function count(pool) {
  const { rows } = await pool.query(`select count(*)::int as count from ${table}`);
  return rows[0].count;
}

/** Runs a statement that sleeps until `cancel` ends it; returns how that ended. */
async function cancelled(pool, client, cancel) {
  const { rows } = await client.query("select pg_backend_pid() as pid");
  const failure = failureOf(() => client.query("select pg_sleep(60)"));
  const sleeps = "select 1 from pg_stat_activity where pid = $1 and wait_event = 'PgSleep'";
  while ((await pool.query(sleeps, [rows[0].pid])).rowCount === 0) {
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  cancel();
  const { code } = await failure;
  const after = await client.query("select 1 as one");
  return { code, after: after.rows };
}

export async function runScenario({ Pool, Client, settings }) {
  const pool = new Pool({ ...settings, max: 3 });
  const { rows, fields, command } = await pool.query(
    `select $1::int as i, $2::int8 as big, $3::float8 as f, $4::numeric as n, $5::bool as b, $6::text as nothing,
            $7::timestamptz as at, $8::jsonb as j, $9::text[] as texts, $10::int[] as grid, $11::bytea as bytes, $12 as s`,
    [1, "9007199254740993", 1.5, "1.50", true, null, moment, { a: [1, null] }, ["a", 'b"c', null],
     [[1, 2], [3, 4]], Buffer.from([0, 255]), "it's \\ é😀"],
  );
  const [read] = rows;
  const back = { ...read, at: read.at.toISOString(), bytes: [...read.bytes], isDate: read.at instanceof Date };

  await pool.query(`insert into ${table} (id, name) values ($1, $2)`, [1, "ada"]);
  const failures = {
    syntax: describe(await failureOf(() => pool.query("selec 1"))),
    column: describe(await failureOf(() => pool.query("select nothing where 1 = $1", [1]))),
    unique: describe(await failureOf(() => pool.query(`insert into ${table} (id) values ($1)`, [1]))),
  };

  const client = await pool.connect();
  await client.query("begin");
  await client.query(`insert into ${table} (id) values (2)`);
  const { rows: levels } = await client.query("show transaction_isolation");
  const before = await count(pool);
  await client.query("commit");
  const committed = await count(pool);
  await client.query("begin");
  await client.query(`delete from ${table}`);
  await client.query("rollback");
  const rolledBack = await count(pool);

  const named = { name: "by-id", text: `select name from ${table} where id = $1` };
  const prepared = [];
  for (const id of [1, 2]) prepared.push((await client.query({ ...named, values: [id] })).rows[0].name);
  const many = await client.query("select g as n, 'row ' || g as name from generate_series(1, 10000) g");

  const canceller = new Client(settings);
  const ended = await cancelled(pool, client, () => canceller.cancel(client, client._activeQuery ?? client.activeQuery));
  client.release();
  await pool.end();
  return {
    back,
    names: fields.map(({ name }) => name),
    command,
    failures,
    transaction: { level: levels[0].transaction_isolation, before, committed, rolledBack },
    prepared,
    many: { length: many.rows.length, last: many.rows.at(-1), sum: many.rows.reduce((sum, { n }) => sum + n, 0) },
    cancelled: ended,
  };
}
