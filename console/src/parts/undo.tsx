/** A way back from what was just closed or removed in the page. */
import { Store, useStore } from "./store";

const SHOWN_MS = 8_000;
const offered = new Store<{ text: string; undo: () => void } | null>(null);

export function offerUndo(text: string, undo: () => void): void {
  const offer = { text, undo };
  offered.set(offer);
  window.setTimeout(() => {
    if (offered.value === offer) offered.set(null);
  }, SHOWN_MS);
}

export function UndoBar() {
  const offer = useStore(offered);
  return (
    <span class="undo" role="status">
      {offer && (
        <>
          {offer.text}{" "}
          <button
            type="button"
            class="small"
            onClick={() => {
              offer.undo();
              offered.set(null);
            }}
          >
            Undo
          </button>
        </>
      )}
    </span>
  );
}
