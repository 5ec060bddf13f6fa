/** A new row, as a form. */
import { FormDialog } from "../parts/form";
import type { Table } from "../sql/schema";
import type { Named } from "./edits";

interface InsertDialogProps {
  table: Table;
  values: Named;
  onChange: (values: Named) => void;
  onStage: () => void;
  onClose: () => void;
}

export function InsertDialog({ table, values, onChange, onStage, onClose }: InsertDialogProps) {
  const change = (name: string, value: string | null | undefined) => {
    const changed = { ...values };
    if (value === undefined) delete changed[name];
    else changed[name] = value;
    onChange(changed);
  };
  const submit = () => {
    onStage();
    onClose();
  };
  return (
    <FormDialog
      title={`New row of ${table.name}`}
      action="Stage the row"
      isReady
      wide
      onSubmit={submit}
      onClose={onClose}
    >
      <p class="faint">What is left empty gets its default.</p>
      <div class="insert-fields">
        {table.columns.map((column, at) => (
          <label class="field" key={column.name}>
            <span>
              {column.name}{" "}
              <span class="faint">
                {column.type}
                {column.nullable || column.default ? "" : ", required"}
              </span>
            </span>
            <span class="insert-value">
              <input
                class="mono"
                value={values[column.name] ?? ""}
                autofocus={at === 0}
                spellcheck={false}
                placeholder={values[column.name] === null ? "NULL" : (column.default ?? "")}
                onInput={(event) =>
                  change(column.name, event.currentTarget.value === "" ? undefined : event.currentTarget.value)
                }
              />
              <button
                type="button"
                class="small"
                onClick={() => change(column.name, "")}
                aria-label={`${column.name} is an empty text`}
              >
                ''
              </button>
              {column.nullable && (
                <button
                  type="button"
                  class="small"
                  onClick={() => change(column.name, null)}
                  aria-label={`${column.name} is NULL`}
                >
                  NULL
                </button>
              )}
            </span>
          </label>
        ))}
      </div>
    </FormDialog>
  );
}
