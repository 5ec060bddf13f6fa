/** Staged edits of a table: kept in the page until they are applied, all in one transaction, or dropped. */
import { asFailure, Failure, makeFailure } from "../api/http";
import { OpenTransaction, querySmall } from "../api/query";
import type { Value } from "../api/types";
import { keepUnsent } from "../app/unsent";
import type { Store } from "../parts/store";
import { quoteIdentifier, quoteTable } from "../sql/quote";
import type { Column, Table } from "../sql/schema";
import { cellExpression, isUnchanged, keyOf, literalFor } from "./pages";

export interface Change {
  old: string | null;
  /** Whether `old` is the whole value, not one that was cut for the grid. */
  isWhole: boolean;
  value: string | null;
}

export type Edit =
  | { kind: "update"; id: string; key: string[]; changes: Record<string, Change> }
  | { kind: "delete"; id: string; key: string[]; row: (string | null)[] }
  | { kind: "insert"; id: string; values: NewRow };

export interface Conflict {
  id: string;
  /** The row as it is now; null where it is gone. */
  current: (string | null)[] | null;
}

/** The edits of a table. They outlive a change of the page, a reload, and a session that ends. */
export class Edits {
  readonly store: Store<Edit[] | null>;

  constructor(store: Store<Edit[] | null>) {
    this.store = store;
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

export function editsOf(database: string | null, table: Table): Edits {
  return new Edits(keepUnsent<Edit[]>("edits", database, table.schema, table.name));
}

/** Return the row that is being typed; null where none is. */
export function newRowOf(database: string | null, table: Table): Store<NewRow | null> {
  return keepUnsent<NewRow>("row", database, table.schema, table.name);
}

export type NewRow = Record<string, string | null>;

export function idOf(key: string[]): string {
  return JSON.stringify(key);
}

/** Stage a new value for a cell; the old value again takes the change back. */
export function stageChange(edits: Edits, key: string[], column: string, change: Change): void {
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

export function stageDelete(edits: Edits, key: string[], row: (string | null)[]): void {
  const id = idOf(key);
  edits.update((all) => {
    const rest = all.filter((edit) => edit.id !== id);
    const isDeleted = all.some((edit) => edit.id === id && edit.kind === "delete");
    return isDeleted ? rest : [...rest, { kind: "delete", id, key, row }];
  });
}

export function stageInsert(edits: Edits, values: NewRow): void {
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
  if (edit.kind === "insert") {
    const columns = Object.keys(edit.values);
    if (columns.length === 0) return `insert into ${name} default values`;
    return `insert into ${name} (${columns.map(quoteIdentifier).join(", ")}) values (${columns.map((one) => literalFor(columnOf(one), edit.values[one] ?? null)).join(", ")})`;
  }
  const where = keyOf(table).map(
    (one, at) => `${quoteIdentifier(one)} = ${literalFor(columnOf(one), edit.key[at] ?? null)}`,
  );
  if (edit.kind === "delete") {
    const same = table.columns.flatMap((column, at) =>
      column.primary_key ? [] : [isUnchanged(column, edit.row[at] ?? null, false)],
    );
    return `delete from ${name} where ${[...where, ...same].join(" and ")}`;
  }
  const changes = Object.entries(edit.changes);
  const sets = changes.map(
    ([column, change]) => `${quoteIdentifier(column)} = ${literalFor(columnOf(column), change.value)}`,
  );
  const same = changes.map(([column, change]) => isUnchanged(columnOf(column), change.old, change.isWhole));
  return `update ${name} set ${sets.join(", ")} where ${[...where, ...same].join(" and ")}`;
}

function asText(name: string): Column {
  return { name, type: "text", nullable: true, default: null, primary_key: false };
}

export class ConflictFailure extends Failure {
  readonly conflict: Conflict;

  constructor(conflict: Conflict) {
    const gone = conflict.current === null;
    const message = gone
      ? "A row that you edited is gone. Nothing was applied."
      : "Somebody has changed a row that you edited. Nothing was applied.";
    super(409, makeFailure("row_changed", message, "Look at its values now, then keep your change or drop it.").body);
    this.conflict = conflict;
  }
}

/** Apply all edits or none. A row that is not as it was shown ends it, and is told. */
export async function applyEdits(table: Table, edits: Edit[], database: string | null): Promise<void> {
  const opened = await OpenTransaction.begin(database);
  let isOpen = true;
  try {
    for (const edit of edits) {
      const answer = await opened.query({ sql: writeEdit(table, edit) }).catch((error: unknown) => {
        throw nameEdit(asFailure(error), edits.indexOf(edit), edits.length);
      });
      if (answer.affected_rows !== 1 && edit.kind !== "insert")
        throw new ConflictFailure({ id: edit.id, current: await readCurrent(opened, table, edit.key) });
    }
    isOpen = false;
    await opened.commit();
  } finally {
    if (isOpen) await opened.rollback();
  }
}

function nameEdit(failure: Failure, at: number, count: number): Failure {
  if (count === 1) return failure;
  const message = `Edit ${at + 1} of ${count}: ${failure.message}. Nothing was applied.`;
  return new Failure(failure.status, { ...failure.body, message }, failure.requestId);
}

async function readCurrent(opened: OpenTransaction, table: Table, key: string[]): Promise<(string | null)[] | null> {
  const answer = await opened.query({
    sql: rowByKey(
      table,
      table.columns.map((column) => cellExpression(column)),
    ),
    params: key,
  });
  return (answer.rows[0] as (string | null)[] | undefined) ?? null;
}

function rowByKey(table: Table, expressions: string[]): string {
  const where = keyOf(table).map((one, at) => `${quoteIdentifier(one)} = $${at + 1}`);
  return `select ${expressions.join(", ")} from ${quoteTable(table.schema, table.name)} as t where ${where.join(" and ")}`;
}

/** Read the whole of a value that was cut for the grid. */
export async function readWhole(table: Table, key: string[], column: string, database: string | null): Promise<Value> {
  const answer = await querySmall(rowByKey(table, [`${quoteIdentifier(column)}::text`]), key, database);
  if (!answer.rows[0]) throw makeFailure("row_gone", "The row is gone.", "Load the page again.");
  return answer.rows[0][0] ?? null;
}

/** Take what is in the row now as the value that was edited. */
export function rebase(edits: Edits, table: Table, conflict: Conflict): void {
  const { current } = conflict;
  if (!current) return;
  edits.update((all) =>
    all.map((edit) => {
      if (edit.id !== conflict.id) return edit;
      if (edit.kind === "delete") return { ...edit, row: current };
      if (edit.kind !== "update") return edit;
      const changes = Object.entries(edit.changes).map(([name, change]) => {
        const at = table.columns.findIndex((column) => column.name === name);
        return [name, { ...change, old: current[at] ?? null, isWhole: false }] as const;
      });
      return { ...edit, changes: Object.fromEntries(changes) };
    }),
  );
}
