/** Lists of the control plane, page by page. */
import { askControl } from "../api/http";
import type { Page } from "../api/types";

const PAGES_MAX = 20;

/** Return all items of a list, up to a bound that no page of the console shows more than. */
export async function listAll<T>(path: string, limit = 1000): Promise<T[]> {
  const items: T[] = [];
  let cursor: string | null = null;
  for (let page = 0; page < PAGES_MAX; page++) {
    const query: string = `${path.includes("?") ? "&" : "?"}limit=${limit}${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`;
    const answer: Page<T> = await askControl<Page<T>>(path + query);
    items.push(...answer.items);
    cursor = answer.next_cursor;
    if (!cursor) break;
  }
  return items;
}
