/** The tabs of the editor. */
import { useStore } from "../parts/store";
import { TabList } from "../parts/tabs";
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
      <TabList
        label="Queries"
        tabs={all.map(({ id, name }) => ({ id, title: name }))}
        chosen={chosen}
        onChoose={(id) => chosenDraft.set(id)}
      />
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
