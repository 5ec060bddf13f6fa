// Drizzle over the driver: tables with types, a batch, errors.
import { neon } from "@neondatabase/serverless";
import { eq, sql } from "drizzle-orm";
import { drizzle } from "drizzle-orm/neon-http";
import { bigint, boolean, integer, jsonb, numeric, pgTable, text, timestamp } from "drizzle-orm/pg-core";
import { connectionString, failureOf, table, tell } from "./place.mjs";

const items = pgTable(table, {
  id: integer("id").primaryKey(),
  name: text("name"),
  big: bigint("big", { mode: "bigint" }),
  price: numeric("price"),
  at: timestamp("at", { withTimezone: true }),
  data: jsonb("data"),
  tags: text("tags").array(),
  done: boolean("done"),
});
const db = drizzle(neon(connectionString()));

const row = {
  id: 1,
  name: "ada",
  big: 9007199254740993n,
  price: "1.50",
  at: new Date("2026-11-14T23:57:08.500Z"),
  data: { a: [1, null], s: "x" },
  tags: ["a", 'b"c'],
  done: true,
};
const [inserted] = await db.insert(items).values(row).returning();
const [found] = await db.select().from(items).where(eq(items.id, 1));
const [updated] = await db.update(items).set({ done: false }).where(eq(items.id, 1)).returning({ done: items.done });
const batch = await db.batch([
  db.insert(items).values({ id: 2, name: "bo" }).returning({ id: items.id }),
  db.select({ id: items.id }).from(items).orderBy(items.id),
]);
const rolledBack = await failureOf(() =>
  db.batch([db.insert(items).values({ id: 3 }), db.insert(items).values({ id: 1 })]),
);
const interactive = await failureOf(() => db.transaction(async () => {}));
const raw = await db.execute(sql`select count(*)::int as count from ${items}`);
const many = await db.execute(sql`select g as n from generate_series(1, 10000) g`);

tell({
  inserted,
  found,
  updated,
  batch,
  rolledBack: (rolledBack.cause ?? rolledBack).code,
  interactive: interactive.message,
  raw: { rows: raw.rows, rowCount: raw.rowCount },
  many: many.rows.length,
});
