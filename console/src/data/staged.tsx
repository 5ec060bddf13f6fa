/** The edits that wait: shown as SQL, applied as one transaction. */
import { useState } from "preact/hooks";
import { database } from "../app/database";
import { useWork } from "../parts/dialog";
import { plural } from "../parts/show";
import { FailureBox } from "../parts/states";
import { useStore } from "../parts/store";
import { offerUndo, UndoBar } from "../parts/undo";
import { tell } from "../parts/toast";
import type { Table } from "../sql/schema";
import {
  applyEdits,
  type Conflict,
  ConflictFailure,
  dropEdit,
  type Edit,
  type Edits,
  rebase,
  writeEdit,
} from "./edits";

export function Staged({ table, edits, onApplied }: { table: Table; edits: Edits; onApplied: () => void }) {
  useStore(edits.store);
  const { all } = edits;
  const [conflict, setConflict] = useState<Conflict | null>(null);
  const { failure, isBusy, run, setFailure } = useWork();
  if (all.length === 0) return <UndoBar />;
  const apply = () =>
    run(async () => {
      setConflict(null);
      try {
        await applyEdits(table, all, database.value);
      } catch (error) {
        if (error instanceof ConflictFailure) setConflict(error.conflict);
        throw error;
      }
      edits.set([]);
      tell(`${plural(all.length, "edit")} applied.`);
      onApplied();
    });
  const drop = () => {
    edits.set([]);
    setConflict(null);
    setFailure(null);
    offerUndo(`${plural(all.length, "edit")} dropped.`, () => edits.set(all));
  };
  const settle = (keep: boolean) => {
    if (keep) rebase(edits, table, conflict!);
    else dropEdit(edits, conflict!.id);
    setConflict(null);
    setFailure(null);
    onApplied();
  };
  return (
    <section class="staged" aria-label="Staged edits">
      <div class="toolbar">
        <b>{plural(all.length, "staged edit")}</b>
        <span class="faint">applied together, or not at all</span>
        <span class="spring" />
        <button type="button" class="small" onClick={drop}>
          Drop all
        </button>
        <button type="button" class="small primary" disabled={isBusy} onClick={() => void apply()}>
          {isBusy ? "Applying…" : "Apply"}
        </button>
      </div>
      {failure && <FailureBox failure={failure} />}
      {conflict && (
        <ConflictBox
          table={table}
          conflict={conflict}
          edit={all.find((one) => one.id === conflict.id)}
          onSettle={settle}
        />
      )}
      <ul class="staged-list">
        {all.map((edit) => (
          <li key={edit.id} class={edit.id === conflict?.id ? "in-conflict" : ""}>
            <code>{writeEdit(table, edit)};</code>
            <button
              type="button"
              class="quiet icon small"
              aria-label="Drop this edit"
              onClick={() => dropEdit(edits, edit.id)}
            >
              ×
            </button>
          </li>
        ))}
      </ul>
    </section>
  );
}

interface ConflictProps {
  table: Table;
  conflict: Conflict;
  edit: Edit | undefined;
  onSettle: (keep: boolean) => void;
}

function ConflictBox({ table, conflict, edit, onSettle }: ConflictProps) {
  const names = edit?.kind === "update" ? Object.keys(edit.changes) : [];
  return (
    <div class="conflict">
      {conflict.current && edit?.kind === "update" && (
        <ul>
          {names.map((name) => (
            <li key={name}>
              <b>{name}</b>: you saw <code>{edit.changes[name]!.old ?? "NULL"}</code>, it is now{" "}
              <code>{conflict.current![table.columns.findIndex((column) => column.name === name)] ?? "NULL"}</code>,
              yours is <code>{edit.changes[name]!.value ?? "NULL"}</code>
            </li>
          ))}
        </ul>
      )}
      <div class="toolbar">
        {conflict.current && (
          <button type="button" class="small" onClick={() => onSettle(true)}>
            Keep my change
          </button>
        )}
        <button type="button" class="small" onClick={() => onSettle(false)}>
          Drop my change
        </button>
      </div>
    </div>
  );
}
