/** Values for `$1`, `$2`, … */
import { asJson } from "../api/json";
import type { Value } from "../api/types";

export interface Parameter {
  text: string;
  isNull: boolean;
}

const UNSET: Parameter = { text: "", isNull: false };

/** Return the value that is sent: text, for the engine to read; JSON where it looks like an object or a list. */
export function readParameter(parameter: Parameter | undefined): Value {
  const { text, isNull } = parameter ?? UNSET;
  if (isNull) return null;
  return /^\s*[[{]/.test(text) ? asJson(text) : text;
}

interface ParametersProps {
  count: number;
  parameters: Parameter[];
  onChange: (parameters: Parameter[]) => void;
}

export function Parameters({ count, parameters, onChange }: ParametersProps) {
  const change = (at: number, changed: Partial<Parameter>) => {
    const all = Array.from({ length: Math.max(count, parameters.length) }, (_, index) => parameters[index] ?? UNSET);
    onChange(all.with(at, { ...all[at]!, ...changed }));
  };
  return (
    <fieldset class="parameters">
      <legend class="hidden">Parameters</legend>
      {Array.from({ length: count }, (_, at) => {
        const one = parameters[at] ?? UNSET;
        return (
          <span class="parameter" key={at}>
            <label>
              <span class="mono">${at + 1}</span>
              <input
                class="mono"
                value={one.isNull ? "" : one.text}
                placeholder={one.isNull ? "NULL" : ""}
                disabled={one.isNull}
                spellcheck={false}
                onInput={(event) => change(at, { text: event.currentTarget.value })}
              />
            </label>
            <label class="faint">
              <input
                type="checkbox"
                checked={one.isNull}
                aria-label={`$${at + 1} is NULL`}
                onChange={(event) => change(at, { isNull: event.currentTarget.checked })}
              />{" "}
              NULL
            </label>
          </span>
        );
      })}
    </fieldset>
  );
}
