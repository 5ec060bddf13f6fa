/** Filters of a table's rows. */
import { useEffect, useState } from "preact/hooks";
import type { Table } from "../sql/schema";
import { type FilterRule, type Operator, OPERATORS } from "./pages";

interface FiltersProps {
  table: Table;
  filters: FilterRule[];
  onChange: (filters: FilterRule[]) => void;
}

export function Filters({ table, filters, onChange }: FiltersProps) {
  const [drafts, setDrafts] = useState(filters);
  useEffect(() => setDrafts(filters), [filters]);
  const change = (at: number, changed: Partial<FilterRule>) =>
    setDrafts(drafts.with(at, { ...drafts[at]!, ...changed }));
  const isNew = JSON.stringify(drafts) !== JSON.stringify(filters);
  const submit = (event: Event) => {
    event.preventDefault();
    onChange(drafts);
  };
  return (
    <form class="filters" onSubmit={submit}>
      {drafts.map((rule, at) => (
        <span class="filter-rule" key={at}>
          <select
            aria-label="Column"
            value={rule.column}
            onChange={(event) => change(at, { column: event.currentTarget.value })}
          >
            {table.columns.map((column) => (
              <option key={column.name}>{column.name}</option>
            ))}
          </select>
          <select
            aria-label="Comparison"
            value={rule.operator}
            onChange={(event) => change(at, { operator: event.currentTarget.value as Operator })}
          >
            {OPERATORS.map((one) => (
              <option key={one}>{one}</option>
            ))}
          </select>
          {!rule.operator.startsWith("is ") && (
            <input
              aria-label="Value"
              class="mono"
              value={rule.value}
              spellcheck={false}
              onInput={(event) => change(at, { value: event.currentTarget.value })}
              autofocus={isNew && at === drafts.length - 1}
            />
          )}
          <button
            type="button"
            class="quiet icon small"
            aria-label="Remove this filter"
            onClick={() => onChange(drafts.toSpliced(at, 1))}
          >
            ×
          </button>
        </span>
      ))}
      <button
        type="button"
        class="small quiet"
        onClick={() => setDrafts([...drafts, { column: table.columns[0]?.name ?? "", operator: "=", value: "" }])}
      >
        + Filter
      </button>
      {isNew && (
        <button type="submit" class="small primary">
          Apply filters
        </button>
      )}
    </form>
  );
}
