/** Short messages at the edge of the page. They are read out, and go by themselves. */
import { Store, useStore } from "./store";

interface Toast {
  id: number;
  text: string;
  kind: "done" | "failed";
}

const SHOWN_MS = 5_000;
const toasts = new Store<Toast[]>([]);
let nextId = 1;

export function tell(text: string, kind: Toast["kind"] = "done"): void {
  const id = nextId++;
  toasts.update((all) => [...all.slice(-3), { id, text, kind }]);
  window.setTimeout(() => toasts.update((all) => all.filter((one) => one.id !== id)), SHOWN_MS);
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {useStore(toasts).map((one) => (
        <div key={one.id} class={`toast ${one.kind}`}>
          {one.text}
        </div>
      ))}
    </div>
  );
}

/** Put a text onto the clipboard and say so. */
export async function copyText(text: string, what = "Copied"): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    tell(`${what}.`);
  } catch {
    tell("The browser does not let this page write to the clipboard.", "failed");
  }
}
