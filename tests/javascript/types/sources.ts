// The sources have all that the declarations promise. It is type-checked and never run.
import * as sources from "./src/index.js";
import * as declared from "./types/index.js";

export const client: typeof declared.Client = sources.Client;
export const error: typeof declared.TuplegateError = sources.TuplegateError;
export const names: Record<keyof typeof declared, unknown> = sources;
export const same: Record<keyof typeof sources, unknown> = declared;

export function instances(
  transaction: sources.OpenTransaction,
  result: sources.Result<string>,
  stream: sources.RowStream<string>,
): [declared.OpenTransaction, declared.Result<string>, declared.RowStream<string>] {
  return [transaction, result, stream];
}
