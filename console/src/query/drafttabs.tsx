/** The tabs of the editor. */
import { useStore } from "../parts/store";
import { addDraft, chosenDraft, closeDraft, drafts } from "./drafts";
import { UndoBar, offerUndo } from "../parts/undo";

export function DraftTabs() {
  const all = useStore(drafts);
  const chosen = useStore(chosenDraft);
  const close = (id: string, name: string, sql: string) => {
    const bringBack = closeDraft(id);
    if (sql.trim()) offerUndo(`${name} was closed.`, bringBack);
  };
  return (
    <div class="tabs draft-tabs">
      <div class="tab-list" role="tablist" aria-label="Queries">
        {all.map((one) => (
          <span class="tab" data-chosen={one.id === chosen} key={one.id} role="presentation">
            <button type="button" role="tab" aria-selected={one.id === chosen} onClick={() => chosenDraft.set(one.id)}>
              {one.name}
            </button>
            {all.length > 1 && (
              <button type="button" class="tab-tool" aria-label={`Close ${one.name}`} onClick={() => close(one.id, one.name, one.sql)}>
                ×
              </button>
            )}
          </span>
        ))}
      </div>
      <button type="button" class="quiet small" aria-label="New query" onClick={addDraft}>
        +
      </button>
      <UndoBar />
    </div>
  );
}
