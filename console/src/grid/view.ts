/** Sorting and filtering of rows that are in the page, in portions, with progress. */
import { useEffect, useState } from "preact/hooks";
import type { Value } from "../api/types";
import type { Sorting } from "./grid";
import { eachInPortions, type Rows } from "./rows";
import { compareValues, isNumeric, valueText } from "./values";

export interface View {
  /** The rows shown, by their number; null shows all as they came. */
  order: Uint32Array | null;
  /** How far the work is, from 0 to 1; null when it is done. */
  progress: number | null;
}

const ALL: View = { order: null, progress: null };

/** Return which rows are shown. `isComplete` rows only: others are shown as they come. */
export function useView(rows: Rows | null, isComplete: boolean, sorting: Sorting | null, filter: string): View {
  const [view, setView] = useState<View>(ALL);
  useEffect(() => {
    let isWanted = true;
    if (!rows || !isComplete || (!sorting && !filter)) setView(ALL);
    else {
      setView((before) => ({ ...before, progress: 0 }));
      arrange(
        rows,
        sorting,
        filter,
        (progress) => setView((before) => ({ ...before, progress })),
        () => isWanted,
      ).then((order) => {
        if (order && isWanted) setView({ order, progress: null });
      });
    }
    return () => {
      isWanted = false;
    };
  }, [rows, isComplete, sorting, filter]);
  return view;
}

async function arrange(
  rows: Rows,
  sorting: Sorting | null,
  filter: string,
  step: (part: number) => void,
  isWanted: () => boolean,
): Promise<Uint32Array | null> {
  const wanted = filter.toLowerCase();
  const kept: number[] = [];
  const keys: Value[] = [];
  const look = (row: number) => {
    const text = wanted || sorting ? rows.text(row) : "";
    // The quick look at the JSON text leaves few rows to be looked at exactly.
    if (wanted && !mayContain(text, wanted)) return;
    const values = wanted || sorting ? rows.parse(text) : [];
    if (wanted && !values.some((value) => value !== null && valueText(value).toLowerCase().includes(wanted))) return;
    kept.push(row);
    if (sorting) keys.push(values[sorting.column] ?? null);
  };
  if (!(await eachInPortions(rows.count, look, (done) => step(done / rows.count), isWanted))) return null;
  const order = Uint32Array.from(kept);
  if (!sorting) return order;
  const isNumber = isNumeric(rows.types[sorting.column]);
  const places = Array.from(kept.keys()).sort((a, b) => {
    const compared = compareValues(keys[a]!, keys[b]!, isNumber);
    return (sorting.descending ? -compared : compared) || a - b;
  });
  return Uint32Array.from(places, (place) => kept[place]!);
}

function mayContain(json: string, wanted: string): boolean {
  return /[^ -~]|["\\/]/.test(wanted) || json.toLowerCase().includes(wanted) || json.includes("\\u");
}
