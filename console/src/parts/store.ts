/** A value that components follow. */
import { useEffect, useState } from "preact/hooks";

export class Store<T> {
  #value: T;
  #listeners = new Set<(value: T) => void>();

  constructor(value: T) {
    this.#value = value;
  }

  get value(): T {
    return this.#value;
  }

  set(value: T): void {
    if (Object.is(value, this.#value)) return;
    this.#value = value;
    for (const listener of [...this.#listeners]) listener(value);
  }

  update(change: (value: T) => T): void {
    this.set(change(this.#value));
  }

  subscribe(listener: (value: T) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }
}

/** Return the store's value, and render again when it changes. */
export function useStore<T>(store: Store<T>): T {
  const [, renderAgain] = useState({});
  const shown = store.value;
  useEffect(() => {
    const stop = store.subscribe(() => renderAgain({}));
    // The value may have changed after it was drawn and before this ran.
    if (!Object.is(shown, store.value)) renderAgain({});
    return stop;
  }, [store]);
  return shown;
}

/** A store whose value outlives the page, in this browser. A value that cannot be read or kept is let go. */
export function keepStore<T>(name: string, initial: T): Store<T> {
  const key = `tuplegate.${name}`;
  const store = new Store<T>(read(key) ?? initial);
  store.subscribe((value) => {
    try {
      localStorage.setItem(key, JSON.stringify(value));
    } catch {
      // The browser's room is used up, or storage is switched off: it is kept in memory alone.
    }
  });
  return store;

  function read(from: string): T | undefined {
    try {
      const text = localStorage.getItem(from);
      return text === null ? undefined : (JSON.parse(text) as T);
    } catch {
      return undefined;
    }
  }
}
