/** TanStack Virtual for Preact, and for more rows than a browser can scroll over. */
import {
  elementScroll,
  observeElementOffset,
  observeElementRect,
  type VirtualItem,
  Virtualizer,
} from "@tanstack/virtual-core";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

/** Browsers do not lay out what is higher than about 17 million pixels; above this the scroll position is stretched. */
const HEIGHT_MAX = 12_000_000;

type Virtual = Virtualizer<HTMLElement, HTMLElement>;

export interface Virtualized {
  items: VirtualItem[];
  size: number;
  scrollTo: (index: number) => void;
  /** Where an item of the whole list is drawn. */
  place: (start: number) => number;
}

interface Options {
  count: number;
  element: () => HTMLElement | null;
  sizeOf: (index: number) => number;
  horizontal?: boolean;
  overscan?: number;
  /** Changes when sizes do. */
  version?: unknown;
  paddingStart?: number;
}

/** Return which items are to be drawn now. */
export function useVirtual({
  count,
  element,
  sizeOf,
  horizontal = false,
  overscan = 6,
  version,
  paddingStart = 0,
}: Options): Virtualized {
  const [, renderAgain] = useState({});
  const total = useRef(0);
  const [virtual] = useState(() => new Virtualizer<HTMLElement, HTMLElement>(makeOptions()));

  function ratio(): number {
    const view = element()?.clientHeight ?? 0;
    return !horizontal && total.current > HEIGHT_MAX ? (total.current - view) / (HEIGHT_MAX - view) : 1;
  }

  function makeOptions() {
    return {
      // What is scrolled to must not lie under the head or the row numbers, which stay in their place.
      count,
      horizontal,
      overscan,
      paddingStart,
      scrollPaddingStart: paddingStart,
      getScrollElement: element,
      estimateSize: sizeOf,
      observeElementRect,
      observeElementOffset: (of: Virtual, tell: (offset: number, isScrolling: boolean) => void) =>
        observeElementOffset(of, (offset, isScrolling) => tell(offset * ratio(), isScrolling)),
      scrollToFn: (offset: number, options: { adjustments?: number; behavior?: ScrollBehavior }, of: Virtual) =>
        elementScroll(offset / ratio(), options, of),
      onChange: () => renderAgain({}),
      initialRect: { width: 800, height: 400 },
    };
  }

  virtual.setOptions(makeOptions());
  total.current = virtual.getTotalSize();
  useEffect(() => virtual._didMount(), [virtual]);
  useLayoutEffect(() => virtual._willUpdate());
  useLayoutEffect(() => virtual.measure(), [virtual, version]);
  const stretch = ratio();
  const offset = virtual.scrollOffset ?? 0;
  return {
    items: virtual.getVirtualItems(),
    size: Math.min(total.current, horizontal ? Infinity : HEIGHT_MAX),
    scrollTo: (index) => virtual.scrollToIndex(index, { align: "auto" }),
    place: (start) => (stretch === 1 ? start : start - offset + offset / stretch),
  };
}
