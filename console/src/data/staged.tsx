/** The edits that wait: shown as SQL, applied as one transaction. */
import { useEffect, useState } from "preact/hooks";
import { makeFailure } from "../api/http";
import type { Outcome } from "../api/query";
import { database } from "../app/database";
import { useWork } from "../parts/dialog";
import { plural } from "../parts/show";
import { FailureBox } from "../parts/states";
import { useStore } from "../parts/store";
import { offerUndo, UndoBar } from "../parts/undo";
import { tell } from "../parts/toast";
import type { Table } from "../sql/schema";
import {
  applyStaged,
  type Conflict,
  ConflictFailure,
  dropEdit,
  type Edit,
  type Edits,
  rebase,
  settleSent,
  writeEdit,
} from "./edits";
import { CUT_LENGTH } from "./pages";

/** Longer values are cut where they are compared. */
const SHOWN_LENGTH = 200;

export function Staged({ table, edits, onApplied }: { table: Table; edits: Edits; onApplied: () => void }) {
  useStore(edits.store);
  const { all } = edits;
  const sent = useStore(edits.sent);
  const isBusy = useStore(edits.isBusy);
  const [conflict, setConflict] = useState<Conflict | null>(null);
  const { failure, run, setFailure } = useWork();
  const doubt = useDoubt(edits, onApplied);
  if (all.length === 0) return <UndoBar />;
  const apply = () =>
    run(async () => {
      setConflict(null);
      try {
        tell(`${plural(await applyStaged(table, edits, database.value), "edit")} applied.`);
      } catch (error) {
        if (error instanceof ConflictFailure) setConflict(error.conflict);
        throw error;
      }
      onApplied();
    });
  const drop = () => {
    edits.set([]);
    edits.sent.set(null);
    setConflict(null);
    setFailure(null);
    offerUndo(`${plural(all.length, "edit")} dropped.`, () => {
      edits.sent.set(sent);
      edits.set(all);
    });
  };
  const settle = (keep: boolean) => {
    if (keep) rebase(edits, conflict!);
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
        <button type="button" class="small" disabled={isBusy} onClick={drop}>
          Drop all
        </button>
        <button type="button" class="small primary" disabled={isBusy || !!sent} onClick={() => void apply()}>
          {isBusy ? "Applying…" : "Apply"}
        </button>
      </div>
      {sent ? !isBusy && <DoubtBox {...doubt} /> : failure && <FailureBox failure={failure} />}
      {conflict && (
        <ConflictBox conflict={conflict} edit={all.find((one) => one.id === conflict.id)} onSettle={settle} />
      )}
      <ul class="staged-list">
        {all.map((edit) => (
          <li key={edit.id} class={edit.id === conflict?.id ? "in-conflict" : ""}>
            <code>{writeEdit(table, edit)};</code>
            <button
              type="button"
              class="quiet icon small"
              aria-label="Drop this edit"
              disabled={isBusy || !!sent}
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

/** Ask what became of edits that were sent: when they are shown again, and when somebody wants to know. */
function useDoubt(edits: Edits, onApplied: () => void): DoubtProps {
  const [outcome, setOutcome] = useState<Outcome>("unknown");
  const ask = async () => {
    const count = edits.sent.value!.edits.length;
    const found = await settleSent(edits, database.value);
    setOutcome(found);
    if (found !== "committed") return;
    tell(`${plural(count, "edit")} applied.`);
    onApplied();
  };
  useEffect(() => {
    if (edits.sent.value && !edits.isBusy.value) void ask();
  }, [edits]);
  return { outcome, onAsk: () => void ask(), onOffer: () => edits.sent.set(null) };
}

interface DoubtProps {
  outcome: Outcome;
  onAsk: () => void;
  /** Called where the reader says that the edits are not applied. */
  onOffer: () => void;
}

function DoubtBox({ outcome, onAsk, onOffer }: DoubtProps) {
  const isForgotten = outcome === "forgotten";
  const failure = makeFailure(
    "outcome_unknown",
    "These edits were sent and no answer came: whether they are applied is not known.",
    isForgotten
      ? "The service does not tell it to this key. Look at the rows: drop the edits if they are there."
      : "They cannot be applied again before that is known.",
  );
  return (
    <div class="conflict">
      <FailureBox failure={failure} />
      <div class="toolbar">
        <button type="button" class="small" onClick={onAsk}>
          Ask again
        </button>
        {isForgotten && (
          <button type="button" class="small" onClick={onOffer}>
            They are not applied
          </button>
        )}
      </div>
    </div>
  );
}

interface ConflictProps {
  conflict: Conflict;
  edit: Edit | undefined;
  onSettle: (keep: boolean) => void;
}

interface Compared {
  name: string;
  old: string | null;
  now: string | null;
  /** Whether only the part has changed that is cut off. */
  isHidden: boolean;
  own?: string | null;
}

/** Return the values that an edit is about: those it changes, or those of a row to delete that are not as they were. */
function compare(edit: Edit | undefined, { current, digests }: Conflict): Compared[] {
  const compareOne = (name: string, old: string | null, digest: string | null): Compared => {
    const now = current?.[name] ?? null;
    const isAlike = old?.slice(0, CUT_LENGTH) === now?.slice(0, CUT_LENGTH);
    return { name, old, now, isHidden: isAlike && digest !== (digests[name] ?? null) };
  };
  if (edit?.kind === "update")
    return Object.entries(edit.changes).map(([name, { old, digest, value }]) => ({
      ...compareOne(name, old, digest),
      own: value,
    }));
  if (edit?.kind !== "delete") return [];
  return Object.entries(edit.row)
    .map(([name, old]) => compareOne(name, old, edit.digests[name] ?? null))
    .filter(({ old, now, isHidden }) => old !== now || isHidden);
}

function Part({ of: value }: { of: string | null }) {
  if (value === null) return <code>NULL</code>;
  return <code>{value.length > SHOWN_LENGTH ? `${value.slice(0, SHOWN_LENGTH)}…` : value}</code>;
}

function ConflictBox({ conflict, edit, onSettle }: ConflictProps) {
  const { current } = conflict;
  return (
    <div class="conflict">
      {current && (
        <ul>
          {compare(edit, conflict).map(({ name, old, now, isHidden, own }) => (
            <li key={name}>
              <b>{name}</b>:{" "}
              {isHidden ? (
                "it has changed behind the part that is shown"
              ) : (
                <>
                  you saw <Part of={old} />, it is now <Part of={now} />
                </>
              )}
              {own !== undefined && (
                <>
                  , yours is <Part of={own} />
                </>
              )}
            </li>
          ))}
        </ul>
      )}
      <div class="toolbar">
        {current && (
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
