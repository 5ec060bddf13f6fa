/** What was typed and is not sent yet: it outlives a reload of the tab, and goes when somebody signs out.
 *
 * It belongs to an organization, so that another one's database of the same name never gets it.
 */
import { session } from "../api/session";
import { Store } from "../parts/store";

const PREFIX = "tuplegate.unsent.";
const stores = new Map<string, Store<unknown>>();

/** Return the store of something unsent; null stands for nothing. */
export function keepUnsent<T>(...name: (string | null)[]): Store<T | null> {
  const key = PREFIX + JSON.stringify([session.organization, ...name]);
  let store = stores.get(key);
  if (!store) {
    store = new Store<unknown>(read(key));
    store.subscribe((value) => write(key, value));
    stores.set(key, store);
  }
  return store as Store<T | null>;
}

function read(key: string): unknown {
  try {
    return JSON.parse(sessionStorage.getItem(key) ?? "null");
  } catch {
    return null;
  }
}

function write(key: string, value: unknown): void {
  try {
    if (value === null) sessionStorage.removeItem(key);
    else sessionStorage.setItem(key, JSON.stringify(value));
  } catch {
    // The browser's room is used up: it is kept in memory alone, and leaving the page asks first.
  }
}

function listKept(): string[] {
  return Object.keys(sessionStorage).filter((key) => key.startsWith(PREFIX));
}

export function hasUnsent(): boolean {
  return listKept().length > 0 || [...stores.values()].some((store) => store.value !== null);
}

function forget(): void {
  for (const store of stores.values()) store.set(null);
  for (const key of listKept()) sessionStorage.removeItem(key);
}

window.addEventListener("beforeunload", (event) => {
  if (hasUnsent()) event.preventDefault();
});
session.ended.subscribe((why) => {
  if (why === "signed-out") forget();
});
