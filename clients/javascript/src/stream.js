// A streamed answer as an async iterator over its rows, in constant memory.

import { makeError, TuplegateError } from "./errors.js";
import { makeRowReader } from "./result.js";

/** @typedef {import("../types/index.d.ts").RowMode} RowMode */
/** @typedef {import("./transport.js").OpenAnswer} OpenAnswer */

/**
 * Where a stream comes from, and who is told of its end.
 *
 * @typedef {object} Source
 * @property {() => Promise<OpenAnswer>} start sends the request, and returns the head of its answer
 * @property {AbortSignal | undefined} signal
 * @property {(position: string | undefined) => void} notePosition
 * @property {(report: object) => void} [ended] called once, with what the last event says about the transaction
 * @property {(error: TuplegateError) => void} [failed] called after it, if the stream was cut off
 */

/** A live stream sends something every 15 seconds. */
const SILENCE_MS = 60_000;

/** @template Row */
export class RowStream {
  /** @type {string[]} */
  columns = [];
  /** @type {string[]} */
  types = [];
  rowCount = 0;
  affectedRows = 0;
  truncated = false;
  /** @type {import("../types/service.d.ts").Notice[]} */
  notices = [];

  #source;
  #rowMode;
  /** @type {OpenAnswer | null} */
  #answer = null;
  /** @type {ReadableStreamDefaultReader<Uint8Array> | null} */
  #reader = null;
  #decoder = new TextDecoder();
  /** @type {string[]} */
  #parts = [];
  /** @type {Row[]} */
  #waiting = [];
  /** @type {((row: any[]) => Row) | null} */
  #read = null;
  /** @type {TuplegateError | null} */
  #failure = null;
  /** @type {object} */
  #report = {};
  #isEnded = false;
  #isClosed = false;
  /** @type {Promise<void> | null} */
  #opening = null;

  /**
   * @param {Source} source
   * @param {RowMode} rowMode
   */
  constructor(source, rowMode) {
    this.#source = source;
    this.#rowMode = rowMode;
  }

  /** Open the stream, and read the columns. */
  async open() {
    this.#opening ??= this.#start();
    await this.#opening;
    return this;
  }

  async #start() {
    if (this.#isEnded) return;
    this.#answer = await this.#source.start();
    const { body } = this.#answer.response;
    if (body === null) return this.#fail(cut("the stream has no body"));
    this.#reader = body.getReader();
    while (this.#read === null && !this.#isEnded) await this.#readEvents();
    if (this.#failure !== null && this.#read === null) throw this.#failure;
  }

  async *[Symbol.asyncIterator]() {
    try {
      await this.open();
      for (;;) {
        const rows = this.#waiting;
        this.#waiting = [];
        for (const row of rows) {
          // Rows that have arrived already are not given to somebody who has left.
          this.#source.signal?.throwIfAborted();
          if (this.#isClosed) return;
          yield row;
        }
        if (this.#waiting.length > 0) continue;
        if (this.#isEnded) break;
        await this.#readEvents();
      }
      if (this.#failure !== null) throw this.#failure;
    } finally {
      await this.close();
    }
  }

  /** End the stream. A statement that is still running is cancelled. */
  async close() {
    this.#isEnded = this.#isClosed = true;
    this.#waiting = [];
    const answer = this.#answer;
    const reader = this.#reader;
    if (answer === null) return;
    this.#answer = null;
    answer.leash.cut();
    await reader?.cancel().catch(() => {}); // it is closed already
    this.#source.ended?.(this.#report);
  }

  // A runtime without this symbol has no `await using` either.
  async [Symbol.asyncDispose]() {
    await this.close();
  }

  /** Read the next chunk, and act on its events. */
  async #readEvents() {
    const chunk = await this.#readChunk();
    if (chunk === null) return;
    const text = this.#decoder.decode(chunk, { stream: true });
    const end = text.lastIndexOf("\n");
    if (end < 0) {
      this.#parts.push(text);
      return;
    }
    const lines = [...this.#parts, text.slice(0, end)].join("");
    this.#parts = [text.slice(end + 1)];
    let events;
    try {
      events = JSON.parse(`[${lines.replaceAll("\n", ",")}]`);
    } catch (error) {
      return this.#fail(cut("the stream has something that is no event: its rows count for nothing", error));
    }
    for (const event of events) this.#take(event.event, event.data);
    if (this.#isEnded) await this.#finish();
  }

  /** Return the next chunk; null if the stream was closed meanwhile. */
  async #readChunk() {
    const leash = this.#answer?.leash;
    let chunk;
    try {
      leash?.extend(SILENCE_MS);
      chunk = (await this.#reader?.read())?.value;
      leash?.rest();
    } catch (error) {
      if (leash?.caller?.aborted) {
        await this.close();
        throw leash.caller.reason;
      }
      return this.#fail(cut("the connection was lost within the stream: its rows count for nothing", error));
    }
    if (chunk !== undefined) return chunk;
    if (this.#isEnded) return null;
    return this.#fail(cut("the stream ended without its last event: its rows count for nothing"));
  }

  /**
   * @param {string} kind
   * @param {any} data
   */
  #take(kind, data) {
    switch (kind) {
      case "row":
        if (this.#read !== null) this.#waiting.push(this.#read(data));
        break;
      case "columns":
        this.columns = data.columns;
        this.types = data.types;
        this.#read = makeRowReader(this.columns, this.types, this.#rowMode);
        break;
      case "done":
        this.rowCount = data.row_count;
        this.affectedRows = data.affected_rows;
        this.truncated = data.truncated === true;
        this.notices = data.notices ?? [];
        this.#report = data.transaction ?? {};
        this.#isEnded = true;
        this.#source.notePosition(data.position);
        break;
      case "error":
        this.#failure = makeError(200, data, this.#answer?.response.headers.get("x-request-id") ?? null, null);
        this.#report = data.transaction ?? {};
        this.#isEnded = true;
        break;
      default: // a heartbeat, or something newer than this client
    }
  }

  /** Read the end of the answer, so that the connection can be used again. */
  async #finish() {
    const answer = this.#answer;
    if (answer === null) return;
    this.#answer = null;
    answer.leash.extend(SILENCE_MS);
    try {
      while (!(await this.#reader?.read())?.done);
    } catch {
      // All that matters has been read.
    }
    answer.leash.release();
    this.#source.ended?.(this.#report);
  }

  /**
   * Close a stream that was cut off, and throw why.
   *
   * @param {TuplegateError} error
   * @returns {Promise<never>}
   */
  async #fail(error) {
    await this.close();
    this.#source.failed?.(error);
    throw error;
  }
}

/**
 * @param {string} message
 * @param {unknown} [cause]
 */
function cut(message, cause) {
  return new TuplegateError(message, { code: "stream_cut", cause });
}
