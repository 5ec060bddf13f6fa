/** A button that is on or off. */
interface ToggleProps {
  label: string;
  isOn: boolean;
  isDisabled?: boolean;
  onChange: (isOn: boolean) => void;
}

export function Toggle({ label, isOn, isDisabled = false, onChange }: ToggleProps) {
  return (
    <button type="button" class="small" aria-pressed={isOn} disabled={isDisabled} onClick={() => onChange(!isOn)}>
      {label}
    </button>
  );
}
