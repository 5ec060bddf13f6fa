/** Questions before something is destroyed. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { FormDialog } from "./form";
import { Store, useStore } from "./store";

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
  const { title, text, action, name, work } = confirmation;
  const [typed, setTyped] = useState("");
  const submit = async () => {
    await work();
    onClose();
  };
  return (
    <FormDialog
      title={title}
      action={action}
      isReady={!name || typed === name}
      isDangerous
      onSubmit={submit}
      onClose={onClose}
    >
      <div>{text}</div>
      {name && (
        <label class="field">
          <span>
            Type <b class="mono">{name}</b> to confirm
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
    </FormDialog>
  );
}
