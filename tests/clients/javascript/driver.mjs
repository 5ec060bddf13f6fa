// The driver of Neon by itself: types both ways, options, errors, transactions, many rows.
import { neon, neonConfig, Pool, types } from "@neondatabase/serverless";
import { connectionString, failureOf, table, tell } from "./place.mjs";

const sql = neon(connectionString());

const moment = new Date("2026-11-14T23:57:08.500Z");
const [read] = await sql`
  select ${1}::int as i, ${"9007199254740993"}::int8 as big, ${1.5}::float8 as f, ${"1.50"}::numeric as n, ${true}::bool as b,
         ${null}::text as nothing, ${moment}::timestamptz as at, ${{ a: [1, null] }}::jsonb as j, ${["a", 'b"c', null]}::text[] as texts,
         ${[[1, 2], [3, 4]]}::int[] as grid, ${Buffer.from([0, 255])}::bytea as bytes, ${"it's \\ é😀"} as s`;
const back = {
  ...read,
  at: read.at.toISOString(),
  bytes: [...read.bytes],
  isDate: read.at instanceof Date,
};

const full = await sql.query("select 1 as a, 2 as a", [], { fullResults: true, arrayMode: true });
const plain = await sql.query("select 7::int as n", [], { types: { getTypeParser: () => (text) => `<${text}>` } });

async function describe(work) {
  const { name, message, code, position, severity, constraint, table, detail } = await failureOf(work);
  return { name, message, code, position, severity, constraint, table, detail };
}

await sql.query(`insert into ${table} (id, name) values ($1, $2)`, [1, "ada"]);
const failures = {
  syntax: await describe(() => sql`selec ${1}`),
  column: await describe(() => sql`select nothing`),
  unique: await describe(() => sql.query(`insert into ${table} (id) values (1)`)),
  key: await describe(() => neon(connectionString("svc_k_wrong"))`select 1`),
  database: await describe(() => neon(connectionString(undefined, "nowhere"))`select 1`),
};

const committed = await sql.transaction(
  [sql.query(`insert into ${table} (id, name) values (2, 'bo') returning id`), sql`select current_setting('transaction_isolation') as level`],
  { isolationLevel: "ReadCommitted" },
);
const rolledBack = await describe(() =>
  sql.transaction((tx) => [tx.query(`insert into ${table} (id) values (3)`), tx.query(`insert into ${table} (id) values (1)`)]),
);
const readOnly = await describe(() => sql.transaction([sql.query(`delete from ${table}`)], { readOnly: true }));
const none = await sql.transaction([]);
const [{ count }] = await sql.query(`select count(*)::int as count from ${table}`);

const many = await sql`select g as n, 'row ' || g as name from generate_series(1, 10000) g`;
const byToken = await neon("postgresql://any@localhost/main", { authToken: process.env.TUPLEGATE_API_KEY })`select 1 as one`;

neonConfig.poolQueryViaFetch = true;
const pool = new Pool({ connectionString: connectionString() });
const { rows: pooled } = await pool.query("select $1::int as n", [7]);
await pool.end();

tell({
  back,
  full: { rows: full.rows, command: full.command, rowCount: full.rowCount, names: full.fields.map(({ name }) => name) },
  plain,
  failures,
  committed,
  rolledBack,
  readOnly,
  none,
  count,
  many: { length: many.length, last: many.at(-1), sum: many.reduce((sum, { n }) => sum + n, 0) },
  byToken,
  pooled,
  parser: typeof types.getTypeParser(23),
});
