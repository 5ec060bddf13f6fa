// A transaction that stays open between the calls of its client, with savepoints.
//
// It is begun with its first statement. A request whose answer is lost is sent again with the same sequence, and is not
// run again. Whatever is not committed is rolled back, by the service itself if the client cannot say so.

import { answerLost, isLost, outcomeUnknown, TuplegateError } from "./errors.js";
import { Progress } from "./progress.js";
import { addSequence, checkOptions, checkTime, writeBeginBody, writeCommitBody, writeQueryBody } from "./requests.js";
import { Result } from "./result.js";
import { Repeat } from "./retries.js";
import { dropStreamHint } from "./statements.js";
import { RowStream } from "./stream.js";

/** @typedef {import("../types/index.d.ts").Statement} Statement */
/** @typedef {import("../types/index.d.ts").StatementOptions} StatementOptions */
/** @typedef {import("../types/index.d.ts").CommitOptions} CommitOptions */
/** @typedef {import("../types/index.d.ts").Transaction} Transaction */
/** @typedef {import("./transport.js").Transport} Transport */
/** @typedef {import("./transport.js").Call} Call */
/** @typedef {import("./transport.js").Answer} Answer */
/** @typedef {import("./transport.js").OpenAnswer} OpenAnswer */

/**
 * How a transaction is opened. `timeoutMs` is for all of it, `callTimeoutMs` for one call that gives none.
 *
 * @typedef {object} OpenOptions
 * @property {string} url
 * @property {Record<string, string>} headers
 * @property {boolean} readOnly
 * @property {number} timeoutMs
 * @property {number | undefined} idleTimeoutMs
 * @property {number} callTimeoutMs
 * @property {AbortSignal | undefined} signal
 */

export const STATEMENT_OPTIONS = Object.freeze(["timeoutMs", "maxRows", "rowMode", "signal"]);

/** How long a rollback may take after an error. If it fails, the transaction expires. */
const GIVE_UP_MS = 5000;

export class OpenTransaction {
  #transport;
  #options;
  #progress = new Progress();
  /** @type {RowStream<any> | null} */
  #stream = null;

  /**
   * @param {Transport} transport
   * @param {OpenOptions} options
   */
  constructor(transport, options) {
    this.#transport = transport;
    this.#options = options;
  }

  get id() {
    return this.#progress.id;
  }

  get state() {
    return this.#progress.state;
  }

  get reason() {
    return this.#progress.reason;
  }

  get expiresAt() {
    return this.#progress.expiresAt;
  }

  /**
   * @param {string} sql
   * @param {readonly unknown[]} [params]
   * @param {StatementOptions} [options]
   * @returns {Promise<Result<any>>}
   */
  async query(sql, params = [], options = {}) {
    checkOptions(options, STATEMENT_OPTIONS);
    const { maxRows, rowMode = "objects", signal = this.#options.signal } = options;
    const timeoutMs = this.#chooseTime(options.timeoutMs);
    const statement = dropStreamHint(sql);
    const body = writeQueryBody(statement, params, timeoutMs, maxRows);
    this.#progress.checkCanRun();
    if (this.id === null && maxRows === undefined && timeoutMs >= this.#options.timeoutMs) {
      const answer = await this.#begin(timeoutMs, signal, { sql: statement, params });
      return new Result(answer.body.result, rowMode, undefined, answer.replayed);
    }
    if (this.id === null) await this.#begin(timeoutMs, signal);
    const answer = await this.#send("query", body, timeoutMs, signal);
    this.#progress.noteAnswer(answer.body);
    return new Result(answer.body, rowMode, maxRows, answer.replayed);
  }

  /**
   * @param {string} sql
   * @param {readonly unknown[]} [params]
   * @param {StatementOptions} [options]
   * @returns {RowStream<any>}
   */
  stream(sql, params = [], options = {}) {
    checkOptions(options, STATEMENT_OPTIONS);
    const { maxRows, rowMode = "objects", signal = this.#options.signal } = options;
    const timeoutMs = this.#chooseTime(options.timeoutMs);
    const body = writeQueryBody(sql, params, timeoutMs, maxRows);
    /** @type {RowStream<any>} */
    const stream = new RowStream(
      {
        start: async () => {
          const answer = await this.#openStream(body, timeoutMs, signal);
          this.#stream = stream;
          return answer;
        },
        signal,
        notePosition: (position) => this.#transport.positions.note(position),
        ended: (report) => {
          if (this.#stream !== stream) return;
          this.#stream = null;
          this.#progress.noteReport(report);
        },
        failed: (error) => this.#progress.noteError(error),
      },
      rowMode,
    );
    return stream;
  }

  /**
   * @template T
   * @param {() => Promise<T>} work
   * @returns {Promise<T>}
   */
  async savepoint(work) {
    this.#progress.savepoints += 1;
    const name = `tuplegate_${this.#progress.savepoints}`;
    await this.query(`savepoint ${name}`);
    let made;
    try {
      made = await work();
    } catch (error) {
      // A failure here must not hide the error. It leaves the transaction failed, so that nothing is committed.
      await this.#stream?.close();
      await this.query(`rollback to ${name}`)
        .then(() => this.query(`release ${name}`))
        .catch(() => {});
      throw error;
    }
    if (this.#progress.goesOn) await this.query(`release ${name}`);
    return made;
  }

  /**
   * @param {Statement} [statement]
   * @param {CommitOptions} [options]
   * @returns {Promise<Transaction>}
   */
  async commit(statement, options = {}) {
    checkOptions(options, ["timeoutMs", "signal"]);
    const { signal = this.#options.signal } = options;
    const timeoutMs = this.#chooseTime(options.timeoutMs);
    const body = writeCommitBody(statement, timeoutMs);
    const progress = this.#progress;
    progress.checkCanRun();
    if (this.id === null && statement === undefined) {
      progress.end("committed");
      return { id: "", results: [], affectedRows: 0, attempts: 0, commit: "read_only", replayed: false };
    }
    if (this.id === null) await this.#begin(timeoutMs, signal);
    let answer;
    try {
      answer = await this.#send("commit", body, timeoutMs, signal);
    } catch (error) {
      if (!(error instanceof TuplegateError)) {
        progress.end("in_progress"); // interrupted: it may be committed
        throw error;
      }
      if (isLost(error)) {
        answer = await this.#askOutcome(error, statement !== undefined);
      } else {
        if (error.transactionId !== null && progress.goesOn) progress.end("aborted", "rollback");
        throw error;
      }
    }
    progress.end("committed");
    return readTransaction(answer, "objects");
  }

  /** Roll back. Nothing happens if that has happened already. */
  async rollback() {
    await this.#rollBack(this.#options.callTimeoutMs);
  }

  /** Roll back after an error, which must not be hidden by another one. */
  async giveUp() {
    if (!this.#progress.goesOn && !this.#progress.isRunning) return;
    try {
      await this.#rollBack(Math.min(GIVE_UP_MS, this.#options.callTimeoutMs));
    } catch (error) {
      if (!(error instanceof TuplegateError)) throw error;
    }
  }

  // A runtime without this symbol has no `await using` either.
  async [Symbol.asyncDispose]() {
    await this.giveUp();
  }

  /** @param {number} timeoutMs */
  async #rollBack(timeoutMs) {
    const progress = this.#progress;
    if (progress.state === "aborted" && !progress.isRunning) return;
    if (progress.state === "committed") progress.checkCanRun();
    await this.#stream?.close();
    if (this.id !== null) {
      // What may still be running would refuse a rollback; it is aborted.
      const verb = progress.isRunning ? "abort" : "rollback";
      // The caller's signal does not count here: what it has ended is to be rolled back.
      const call = this.#makeCall(verb, null, Repeat.HARMLESS, undefined);
      await this.#transport.call(call, this.#transport.startCourse(timeoutMs));
    }
    progress.end("aborted", progress.reason ?? "rollback");
  }

  /**
   * Find out what became of a commit whose answer was lost.
   *
   * @param {TuplegateError} lost
   * @param {boolean} hasStatement
   * @returns {Promise<Answer>}
   */
  async #askOutcome(lost, hasStatement) {
    const progress = this.#progress;
    progress.end("in_progress");
    if (!(lost.cause instanceof TuplegateError) || lost.cause.code !== "out_of_sequence") {
      throw outcomeUnknown(`${lost.message}; ${this.id} may have been committed`, {
        hint: "client.transactionState(error.transactionId) tells the outcome.",
        transactionId: this.id,
        cause: lost,
      });
    }
    // It arrived, but its answer was too large to be kept. Without a sequence the outcome alone is told.
    const call = this.#makeCall("commit", "{}", Repeat.HARMLESS, undefined);
    let answer;
    try {
      answer = await this.#transport.call(call, this.#transport.startCourse(this.#options.callTimeoutMs));
    } catch (error) {
      progress.noteError(error);
      throw error;
    }
    progress.end("committed");
    if (hasStatement) {
      throw new TuplegateError(`${this.id} is committed, but the rows of its last statement were lost`, {
        code: "rows_lost",
        transactionId: this.id,
        cause: lost,
      });
    }
    return answer;
  }

  /** @param {number | undefined} given */
  #chooseTime(given) {
    return given === undefined ? this.#options.callTimeoutMs : checkTime("timeoutMs", given);
  }

  /**
   * @param {string} verb
   * @param {string | null} body
   * @param {import("./retries.js").Repeat} repeat
   * @param {AbortSignal | undefined} signal
   * @returns {Call}
   */
  #makeCall(verb, body, repeat, signal) {
    const { url, headers } = this.#options;
    return { method: "POST", url: `${url}/v1/transaction/${this.id}/${verb}`, body, headers, repeat, signal };
  }

  /**
   * Begin it. A begin whose answer is lost is repeated: the first one is rolled back when it expires.
   *
   * @param {number} timeoutMs
   * @param {AbortSignal | undefined} signal
   * @param {Statement} [first]
   */
  async #begin(timeoutMs, signal, first) {
    const { url, headers, readOnly, idleTimeoutMs } = this.#options;
    const body = writeBeginBody(first, this.#options.timeoutMs, idleTimeoutMs, readOnly);
    const address = `${url}/v1/transaction/begin`;
    this.#progress.isRunning = true;
    try {
      const call = { method: "POST", url: address, body, headers, repeat: Repeat.HARMLESS, signal };
      const answer = await this.#transport.call(call, this.#transport.startCourse(timeoutMs));
      this.#progress.noteAnswer(answer.body);
      return answer;
    } catch (error) {
      this.#progress.noteError(error); // an interrupted one may have begun, and expires
      throw error;
    }
  }

  /**
   * @param {string} verb
   * @param {string} body
   * @param {number} timeoutMs
   * @param {AbortSignal | undefined} signal
   * @returns {Promise<Answer>}
   */
  #send(verb, body, timeoutMs, signal) {
    const course = this.#transport.startCourse(timeoutMs);
    return this.#addSequence(this.#makeCall(verb, body, Repeat.SEQUENCED, signal), (call) =>
      this.#transport.call(call, course),
    );
  }

  /**
   * Begin the transaction if it is new, and open a stream within it.
   *
   * @param {string} body
   * @param {number} timeoutMs
   * @param {AbortSignal | undefined} signal
   * @returns {Promise<OpenAnswer>}
   */
  async #openStream(body, timeoutMs, signal) {
    this.#progress.checkCanRun();
    if (this.id === null) await this.#begin(timeoutMs, signal);
    const call = this.#makeCall("query", body, Repeat.NEVER, signal);
    const headers = { ...call.headers, Accept: "application/x-ndjson" };
    const course = this.#transport.startCourse(timeoutMs);
    try {
      const answer = await this.#addSequence({ ...call, headers }, (sent) => this.#transport.open(sent, course));
      this.#progress.noteTaken();
      return answer;
    } catch (error) {
      if (!(error instanceof TuplegateError) || error.code !== "outcome_unknown") throw error;
      throw answerLost(`${error.message}; the transaction is rolled back`, { cause: error });
    }
  }

  /**
   * Send a request with its sequence within the transaction, which makes it safe to send it again.
   *
   * @template T
   * @param {Call} call
   * @param {(call: Call) => Promise<T>} send
   * @returns {Promise<T>}
   */
  async #addSequence(call, send) {
    const body = call.body ?? "{}";
    let sequence = this.#progress.nextSequence();
    for (;;) {
      try {
        return await send({ ...call, body: addSequence(body, sequence) });
      } catch (error) {
        const lower = this.#progress.lowerSequence(error);
        if (lower === null) {
          this.#progress.noteError(error);
          throw error;
        }
        sequence = lower;
      }
    }
  }
}

/**
 * @param {Answer} answer
 * @param {import("../types/index.d.ts").RowMode} rowMode
 * @returns {Transaction}
 */
export function readTransaction({ body, replayed }, rowMode) {
  return {
    id: body.transaction_id,
    results: body.results.map(
      (/** @type {any} */ result) => new Result(result, rowMode, undefined, replayed),
    ),
    affectedRows: body.affected_rows,
    attempts: body.attempts,
    commit: body.commit,
    replayed,
  };
}
