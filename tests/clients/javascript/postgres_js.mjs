// postgres.js through the tunnel: types both ways, errors, transactions, many rows, a statement that is cancelled.
import postgres from "postgres";
import { failureOf, table, tell, tunnel } from "./place.mjs";

const sql = postgres(tunnel, { max: 3 });
const items = sql(table);

const moment = new Date("2026-11-14T23:57:08.500Z");
const [read] = await sql`
  select ${1}::int as i, ${"9007199254740993"}::int8 as big, ${1.5}::float8 as f, ${"1.50"}::numeric as n,
         ${true}::bool as b, ${null}::text as nothing, ${moment}::timestamptz as at, ${sql.json({ a: [1, null] })}::jsonb as j,
         ${["a", 'b"c']}::text[] as texts, ${Buffer.from([0, 255])}::bytea as bytes, ${"it's \\ é😀"}::text as s`;
const back = { ...read, at: read.at.toISOString(), bytes: [...read.bytes] };

async function describe(work) {
  const { code, position, constraint_name: constraint, detail } = await failureOf(work);
  return { code, position, constraint, detail };
}

await sql`insert into ${items} ${sql({ id: 1, name: "ada" })}`;
const failures = {
  syntax: await describe(() => sql`selec 1`),
  column: await describe(() => sql`select nothing`),
  unique: await describe(() => sql`insert into ${items} (id) values (1)`),
};

const committed = await sql.begin(async (tx) => {
  await tx`insert into ${items} (id) values (2)`;
  return tx`select current_setting('transaction_isolation') as level`;
});
const rolledBack = await failureOf(() =>
  sql.begin(async (tx) => {
    await tx`delete from ${items}`;
    throw new Error("changed my mind");
  }),
);
const [{ count }] = await sql`select count(*)::int as count from ${items}`;

const many = await sql`select g as n from generate_series(1, 10000) g`;
let chunks = 0;
await sql`select g as n from generate_series(1, 10000) g`.cursor(1000, () => {
  chunks += 1;
});

const sleeping = sql`select pg_sleep(60)`;
const failure = failureOf(() => sleeping);
while ((await sql`select 1 from pg_stat_activity where wait_event = 'PgSleep'`).length === 0) {
  await new Promise((resolve) => setTimeout(resolve, 20));
}
sleeping.cancel();
const { code: cancelled } = await failure;
const [after] = await sql`select 1 as one`;
await sql.end();

tell({ back, failures, committed, rolledBack: rolledBack.message, count, many: many.length, chunks, cancelled, after });
