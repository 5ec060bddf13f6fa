/** Edits of the rows that are shown: what is staged for them, and the cell that is being edited. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { asFailure, type Failure } from "../api/http";
import { session } from "../api/session";
import type { Row } from "../api/types";
import { database } from "../app/database";
import type { Place } from "../grid/grid";
import { useStore } from "../parts/store";
import type { Table } from "../sql/schema";
import { editsOf, idOf, readWhole, stageChange, stageDelete } from "./edits";
import { isCut, keyOf } from "./pages";

interface Editing extends Place {
  value: string | null;
  isWhole: boolean;
}

/** What can be done with the rows that are shown, and what is staged for them. */
export function useRowEdits(table: Table, rows: Row[]) {
  const from = useStore(database);
  const store = editsOf(from, table);
  const edits = useStore(store);
  const [editing, setEditing] = useState<Editing | null>(null);
  const [failure, setFailure] = useState<Failure | null>(null);
  const key = keyOf(table);
  const mayEdit = session.allows("write") && key.length > 0 && /table$/.test(table.kind);
  const byId = useMemo(() => new Map(edits.map((edit) => [edit.id, edit])), [edits]);
  const shownAt = (row: number, column: number) => (rows[row]?.[column] ?? null) as string | null;
  const keyAt = (row: number) =>
    key.map(
      (name) =>
        shownAt(
          row,
          table.columns.findIndex((column) => column.name === name),
        ) ?? "",
    );
  const editAt = (row: number) => (key.length ? byId.get(idOf(keyAt(row))) : undefined);
  const changeAt = (row: number, column: number) => {
    const edit = editAt(row);
    return edit?.kind === "update" ? edit.changes[table.columns[column]!.name] : undefined;
  };
  const valueAt = (row: number, column: number) => {
    const change = changeAt(row, column);
    return change ? change.value : shownAt(row, column);
  };
  useEffect(() => setEditing(null), [rows]);
  const open = async (place: Place) => {
    setFailure(null);
    const shown = valueAt(place.row, place.column);
    if (!isCut(shown)) {
      setEditing({ ...place, value: shown, isWhole: false });
      return;
    }
    try {
      const whole = await readWhole(table, keyAt(place.row), table.columns[place.column]!.name, from);
      setEditing({ ...place, value: whole as string | null, isWhole: true });
    } catch (error) {
      setFailure(asFailure(error));
    }
  };
  const finish = (value: string | null) => {
    const { row, column, isWhole, value: before } = editing!;
    setEditing(null);
    stageChange(store, keyAt(row), table.columns[column]!.name, {
      old: isWhole ? before : shownAt(row, column),
      isWhole,
      value,
    });
    focusGrid();
  };
  const remove = (row: number) =>
    stageDelete(
      store,
      keyAt(row),
      table.columns.map((_, column) => shownAt(row, column)),
    );
  const leave = () => {
    setEditing(null);
    focusGrid();
  };
  return { store, editing, failure, mayEdit, keyAt, editAt, changeAt, valueAt, open, finish, remove, leave };
}

export type RowEdits = ReturnType<typeof useRowEdits>;

/** Give the keyboard back to the grid after a cell was edited. */
function focusGrid(): void {
  window.setTimeout(() => document.querySelector<HTMLElement>(".data-rows .grid")?.focus());
}
