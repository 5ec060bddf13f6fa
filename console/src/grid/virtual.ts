/** Which rows and columns are seen: columns by TanStack Virtual, rows by their fixed height.
 *
 * TanStack keeps an object for each item, which for a million rows is more than the rows themselves take; and rows need
 * what it does not have: more of them than a browser can scroll over.
 */
import {
  elementScroll,
  observeElementOffset,
  observeElementRect,
  type VirtualItem,
  Virtualizer,
} from "@tanstack/virtual-core";
import { useEffect, useLayoutEffect, useState } from "preact/hooks";

/** Browsers do not lay out what is higher than about 17 million pixels; above this the scroll position is stretched. */
const HEIGHT_MAX = 12_000_000;
const OVERSCAN_ROWS = 8;
const OVERSCAN_COLUMNS = 2;

type Find = () => HTMLElement | null;

export interface ShownColumns {
  items: VirtualItem[];
  size: number;
  scrollTo: (index: number) => void;
}

/** Return the columns that are seen. `start` is the width of what stays at the left; `widths` are those of all columns. */
export function useColumns(element: Find, widths: number[], start: number): ShownColumns {
  const [, renderAgain] = useState({});
  const makeOptions = () => ({
    count: widths.length,
    horizontal: true,
    overscan: OVERSCAN_COLUMNS,
    paddingStart: start,
    scrollPaddingStart: start,
    getScrollElement: element,
    estimateSize: (index: number) => widths[index] ?? 100,
    observeElementRect,
    observeElementOffset,
    scrollToFn: elementScroll,
    onChange: () => renderAgain({}),
    initialRect: { width: 800, height: 400 },
  });
  const [virtual] = useState(() => new Virtualizer<HTMLElement, HTMLElement>(makeOptions()));
  virtual.setOptions(makeOptions());
  useEffect(() => virtual._didMount(), [virtual]);
  useLayoutEffect(() => virtual._willUpdate());
  useLayoutEffect(() => virtual.measure(), [virtual, widths]);
  return {
    items: virtual.getVirtualItems(),
    size: virtual.getTotalSize(),
    scrollTo: (index) => virtual.scrollToIndex(index, { align: "auto" }),
  };
}

export interface ShownRows {
  first: number;
  end: number;
  /** Height of all rows, as far as it can be scrolled over. */
  size: number;
  /** Where a row is drawn. */
  place: (row: number) => number;
  scrollTo: (row: number) => void;
}

/** Return the rows that are seen. `start` is the height of what stays at the top. */
export function useRows(element: Find, count: number, height: number, start: number): ShownRows {
  const [seen, setSeen] = useState({ top: 0, view: 600 });
  useEffect(() => {
    const target = element();
    if (!target) return undefined;
    const look = () => setSeen({ top: target.scrollTop, view: target.clientHeight });
    look();
    const observer = new ResizeObserver(look);
    observer.observe(target);
    target.addEventListener("scroll", look, { passive: true });
    return () => {
      observer.disconnect();
      target.removeEventListener("scroll", look);
    };
  }, []);
  const whole = start + count * height;
  const size = Math.min(whole, HEIGHT_MAX);
  const stretch = whole > size ? (whole - seen.view) / (size - seen.view) : 1;
  const offset = seen.top * stretch;
  const scrollTo = (row: number) => {
    const top = row * height;
    const bottom = start + top + height;
    const isSeen = top >= offset && bottom <= offset + seen.view;
    if (!isSeen) element()?.scrollTo({ top: (top < offset ? top : bottom - seen.view) / stretch });
  };
  return {
    first: Math.max(0, Math.floor((offset - start) / height) - OVERSCAN_ROWS),
    end: Math.min(count, Math.ceil((offset + seen.view - start) / height) + OVERSCAN_ROWS),
    size,
    place: (row) => start + row * height - offset + seen.top,
    scrollTo,
  };
}
