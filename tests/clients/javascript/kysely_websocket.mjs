// Kysely's dialect of PostgreSQL over the Pool of Neon's driver: transactions that stay open.
import { Pool } from "@neondatabase/serverless";
import { Kysely, PostgresDialect, sql } from "kysely";
import { connectionString, failureOf, table, tell } from "./place.mjs";

const db = new Kysely({ dialect: new PostgresDialect({ pool: new Pool({ connectionString: connectionString() }) }) });

const row = { id: 1, name: "ada", big: "9007199254740993", price: "1.50", data: JSON.stringify({ a: [1, null] }), tags: ["a", 'b"c'] };
const inserted = await db.insertInto(table).values(row).returningAll().executeTakeFirstOrThrow();
await db.transaction().execute(async (tx) => {
  await tx.insertInto(table).values({ id: 2 }).execute();
});
const rolledBack = await failureOf(() =>
  db.transaction().execute(async (tx) => {
    await tx.deleteFrom(table).execute();
    await tx.insertInto(table).values({ id: null }).execute();
  }),
);
const ids = await db.selectFrom(table).select("id").orderBy("id").execute();
const many = await sql`select g as n from generate_series(1, 10000) g`.execute(db);
await db.destroy();

tell({ inserted, rolledBack: rolledBack.code, ids: ids.map(({ id }) => id), many: many.rows.length });
