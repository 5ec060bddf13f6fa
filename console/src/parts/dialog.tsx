/** Dialogs: the browser's own element keeps the focus inside and closes on Escape. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { asFailure, type Failure } from "../api/http";
import { Store, useStore } from "./store";
import { FailureBox } from "./states";

interface DialogProps {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
  wide?: boolean;
  /** Without it the dialog cannot be closed by Escape. */
  closable?: boolean;
  label?: string;
}

export function Dialog({ title, onClose, children, wide, closable = true, label }: DialogProps) {
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const before = document.activeElement;
    element.current?.showModal();
    return () => {
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={element}
      class={wide ? "dialog wide" : "dialog"}
      aria-label={label ?? title}
      onCancel={(event) => {
        event.preventDefault();
        if (closable) onClose();
      }}
      onMouseDown={(event) => {
        if (closable && event.target === element.current) onClose();
      }}
    >
      <div class="dialog-body">
        {title && (
          <header class="dialog-head">
            <h2>{title}</h2>
            {closable && (
              <button type="button" class="quiet icon" aria-label="Close" onClick={onClose}>
                ×
              </button>
            )}
          </header>
        )}
        {children}
      </div>
    </dialog>
  );
}

interface Confirmation {
  title: string;
  text: ComponentChildren;
  action: string;
  /** What has to be typed before it can be done. */
  name?: string;
  work: () => Promise<void>;
}

const asked = new Store<Confirmation | null>(null);

/** Ask before something is destroyed; the work is done while the dialog is open and its failure is shown there. */
export function confirm(confirmation: Confirmation): void {
  asked.set(confirmation);
}

export function Confirmations() {
  const confirmation = useStore(asked);
  return (
    confirmation && (
      <ConfirmDialog key={confirmation.title} confirmation={confirmation} onClose={() => asked.set(null)} />
    )
  );
}

function ConfirmDialog({ confirmation, onClose }: { confirmation: Confirmation; onClose: () => void }) {
  const [typed, setTyped] = useState("");
  const { failure, isBusy, run } = useWork();
  const isReady = !confirmation.name || typed === confirmation.name;
  const submit = (event: Event) => {
    event.preventDefault();
    if (isReady)
      void run(async () => {
        await confirmation.work();
        onClose();
      });
  };
  return (
    <Dialog title={confirmation.title} onClose={onClose}>
      <form onSubmit={submit} class="form">
        <div>{confirmation.text}</div>
        {confirmation.name && (
          <label class="field">
            <span>
              Type <b class="mono">{confirmation.name}</b> to confirm
            </span>
            <input
              value={typed}
              onInput={(event) => setTyped(event.currentTarget.value)}
              autocomplete="off"
              spellcheck={false}
              autofocus
            />
          </label>
        )}
        {failure && <FailureBox failure={failure} />}
        <footer class="form-foot">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="danger" disabled={!isReady || isBusy}>
            {isBusy ? "Working…" : confirmation.action}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}

/** Run work that a button starts: one at a time, with its failure to show. */
export function useWork() {
  const [failure, setFailure] = useState<Failure | null>(null);
  const [isBusy, setBusy] = useState(false);
  const run = async (work: () => Promise<void>): Promise<void> => {
    if (isBusy) return;
    setBusy(true);
    setFailure(null);
    try {
      await work();
    } catch (error) {
      setFailure(asFailure(error));
    } finally {
      setBusy(false);
    }
  };
  return { failure, isBusy, run, setFailure };
}
