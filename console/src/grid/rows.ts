/** The rows of a result, kept as the bytes that came. A row is parsed when somebody looks at it. */
import { Json, splitJson } from "../api/json";
import type { Row } from "../api/types";
import { isJsonType } from "./values";

const BLOCK_BYTES = 1 << 20;
/** Rows beyond this are not kept: a page has to stay small. */
export const KEPT_BYTES_MAX = 160 << 20;
const CACHED_MAX = 2_000;
/** Rows with more bytes than this are not kept parsed. */
const CACHED_BYTES_MAX = 1 << 16;

interface Block {
  first: number;
  bytes: Uint8Array;
  used: number;
  ends: number[] | Uint32Array;
}

export class Rows {
  columns: string[] = [];
  types: string[] = [];
  #blocks: Block[] = [];
  #count = 0;
  #bytes = 0;
  #cache = new Map<number, Row>();
  #decoder = new TextDecoder();
  /** Which columns are JSON, of the types that were asked for last. */
  #areJson: { of: string[]; columns: boolean[] } | null = null;

  /** Make rows of some that are there already, each as its JSON. */
  static of(columns: string[], types: string[], rows: string[]): Rows {
    const made = new Rows();
    made.columns = columns;
    made.types = types;
    const encoder = new TextEncoder();
    for (const row of rows) {
      const bytes = encoder.encode(row);
      made.#append(bytes, 0, bytes.length);
    }
    return made;
  }

  get count(): number {
    return this.#count;
  }

  get byteCount(): number {
    return this.#bytes;
  }

  /** Add rows by where each starts and ends; return whether there is room for more. */
  add(bytes: Uint8Array, places: number[]): boolean {
    for (let at = 0; at < places.length; at += 2) {
      if (this.#bytes > KEPT_BYTES_MAX) return false;
      this.#append(bytes, places[at]!, places[at + 1]!);
    }
    return true;
  }

  #append(bytes: Uint8Array, start: number, end: number): void {
    const length = end - start;
    let block = this.#blocks.at(-1);
    if (!block || block.bytes.length - block.used < length) {
      if (block) this.#seal(block);
      block = {
        first: this.#count,
        bytes: new Uint8Array(Math.max(this.#count ? BLOCK_BYTES : 1 << 14, length)),
        used: 0,
        ends: [],
      };
      this.#blocks.push(block);
    }
    block.bytes.set(bytes.subarray(start, end), block.used);
    block.used += length;
    (block.ends as number[]).push(block.used);
    this.#count += 1;
    this.#bytes += length;
  }

  #seal(block: Block): void {
    block.ends = Uint32Array.from(block.ends);
  }

  #find(row: number): Block {
    let low = 0;
    let high = this.#blocks.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.#blocks[middle]!.first <= row) low = middle;
      else high = middle - 1;
    }
    return this.#blocks[low]!;
  }

  /** Return a row as the JSON text that came. */
  text(row: number): string {
    const block = this.#find(row);
    const at = row - block.first;
    return this.#decoder.decode(block.bytes.subarray(at ? block.ends[at - 1]! : 0, block.ends[at]!));
  }

  /** Read a row from its text. Values that are JSON stay text. */
  parse(text: string): Row {
    if (this.#areJson?.of !== this.types) this.#areJson = { of: this.types, columns: this.types.map(isJsonType) };
    const { columns } = this.#areJson;
    if (!columns.includes(true)) return JSON.parse(text) as Row;
    return splitJson(text)!.items.map((item, at) =>
      columns[at] && item !== "null" ? new Json(item) : (JSON.parse(item) as Row[number]),
    );
  }

  get(row: number): Row {
    const known = this.#cache.get(row);
    if (known) return known;
    const text = this.text(row);
    const parsed = this.parse(text);
    if (text.length <= CACHED_BYTES_MAX) {
      if (this.#cache.size >= CACHED_MAX) this.#cache.clear();
      this.#cache.set(row, parsed);
    }
    return parsed;
  }
}

/** How many rows are looked at before the page may draw again. */
const PORTION = 20_000;

/** Do something with every row without freezing the page; `step` tells how far it is. Ends early when `isWanted` says so. */
export async function eachInPortions(
  count: number,
  work: (row: number) => void,
  step: (done: number) => void,
  isWanted: () => boolean,
): Promise<boolean> {
  for (let row = 0; row < count;) {
    const until = Math.min(row + PORTION, count);
    for (; row < until; row++) work(row);
    step(row);
    await new Promise((resolve) => setTimeout(resolve));
    if (!isWanted()) return false;
  }
  return true;
}
