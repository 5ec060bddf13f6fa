// Decides whether a call is sent again, and after what pause. Pure: time and chance are arguments.
//
// A call has a deadline and a number of retries; whichever is reached first ends it.

/** @typedef {import("./errors.js").TuplegateError} TuplegateError */

const PAUSE_FIRST_MS = 100;
const PAUSE_MAX_MS = 2000;
/** Codes of an answer that the first request will give in time. */
const STILL_RUNNING = new Set(["idempotency_in_progress", "transaction_in_use"]);

/**
 * How a request may be repeated after a lost answer.
 *
 * @typedef {"never" | "harmless" | "keyed" | "sequenced"} Repeat
 */
export const Repeat = Object.freeze({
  /** It may have been applied, and applying it twice would be wrong. */
  NEVER: /** @type {const} */ ("never"),
  /** It changes nothing. */
  HARMLESS: /** @type {const} */ ("harmless"),
  /** It may change something, but has an Idempotency-Key: the service runs it once. */
  KEYED: /** @type {const} */ ("keyed"),
  /** It may change something, but has a sequence within its transaction: the service runs it once. */
  SEQUENCED: /** @type {const} */ ("sequenced"),
});

/** The progress of a call. `deadline` and `now` are of the same clock, in milliseconds. */
export class Course {
  #failures = 0;

  /**
   * @param {number} deadline
   * @param {number} retriesLeft
   */
  constructor(deadline, retriesLeft) {
    this.deadline = deadline;
    this.retriesLeft = retriesLeft;
  }

  /**
   * Return the pause before the request is sent again; null if the call ends with this error.
   *
   * @param {TuplegateError} error
   * @param {number} now
   * @param {number} chance from 0 to 1
   */
  pauseMs(error, now, chance) {
    const grown = Math.min(PAUSE_FIRST_MS * 2 ** this.#failures, PAUSE_MAX_MS) * (0.5 + chance / 2);
    const waitMs = error.retryAfterMs ?? grown;
    if (now + waitMs >= this.deadline) return null;
    // Waiting for the first request to end does not count as a failure.
    if (!STILL_RUNNING.has(error.code)) {
      if (this.retriesLeft === 0) return null;
      this.retriesLeft -= 1;
    }
    this.#failures += 1;
    return waitMs;
  }
}

/**
 * Return whether any request may be sent again after this error.
 *
 * That is so after a conflict too, but the service has already retried it for as long as its limits allow.
 *
 * @param {TuplegateError} error
 */
export function nothingWasApplied(error) {
  return error.status === 429 || (error.retryable && error.code !== "conflict");
}

/**
 * Wait. The caller's signal ends the wait with its reason.
 *
 * @param {number} milliseconds
 * @param {AbortSignal | undefined} signal
 */
export function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const end = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", end);
      resolve(undefined);
    }, milliseconds);
    signal?.addEventListener("abort", end, { once: true });
  });
}
