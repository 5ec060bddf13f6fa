/** A table of a few things, with a head. On a narrow screen each row of a wide one is a card. */
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

/** Tables with more columns are wider than a narrow screen. */
const NARROW_COLUMNS = 2;

interface ListTableProps {
  /** An empty title is one that need not be seen. */
  head: string[];
  /** The empty title, for those who do not see the rows. */
  unnamed?: string;
  /** Heads of numbers, by their place. */
  right?: number[];
  children: ComponentChildren;
}

export function ListTable({ head, unnamed = "Actions", right = [], children }: ListTableProps) {
  const body = useRef<HTMLTableSectionElement>(null);
  // In a card each value bears the title of its column.
  useLayoutEffect(() => {
    for (const row of body.current!.rows)
      for (const cell of row.cells) cell.dataset["title"] = head[cell.cellIndex] ?? "";
  });
  return (
    <div class="table-wrap">
      <table class={head.length > NARROW_COLUMNS ? "list as-cards" : "list"}>
        <thead>
          <tr>
            {head.map((title, at) => (
              <th key={title} class={right.includes(at) ? "right" : ""}>
                {title || <span class="hidden">{unnamed}</span>}
              </th>
            ))}
          </tr>
        </thead>
        <tbody ref={body}>{children}</tbody>
      </table>
    </div>
  );
}
