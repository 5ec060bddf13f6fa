/** Tabs, one of which is chosen. Arrows, Home and End move among them; Tab goes on to what they show. */
import type { ComponentChildren } from "preact";

export interface Tab<T extends string | number> {
  id: T;
  title: ComponentChildren;
  /** Shown on hover. */
  hint?: string;
  state?: string;
}

interface TabListProps<T extends string | number> {
  label: string;
  tabs: Tab<T>[];
  chosen: T;
  onChoose: (id: T) => void;
  isSmall?: boolean;
}

/** Return the place that a key leads to, or null for any other key. */
function moveBy(key: string, at: number, count: number): number | null {
  if (key === "ArrowRight") return (at + 1) % count;
  if (key === "ArrowLeft") return (at + count - 1) % count;
  if (key === "Home") return 0;
  return key === "End" ? count - 1 : null;
}

export function TabList<T extends string | number>({ label, tabs, chosen, onChoose, isSmall }: TabListProps<T>) {
  const onKeyDown = (event: KeyboardEvent & { currentTarget: HTMLElement }) => {
    const at = tabs.findIndex((tab) => tab.id === chosen);
    const to = moveBy(event.key, at, tabs.length);
    if (to === null || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    onChoose(tabs[to]!.id);
    event.currentTarget.querySelectorAll<HTMLElement>("[role=tab]")[to]?.focus();
  };
  return (
    <div class={isSmall ? "tab-list small-tabs" : "tab-list"} role="tablist" aria-label={label} onKeyDown={onKeyDown}>
      {tabs.map(({ id, title, hint, state }) => (
        <button
          type="button"
          role="tab"
          class={isSmall ? "small" : "tab"}
          key={id}
          data-tab={id}
          data-state={state}
          aria-selected={id === chosen}
          tabIndex={id === chosen ? 0 : -1}
          title={hint}
          onClick={() => onChoose(id)}
        >
          {title}
        </button>
      ))}
    </div>
  );
}
