// Kysely by its dialect for the driver.
import { neon } from "@neondatabase/serverless";
import { Kysely, sql } from "kysely";
import { NeonDialect } from "kysely-neon";
import { connectionString, failureOf, table, tell } from "./place.mjs";

const db = new Kysely({ dialect: new NeonDialect({ neon: neon(connectionString()) }) });

const row = { id: 1, name: "ada", big: "9007199254740993", price: "1.50", data: JSON.stringify({ a: [1, null] }), tags: ["a", 'b"c'] };
const inserted = await db.insertInto(table).values(row).returningAll().executeTakeFirstOrThrow();
const found = await db.selectFrom(table).select(["id", "name", "tags"]).where("id", "=", 1).execute();
const updated = await db.updateTable(table).set({ done: true }).where("id", "=", 1).executeTakeFirst();
const unique = await failureOf(() => db.insertInto(table).values({ id: 1 }).execute());
const unknown = await failureOf(() => sql`select nothing`.execute(db));
const interactive = await failureOf(() => db.transaction().execute(async () => {}));
const many = await sql`select g as n from generate_series(1, 10000) g`.execute(db);
const tables = (await db.introspection.getTables()).filter(({ name }) => name === table).map(({ columns }) => columns.length);

tell({
  inserted,
  found,
  updated: updated.numUpdatedRows,
  unique: { code: unique.code, constraint: unique.constraint },
  unknown: { code: unknown.code, position: unknown.position },
  interactive: interactive.message,
  many: many.rows.length,
  tables,
});
