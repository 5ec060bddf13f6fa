/** A dialog with a form: what it does may fail, and then it stays open and says why. */
import type { ComponentChildren } from "preact";
import { Dialog, useWork } from "./dialog";
import { FailureBox } from "./states";

interface FormDialogProps {
  title: string;
  /** What the button says that does it. */
  action: string;
  isReady: boolean;
  onSubmit: () => Promise<void> | void;
  onClose: () => void;
  /** What Cancel does, where that is more than to close. */
  onCancel?: () => void;
  isDangerous?: boolean;
  wide?: boolean;
  children: ComponentChildren;
}

export function FormDialog(props: FormDialogProps) {
  const { title, action, isReady, onSubmit, onClose, onCancel, isDangerous, wide, children } = props;
  const { failure, isBusy, run } = useWork();
  const submit = (event: Event) => {
    event.preventDefault();
    if (isReady) void run(async () => onSubmit());
  };
  return (
    <Dialog title={title} onClose={onClose} wide={wide ?? false}>
      <form class="form" onSubmit={submit}>
        {children}
        {failure && <FailureBox failure={failure} />}
        <footer class="form-foot">
          <button type="button" onClick={onCancel ?? onClose}>
            Cancel
          </button>
          <button type="submit" class={isDangerous ? "danger" : "primary"} disabled={!isReady || isBusy}>
            {isBusy ? "Working…" : action}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}

interface NameFieldProps {
  value: string;
  onChange: (value: string) => void;
  placeholder?: string;
  /** What a name may be, as the browser checks it, and in words. */
  pattern?: [string, string];
}

export function NameField({ value, onChange, placeholder, pattern }: NameFieldProps) {
  return (
    <label class="field">
      <span>Name</span>
      <input
        class="mono"
        value={value}
        maxLength={200}
        onInput={(event) => onChange(event.currentTarget.value)}
        autofocus
        autocomplete="off"
        spellcheck={false}
        placeholder={placeholder}
        pattern={pattern?.[0]}
        title={pattern?.[1]}
      />
    </label>
  );
}

interface ChoiceProps {
  label: string;
  value: string;
  /** Values, each with what is shown for it. */
  options: readonly (readonly [string, string])[];
  onChange: (value: string) => void;
}

export function Choice({ label, value, options, onChange }: ChoiceProps) {
  return (
    <label class="field">
      <span>{label}</span>
      <select value={value} onChange={(event) => onChange(event.currentTarget.value)}>
        {options.map(([one, title]) => (
          <option key={one} value={one}>
            {title}
          </option>
        ))}
      </select>
    </label>
  );
}
