// Prisma's HTTP adapter, asked as Prisma's client asks it: that client would be made from a schema first.
import { PrismaNeonHttp } from "@prisma/adapter-neon";
import { connectionString, failureOf, table, tell } from "./place.mjs";

const adapter = await new PrismaNeonHttp(connectionString(), {}).connect();
const scalar = (scalarType, dbType) => ({ scalarType, dbType, arity: "scalar" });

const values = [1, "ada", "9007199254740993", "1.50", new Date("2026-11-14T23:57:08.500Z"), '{"a": [1, null]}', true];
const argTypes = ["int", "string", "bigint", "decimal", "datetime", "json", "boolean"].map((type) => scalar(type));
const inserted = await adapter.executeRaw({
  sql: `insert into ${table} (id, name, big, price, at, data, done) values ($1, $2, $3, $4, $5, $6, $7)`,
  args: values,
  argTypes,
});
const found = await adapter.queryRaw({
  sql: `select id, name, big, price, at, data, done from ${table} where id = $1`,
  args: [1],
  argTypes: [scalar("int")],
});
const unique = await failureOf(() =>
  adapter.executeRaw({ sql: `insert into ${table} (id) values ($1)`, args: [1], argTypes: [scalar("int")] }),
);
const missing = await failureOf(() => adapter.queryRaw({ sql: "select * from nowhere", args: [], argTypes: [] }));
const interactive = await failureOf(() => adapter.startTransaction());
const many = await adapter.queryRaw({ sql: "select g from generate_series(1, 10000) g", args: [], argTypes: [] });

tell({ inserted, found, unique: unique.code, missing: missing.code, interactive: interactive.message, many: many.rows.length });
