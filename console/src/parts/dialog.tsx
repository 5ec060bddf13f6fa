/** Dialogs: the browser's own element keeps the focus inside and closes on Escape. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { asFailure, type Failure } from "../api/http";

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
