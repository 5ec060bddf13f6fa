// Drizzle over a WebSocket: transactions that stay open.
import { Pool } from "@neondatabase/serverless";
import { eq, sql } from "drizzle-orm";
import { drizzle } from "drizzle-orm/neon-serverless";
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
const pool = new Pool({ connectionString: connectionString() });
const db = drizzle(pool);

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
const unique = await failureOf(() => db.insert(items).values({ id: 1 }));
const unknown = await failureOf(() => db.execute(sql`select nothing`));

const committed = await db.transaction(
  async (tx) => {
    await tx.insert(items).values({ id: 2 });
    const [{ count }] = await tx.select({ count: sql`count(*)::int` }).from(items);
    const inner = await failureOf(() => tx.transaction(async (nested) => nested.insert(items).values({ id: 1 })));
    return { count, inner: (inner.cause ?? inner).code };
  },
  { isolationLevel: "serializable" },
);
const rolledBack = await failureOf(() =>
  db.transaction(async (tx) => {
    await tx.delete(items);
    tx.rollback();
  }),
);
const [{ count }] = await db.select({ count: sql`count(*)::int` }).from(items);
const many = await db.execute(sql`select g as n from generate_series(1, 10000) g`);
await pool.end();

const codes = [unique, unknown].map((error) => error.cause ?? error).map(({ code, position }) => ({ code, position }));
tell({ inserted, found, codes, committed, rolledBack: rolledBack.constructor.name, count, many: many.rows.length });
