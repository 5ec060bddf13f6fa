/** The tabs of the editor. */
import { useStore } from "../parts/store";
import { addDraft, chosenDraft, closeDraft, drafts } from "./drafts";
import { UndoBar, offerUndo } from "../parts/undo";

export function DraftTabs() {
  const all = useStore(drafts);
  const chosen = useStore(chosenDraft);
  const current = all.find((one) => one.id === chosen);
  const close = (id: string, name: string, sql: string) => {
    const bringBack = closeDraft(id);
    if (sql.trim()) offerUndo(`${name} was closed.`, bringBack);
  };
  return (
    <div class="tabs draft-tabs">
      <div class="tab-list" role="tablist" aria-label="Queries">
        {all.map((one) => (
          <button
            type="button"
            role="tab"
            class="tab"
            key={one.id}
            aria-selected={one.id === chosen}
            onClick={() => chosenDraft.set(one.id)}
          >
            {one.name}
          </button>
        ))}
      </div>
      <button type="button" class="quiet small" aria-label="New query" onClick={addDraft}>
        +
      </button>
      {all.length > 1 && current && (
        <button
          type="button"
          class="quiet small"
          aria-label={`Close ${current.name}`}
          onClick={() => close(current.id, current.name, current.sql)}
        >
          ×
        </button>
      )}
      <UndoBar />
    </div>
  );
}
