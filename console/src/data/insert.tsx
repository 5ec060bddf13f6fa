/** A new row, as a form. */
import { useState } from "preact/hooks";
import { Dialog } from "../parts/dialog";
import type { Store } from "../parts/store";
import type { Table } from "../sql/schema";
import { type Edit, stageInsert } from "./edits";

export function InsertDialog({ table, edits, onClose }: { table: Table; edits: Store<Edit[]>; onClose: () => void }) {
  const [values, setValues] = useState<Record<string, string | null>>({});
  const change = (name: string, value: string | null | undefined) => {
    const changed = { ...values };
    if (value === undefined) delete changed[name];
    else changed[name] = value;
    setValues(changed);
  };
  const submit = (event: Event) => {
    event.preventDefault();
    stageInsert(edits, values);
    onClose();
  };
  return (
    <Dialog title={`New row of ${table.name}`} onClose={onClose} wide>
      <form class="form" onSubmit={submit}>
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
        <footer class="form-foot">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary">
            Stage the row
          </button>
        </footer>
      </form>
    </Dialog>
  );
}
