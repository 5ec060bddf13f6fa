/** Staged edits of a table: kept in the page until they are applied, all in one transaction, or dropped.
 *
 * An edit names columns by their names, never by their places: the table may change before it is applied.
 */
import { asFailure, Failure, makeFailure } from "../api/http";
import { OpenTransaction, type Outcome, querySmall, settle } from "../api/query";
import type { Value } from "../api/types";
import { keepUnsent } from "../app/unsent";
import { Store } from "../parts/store";
import { quoteIdentifier, quoteTable } from "../sql/quote";
import { type Column, isLax, type Table } from "../sql/schema";
import { castFor, cellExpression, digestOf, digestsExpression, isUnchanged, keyOf, literalFor } from "./pages";

export interface Change {
  /** The value that was seen, which may be cut. */
  old: string | null;
  /** The digest of the whole of that value, where it is long. */
  digest: string | null;
  value: string | null;
}

/** Values of columns by their names. */
export type Named = Record<string, string | null>;

export type Edit =
  | { kind: "update"; id: string; key: Named; changes: Record<string, Change> }
  | { kind: "delete"; id: string; key: Named; row: Named; digests: Named }
  | { kind: "insert"; id: string; values: Named };

export interface Conflict {
  id: string;
  /** The row as it is now; null where it is gone. */
  current: Named | null;
  /** Digests of its long values. */
  digests: Named;
}

/** Edits whose commit was sent. As long as this is kept, what became of it is not known. */
export interface Sent {
  transaction: string;
  edits: Edit[];
}

/** The edits of a table. They outlive a change of the page, a reload, and a session that ends. */
export class Edits {
  readonly store: Store<Edit[] | null>;
  readonly sent: Store<Sent | null>;
  readonly isBusy = new Store(false);

  constructor(store: Store<Edit[] | null>, sent: Store<Sent | null>) {
    this.store = store;
    this.sent = sent;
  }

  get all(): Edit[] {
    return this.store.value ?? NONE;
  }

  set(edits: Edit[]): void {
    this.store.set(edits.length ? edits : null);
  }

  update(change: (edits: Edit[]) => Edit[]): void {
    this.set(change(this.all));
  }
}

const NONE: Edit[] = [];
const known = new WeakMap<Store<Edit[] | null>, Edits>();

export function editsOf(database: string | null, table: Table): Edits {
  const store = keepUnsent<Edit[]>("staged", database, table.schema, table.name);
  let edits = known.get(store);
  if (!edits) {
    edits = new Edits(store, keepUnsent<Sent>("sent", database, table.schema, table.name));
    known.set(store, edits);
  }
  return edits;
}

/** Return the row that is being typed; null where none is. */
export function newRowOf(database: string | null, table: Table): Store<Named | null> {
  return keepUnsent<Named>("row", database, table.schema, table.name);
}

export function idOf(key: Named): string {
  return JSON.stringify(key);
}

/** Stage a new value for a cell; the old value again takes the change back. */
export function stageChange(edits: Edits, key: Named, column: string, change: Change): void {
  const id = idOf(key);
  edits.update((all) => {
    const before = all.find((edit) => edit.kind === "update" && edit.id === id);
    const changes = { ...(before?.kind === "update" ? before.changes : {}) };
    const old = changes[column] ?? change;
    if (old.old === change.value) delete changes[column];
    else changes[column] = { ...old, value: change.value };
    const edit: Edit = { kind: "update", id, key, changes };
    if (Object.keys(changes).length === 0) return all.filter((one) => one !== before);
    return before ? all.map((one) => (one === before ? edit : one)) : [...all, edit];
  });
}

export function stageDelete(edits: Edits, key: Named, row: Named, digests: Named): void {
  const id = idOf(key);
  edits.update((all) => {
    const rest = all.filter((edit) => edit.id !== id);
    const isDeleted = all.some((edit) => edit.id === id && edit.kind === "delete");
    return isDeleted ? rest : [...rest, { kind: "delete", id, key, row, digests }];
  });
}

export function stageInsert(edits: Edits, values: Named): void {
  edits.update((all) => [...all, { kind: "insert", id: `new-${crypto.randomUUID()}`, values }]);
}

export function dropEdit(edits: Edits, id: string): void {
  edits.update((all) => all.filter((edit) => edit.id !== id));
}

/** Return the statement that applies an edit; it touches nothing if the row has changed meanwhile. */
export function writeEdit(table: Table, edit: Edit): string {
  const name = quoteTable(table.schema, table.name);
  // A column may be gone since: the engine says so when the edit is applied.
  const columnOf = (wanted: string) => table.columns.find((column) => column.name === wanted) ?? asText(wanted);
  const literal = (column: string, value: string | null) => literalFor(columnOf(column), value);
  const unchanged = (column: string, old: string | null, digest: string | null) =>
    isUnchanged(columnOf(column), old, digest, isLax(table, column));
  if (edit.kind === "insert") {
    const columns = Object.keys(edit.values);
    if (columns.length === 0) return `insert into ${name} default values`;
    return `insert into ${name} (${columns.map(quoteIdentifier).join(", ")}) values (${columns.map((one) => literal(one, edit.values[one] ?? null)).join(", ")})`;
  }
  const where = Object.entries(edit.key).map(([one, value]) => `${quoteIdentifier(one)} = ${literal(one, value)}`);
  if (edit.kind === "delete") {
    const same = Object.entries(edit.row).flatMap(([one, value]) =>
      one in edit.key ? [] : [unchanged(one, value, edit.digests[one] ?? null)],
    );
    return `delete from ${name} where ${[...where, ...same].join(" and ")}`;
  }
  const changes = Object.entries(edit.changes);
  const sets = changes.map(([column, change]) => `${quoteIdentifier(column)} = ${literal(column, change.value)}`);
  const same = changes.map(([column, change]) => unchanged(column, change.old, change.digest));
  return `update ${name} set ${sets.join(", ")} where ${[...where, ...same].join(" and ")}`;
}

function asText(name: string): Column {
  return { name, type: "text", nullable: true, default: null, primary_key: false };
}

/** Take what is in the row now as the value that was edited. */
export function rebase(edits: Edits, conflict: Conflict): void {
  const { current, digests } = conflict;
  if (!current) return;
  edits.update((all) =>
    all.map((edit) => {
      if (edit.id !== conflict.id) return edit;
      if (edit.kind === "delete") return { ...edit, row: current, digests };
      if (edit.kind !== "update") return edit;
      const changes = Object.entries(edit.changes).map(
        ([name, change]) => [name, { ...change, old: current[name] ?? null, digest: digests[name] ?? null }] as const,
      );
      return { ...edit, changes: Object.fromEntries(changes) };
    }),
  );
}

/** Remove edits that were applied. One that was changed meanwhile stays, with what was applied as its old value. */
function removeApplied(edits: Edits, applied: Edit[]): void {
  const byId = new Map(applied.map((edit) => [edit.id, edit]));
  edits.update((all) =>
    all.flatMap((edit) => {
      const done = byId.get(edit.id);
      if (!done) return [edit];
      if (JSON.stringify(done) === JSON.stringify(edit)) return [];
      if (done.kind !== "update" || edit.kind !== "update") return [edit];
      const changes = Object.entries(edit.changes).flatMap(([name, change]) => {
        const before = done.changes[name];
        if (!before) return [[name, change] as const];
        return before.value === change.value ? [] : [[name, { ...change, old: before.value, digest: null }] as const];
      });
      return changes.length ? [{ ...edit, changes: Object.fromEntries(changes) }] : [];
    }),
  );
}

/** Apply all that is staged, or nothing, and return how many edits that were. What is staged meanwhile stays. */
export async function applyStaged(table: Table, edits: Edits, database: string | null): Promise<number> {
  const { all } = edits;
  edits.isBusy.set(true);
  try {
    // Kept before the commit is sent: whatever happens to the answer or to the page, its outcome can be asked for.
    await applyEdits(table, all, database, (transaction) => edits.sent.set({ transaction, edits: all }));
    removeApplied(edits, all);
    edits.sent.set(null);
    return all.length;
  } catch (error) {
    if (asFailure(error).code !== "outcome_unknown") edits.sent.set(null);
    throw error;
  } finally {
    edits.isBusy.set(false);
  }
}

/** Find out what became of edits that were sent. Those that were applied are removed, others are offered again. */
export async function settleSent(edits: Edits, database: string | null): Promise<Outcome> {
  const sent = edits.sent.value!;
  edits.isBusy.set(true);
  try {
    const outcome = await settle(sent.transaction, database);
    if (outcome === "committed") removeApplied(edits, sent.edits);
    if (outcome === "committed" || outcome === "aborted") edits.sent.set(null);
    return outcome;
  } finally {
    edits.isBusy.set(false);
  }
}

export class ConflictFailure extends Failure {
  readonly conflict: Conflict;

  constructor(conflict: Conflict) {
    const gone = conflict.current === null;
    const message = gone
      ? "A row that you edited is gone. Nothing was applied."
      : "Somebody has changed a row that you edited. Nothing was applied.";
    const hint = gone ? "Drop your change." : "Look at its values now, then keep your change or drop it.";
    super(409, makeFailure("row_changed", message, hint).body);
    this.conflict = conflict;
  }
}

/** Apply all edits or none. A row that is not as it was shown ends it, and is told. */
async function applyEdits(
  table: Table,
  edits: Edit[],
  database: string | null,
  onCommit: (transaction: string) => void,
): Promise<void> {
  for (const edit of edits) checkKey(table, edit);
  const opened = await OpenTransaction.begin(database);
  let isOpen = true;
  try {
    for (const edit of edits) {
      const answer = await opened.query({ sql: writeEdit(table, edit) }).catch((error: unknown) => {
        throw nameEdit(asFailure(error), edits.indexOf(edit), edits.length);
      });
      if (answer.affected_rows === 1) continue;
      if (edit.kind === "insert") throw makeSwallowed();
      throw new ConflictFailure({ id: edit.id, ...(await readCurrent(opened, table, edit.key)) });
    }
    isOpen = false;
    onCommit(opened.id);
    await opened.commit();
  } finally {
    if (isOpen) await opened.rollback();
  }
}

function checkKey(table: Table, edit: Edit): void {
  if (edit.kind === "insert") return;
  if (JSON.stringify(Object.keys(edit.key).sort()) === JSON.stringify(keyOf(table).sort())) return;
  const message = "The primary key of the table has changed since a row was edited. Nothing was applied.";
  throw makeFailure("key_changed", message, "Drop the edit, and make it again.");
}

function makeSwallowed(): Failure {
  const message = "A trigger or a rule of the table has kept a new row out. Nothing was applied.";
  return makeFailure("row_swallowed", message, "Drop the new row to apply the others.");
}

function nameEdit(failure: Failure, at: number, count: number): Failure {
  if (count === 1) return failure;
  const message = `Edit ${at + 1} of ${count}: ${failure.message}. Nothing was applied.`;
  return new Failure(failure.status, { ...failure.body, message }, failure.requestId);
}

async function readCurrent(opened: OpenTransaction, table: Table, key: Named): Promise<Omit<Conflict, "id">> {
  const expressions = [...table.columns.map((column) => cellExpression(column)), digestsExpression(table)];
  const { rows } = await opened.query({ sql: rowByKey(table, expressions), params: valuesOf(table, key) });
  const row = rows[0];
  return { current: row ? nameValues(table, row) : null, digests: row ? nameDigests(table, row) : {} };
}

/** Return the values of a row by the names of their columns. */
export function nameValues(table: Table, row: Value[]): Named {
  return Object.fromEntries(table.columns.map(({ name }, at) => [name, (row[at] ?? null) as string | null]));
}

/** Return the digests of a row's long values, which stand behind its values. */
export function nameDigests(table: Table, row: Value[]): Named {
  const digests = (row[table.columns.length] ?? []) as (string | null)[];
  return Object.fromEntries(table.columns.flatMap(({ name }, at) => (digests[at] ? [[name, digests[at]]] : [])));
}

function valuesOf(table: Table, key: Named): (string | null)[] {
  return keyOf(table).map((name) => key[name] ?? null);
}

function rowByKey(table: Table, expressions: string[]): string {
  const where = keyOf(table).map((one, at) => `${quoteIdentifier(one)} = $${at + 1}${castFor(table, one)}`);
  return `select ${expressions.join(", ")} from ${quoteTable(table.schema, table.name)} as t where ${where.join(" and ")}`;
}

/** Read the whole of a value that was cut for the grid, and its digest. */
export async function readWhole(
  table: Table,
  key: Named,
  column: string,
  database: string | null,
): Promise<{ value: string | null; digest: string | null }> {
  const name = quoteIdentifier(column);
  const sql = rowByKey(table, [`${name}::text`, digestOf(name)]);
  const { rows } = await querySmall(sql, valuesOf(table, key), database);
  if (!rows[0]) throw makeFailure("row_gone", "The row is gone.", "Load the page again.");
  const [value, digest] = rows[0] as (string | null)[];
  return { value: value ?? null, digest: digest ?? null };
}
