// Prisma's adapter over a WebSocket, asked as Prisma's client asks it: that client would be made from a schema first.
import { PrismaNeon } from "@prisma/adapter-neon";
import { connectionString, failureOf, table, tell } from "./place.mjs";

const adapter = await new PrismaNeon({ connectionString: connectionString() }).connect();
const scalar = (scalarType, dbType) => ({ scalarType, dbType, arity: "scalar" });

const values = [1, "ada", "9007199254740993", "1.50", new Date("2026-11-14T23:57:08.500Z"), '{"a": [1, null]}', true];
const argTypes = ["int", "string", "bigint", "decimal", "datetime", "json", "boolean"].map((type) => scalar(type));
const insert = `insert into ${table} (id, name, big, price, at, data, done) values ($1, $2, $3, $4, $5, $6, $7)`;
const inserted = await adapter.executeRaw({ sql: insert, args: values, argTypes });
const found = await adapter.queryRaw({
  sql: `select id, name, big, price, at, data, done from ${table} where id = $1`,
  args: [1],
  argTypes: [scalar("int")],
});

const plain = (sql) => ({ sql, args: [], argTypes: [] });
const unique = await failureOf(() => adapter.executeRaw(plain(`insert into ${table} (id) values (1)`)));
const missing = await failureOf(() => adapter.queryRaw(plain("select * from nowhere")));

async function count() {
  const { rows } = await adapter.queryRaw(plain(`select count(*)::int as count from ${table}`));
  return rows[0][0];
}

async function inTransaction(work) {
  const transaction = await adapter.startTransaction("SERIALIZABLE");
  await transaction.executeRaw(plain(work));
  return transaction;
}

/** Where the adapter does not end a transaction by itself, the client sends the command before it tells the adapter. */
async function end(transaction, command) {
  if (!transaction.options.usePhantomQuery) await transaction.executeRaw(plain(command));
  await transaction[command]();
}

const kept = await inTransaction(`insert into ${table} (id) values (2)`);
const before = await count();
await end(kept, "commit");
const dropped = await inTransaction(`delete from ${table}`);
await end(dropped, "rollback");
const after = await count();
const many = await adapter.queryRaw(plain("select g from generate_series(1, 10000) g"));
await adapter.dispose();

tell({
  inserted,
  found,
  failures: [unique, missing].map((error) => error.cause ?? error),
  transaction: { before, after },
  many: many.rows.length,
});
