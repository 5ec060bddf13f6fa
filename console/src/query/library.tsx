/** Saved queries and the history of those that ran, both of this browser. */
import { useState } from "preact/hooks";
import { Dialog } from "../parts/dialog";
import { FormDialog, NameField } from "../parts/form";
import { plural, Time } from "../parts/show";
import { Empty } from "../parts/states";
import { useStore } from "../parts/store";
import { tell } from "../parts/toast";
import { type Draft, changeDraft, ran, saved, saveQuery } from "./drafts";

export type LibraryKind = "saved" | "history";

interface LibraryProps {
  kind: LibraryKind;
  onClose: () => void;
  onOpen: (sql: string, name?: string) => void;
}

export function Library({ kind, onClose, onOpen }: LibraryProps) {
  const [typed, setTyped] = useState("");
  const wanted = typed.toLowerCase();
  const fits = (...texts: string[]) => texts.some((text) => text.toLowerCase().includes(wanted));
  const kept = useStore(saved).filter((one) => fits(one.name, one.sql));
  const past = useStore(ran).filter((one) => fits(one.sql));
  const isEmpty = (kind === "saved" ? kept : past).length === 0;
  return (
    <Dialog title={kind === "saved" ? "Saved queries" : "History"} onClose={onClose} wide>
      <input
        type="search"
        placeholder="Search"
        aria-label="Search"
        value={typed}
        onInput={(event) => setTyped(event.currentTarget.value)}
        autofocus
      />
      {isEmpty && (
        <Empty title="Nothing here">
          <p>
            {kind === "saved"
              ? "Ctrl S saves the query in the editor."
              : "What you run is listed here, in this browser alone."}
          </p>
        </Empty>
      )}
      <ul class="library">
        {kind === "saved"
          ? kept.map((one) => (
              <li key={one.id}>
                <button type="button" class="library-open" onClick={() => onOpen(one.sql, one.name)}>
                  <b>{one.name}</b>
                  <code>{one.sql.slice(0, 200)}</code>
                </button>
                <button
                  type="button"
                  class="small quiet"
                  onClick={() => saved.update((all) => all.filter((other) => other.id !== one.id))}
                  aria-label={`Remove ${one.name}`}
                >
                  Remove
                </button>
              </li>
            ))
          : past.map((one) => (
              <li key={one.at + one.sql}>
                <button type="button" class="library-open" onClick={() => onOpen(one.sql)}>
                  <code>{one.sql.slice(0, 300)}</code>
                  <span class={one.problem ? "bad" : "faint"}>
                    <Time at={one.at} relative /> · {one.database ?? "default"} · {one.ms} ms ·{" "}
                    {one.problem ?? plural(one.rows, "row")}
                  </span>
                </button>
              </li>
            ))}
      </ul>
      {kind === "history" && past.length > 0 && (
        <button type="button" class="small" onClick={() => ran.set([])}>
          Clear the history
        </button>
      )}
    </Dialog>
  );
}

export function SaveDialog({ draft, onClose }: { draft: Draft; onClose: () => void }) {
  const [name, setName] = useState(/^Query \d+$/.test(draft.name) ? "" : draft.name);
  const given = name.trim();
  const save = () => {
    saveQuery(given, draft.sql);
    changeDraft(draft.id, draft.sql, given);
    tell(`Saved as ${given}.`);
    onClose();
  };
  return (
    <FormDialog title="Save the query" action="Save" isReady={given !== ""} onSubmit={save} onClose={onClose}>
      <NameField value={name} onChange={setName} />
      <p class="faint">It is kept in this browser. One of the same name is replaced.</p>
    </FormDialog>
  );
}
