// The package. `types/index.d.ts` describes what it exports, and a test holds the two together.
export { Client } from "./client.js";
export { TuplegateError } from "./errors.js";
export { OpenTransaction } from "./open_transaction.js";
export { Result } from "./result.js";
export { RowStream } from "./stream.js";
