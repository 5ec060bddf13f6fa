/** Edits of the rows that are shown: what is staged for them, and the cell that is being edited. */
import { useMemo, useState } from "preact/hooks";
import { asFailure, type Failure } from "../api/http";
import { session } from "../api/session";
import type { Row } from "../api/types";
import { database } from "../app/database";
import type { Place } from "../grid/grid";
import { useStore } from "../parts/store";
import type { Table } from "../sql/schema";
import { isParent } from "../sql/schema";
import { editsOf, idOf, type Named, nameDigests, nameValues, readWhole, stageChange, stageDelete } from "./edits";
import { isCut, keyOf } from "./pages";

/** A cell that is being edited: of the row with that key, wherever it is shown. */
export interface Editing {
  key: Named;
  column: number;
  /** The value that the editor begins with. */
  value: string | null;
  old: string | null;
  digest: string | null;
}

/** What can be done with the rows that are shown, and what is staged for them. */
export function useRowEdits(table: Table, rows: Row[]) {
  const from = useStore(database);
  const edits = editsOf(from, table);
  const all = useStore(edits.store);
  const [editing, setEditing] = useState<Editing | null>(null);
  const [failure, setFailure] = useState<Failure | null>(null);
  const key = keyOf(table);
  const mayEdit = session.allows("write") && key.length > 0 && /table$/.test(table.kind) && !isParent(table);
  const byId = useMemo(() => new Map((all ?? []).map((edit) => [edit.id, edit])), [all]);
  const shownAt = (row: number, column: number) => (rows[row]?.[column] ?? null) as string | null;
  const rowAt = (row: number) => nameValues(table, rows[row] ?? []);
  const keyAt = (row: number): Named => {
    const values = rowAt(row);
    return Object.fromEntries(key.map((name) => [name, values[name] ?? null]));
  };
  const editAt = (row: number) => (key.length ? byId.get(idOf(keyAt(row))) : undefined);
  const changeAt = (row: number, column: number) => {
    const edit = editAt(row);
    return edit?.kind === "update" ? edit.changes[table.columns[column]!.name] : undefined;
  };
  const valueAt = (row: number, column: number) => {
    const change = changeAt(row, column);
    return change ? change.value : shownAt(row, column);
  };
  const isEditingAt = ({ row, column }: Place) => editing?.column === column && idOf(editing.key) === idOf(keyAt(row));
  const open = async ({ row, column }: Place) => {
    setFailure(null);
    const key = keyAt(row);
    const staged = changeAt(row, column);
    if (staged) {
      setEditing({ key, column, ...staged });
      return;
    }
    const value = shownAt(row, column);
    if (!isCut(value)) {
      const digest = nameDigests(table, rows[row] ?? [])[table.columns[column]!.name] ?? null;
      setEditing({ key, column, value, old: value, digest });
      return;
    }
    try {
      const { value: whole, digest } = await readWhole(table, key, table.columns[column]!.name, from);
      setEditing({ key, column, value: whole, old: whole, digest });
    } catch (error) {
      setFailure(asFailure(error));
    }
  };
  const close = (one: Editing) => setEditing((now) => (now === one ? null : now));
  const stage = (one: Editing, value: string | null) => {
    close(one);
    const { old, digest } = one;
    stageChange(edits, one.key, table.columns[one.column]!.name, { old, digest, value });
  };
  const remove = (row: number) => stageDelete(edits, keyAt(row), rowAt(row), nameDigests(table, rows[row] ?? []));
  return {
    edits,
    editing,
    failure,
    mayEdit,
    keyAt,
    editAt,
    changeAt,
    valueAt,
    isEditingAt,
    open,
    stage,
    close,
    remove,
  };
}

export type RowEdits = ReturnType<typeof useRowEdits>;

/** Give the keyboard back to the grid after a cell was edited. */
export function focusGrid(): void {
  window.setTimeout(() => document.querySelector<HTMLElement>(".data-rows .grid")?.focus());
}
