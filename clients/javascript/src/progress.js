// Keeps what a client knows about its open transaction: state, sequence, and whether an answer is missing. Pure.
//
// Every request of a transaction has a sequence, and the same sequence sent again is not run again. The next one is one
// more than the last that the service took. An error without a report on the transaction does not tell whether its
// sequence was taken; then the highest that may be next is tried first. If it is too high, the service refuses it and
// runs nothing. A sequence that was taken is never used for another request: that would get the answer of the first.

import { isLost, isSqlError, TuplegateError } from "./errors.js";

/** @typedef {import("../types/index.d.ts").OpenState} State */
/** @typedef {import("../types/index.d.ts").Report} Report */

const LOST = "lost";
const GOES_ON = new Set(["new", "open", "failed"]);

export class Progress {
  /** @type {string | null} */
  id = null;
  /** @type {State} */
  state = "new";
  /** @type {string | null} */
  reason = null;
  /** @type {Date | null} */
  expiresAt = null;
  /** True from a request until its answer. After a lost answer it stays true: the service may still be running it. */
  isRunning = false;
  savepoints = 0;
  #sequence = 0;
  #lowest = 1;
  #highest = 1;

  get goesOn() {
    return GOES_ON.has(this.state);
  }

  /** Throw if no statement can be sent now. */
  checkCanRun() {
    const name = this.id ?? "the transaction";
    if (this.state === "aborted") {
      throw new TuplegateError(`${name} was rolled back (reason: ${this.reason}); nothing was applied`, {
        code: "transaction_aborted",
        reason: this.reason,
      });
    }
    if (!this.goesOn) {
      throw new TuplegateError(`${name} has ended: begin another transaction`, { code: "wrong_state" });
    }
    if (this.isRunning) {
      throw new TuplegateError(
        `${name} is running another statement: it runs one at a time, and a stream until it is closed`,
        { code: "transaction_in_use" },
      );
    }
  }

  /** Begin a request, and return its sequence. */
  nextSequence() {
    this.isRunning = true;
    this.#sequence = this.#highest;
    return this.#sequence;
  }

  /**
   * Return the sequence to send instead of one that was refused as too high; null if that was not the reason.
   *
   * @param {unknown} error
   */
  lowerSequence(error) {
    const isTooHigh = error instanceof TuplegateError && error.code === "out_of_sequence";
    if (!isTooHigh || this.#sequence <= this.#lowest) return null;
    this.#sequence -= 1;
    return this.#sequence;
  }

  /** Note that the service has taken the sequence of the request. */
  noteTaken() {
    this.#lowest = this.#highest = this.#sequence + 1;
  }

  /**
   * Note the answer to a begin or to a statement.
   *
   * @param {any} answer
   */
  noteAnswer(answer) {
    this.id = answer.transaction_id ?? this.id;
    this.noteReport(answer.transaction ?? answer);
  }

  /**
   * Note what an answer says about the transaction.
   *
   * @param {Partial<Report>} report
   */
  noteReport(report) {
    this.isRunning = false;
    this.noteTaken();
    this.state = report.state ?? this.state;
    this.reason = report.reason ?? this.reason;
    if (report.expires_at !== undefined) this.expiresAt = new Date(report.expires_at);
  }

  /**
   * Note the failure of a begin or of a statement. One that is not an error of the service was interrupted, and may be
   * running.
   *
   * @param {unknown} error
   */
  noteError(error) {
    if (!(error instanceof TuplegateError)) return this.lose();
    this.isRunning = false;
    if (findReport(error) !== null) {
      this.reason = error.code === "conflict" ? "conflict" : "rollback";
      this.noteAnswer(error.answer);
      if (this.goesOn) this.reason = null;
    } else if (error.code === "transaction_aborted") {
      this.end("aborted", error.reason);
    } else if (error.status === 410) {
      this.end("aborted", "expired");
    } else if (isLost(error) || error.code === "stream_cut") {
      this.lose();
    } else if (this.id !== null) {
      this.#highest = this.#sequence + 1;
    }
  }

  /** Note that an answer will never be known. Nothing is applied without a commit, so this counts as aborted. */
  lose() {
    this.isRunning = false;
    if (this.id === null) return;
    this.end("aborted", LOST);
    this.isRunning = true;
  }

  /**
   * @param {State} state
   * @param {string | null} [reason]
   */
  end(state, reason = null) {
    this.isRunning = false;
    this.state = state;
    this.reason = reason;
  }
}

/**
 * Return what the answer says about its transaction; null if it says nothing.
 *
 * @param {TuplegateError} error
 * @returns {Report | null}
 */
function findReport(error) {
  /** @type {any} */
  const answer = error.answer ?? {};
  const report = answer.transaction ?? answer;
  return typeof report === "object" && "state" in report ? report : null;
}

/**
 * Return whether the error is the answer to a request with a sequence: asking again would give the same.
 *
 * @param {TuplegateError} error
 */
export function isSettled(error) {
  /** @type {any} */
  const answer = error.answer ?? {};
  const hasEnded = error.code === "transaction_aborted" || error.status === 410;
  return hasEnded || "transaction" in answer || "transaction_id" in answer;
}

/**
 * Return whether a transaction that ended with this error may succeed if all of it is run again.
 *
 * @param {unknown} error
 */
export function canRunAgain(error) {
  if (!(error instanceof TuplegateError)) return false;
  if (error.code === "transaction_aborted") return error.reason === "conflict" || error.reason === LOST;
  if (isSqlError(error)) return error.retryable && error.sqlstate?.startsWith("40") === true;
  return error.status !== null && !isLost(error) && error.retryable && findReport(error)?.state === "aborted";
}
