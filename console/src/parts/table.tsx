/** A table of a few things, with a head. An empty title is for the column of actions. */
import type { ComponentChildren } from "preact";

interface ListTableProps {
  head: string[];
  /** Heads of numbers, by their place. */
  right?: number[];
  children: ComponentChildren;
}

export function ListTable({ head, right = [], children }: ListTableProps) {
  return (
    <div class="table-wrap">
      <table class="list">
        <thead>
          <tr>
            {head.map((title, at) => (
              <th key={title} class={right.includes(at) ? "right" : ""}>
                {title || <span class="hidden">Actions</span>}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}
