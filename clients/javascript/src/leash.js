// Ends a request at a time, or when the caller's signal says so.

const TIMER_MS_MAX = 2 ** 31 - 1;

export class Leash {
  #controller = new AbortController();
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #abort = () => this.#controller.abort();

  /** True if the time was over. */
  expired = false;

  /**
   * @param {AbortSignal | undefined} caller
   * @param {number} milliseconds
   */
  constructor(caller, milliseconds) {
    caller?.throwIfAborted();
    this.caller = caller;
    caller?.addEventListener("abort", this.#abort, { once: true });
    this.extend(milliseconds);
  }

  /** The signal for `fetch`. */
  get signal() {
    return this.#controller.signal;
  }

  /**
   * Give the request this much time from now on.
   *
   * @param {number} milliseconds
   */
  extend(milliseconds) {
    this.rest();
    const end = () => {
      this.expired = true;
      this.#controller.abort();
    };
    this.#timer = setTimeout(end, Math.min(milliseconds, TIMER_MS_MAX));
  }

  /** Stop the time until it is extended again. */
  rest() {
    clearTimeout(this.#timer);
  }

  /** End the request now. */
  cut() {
    this.release();
    this.#controller.abort();
  }

  /** Let go of the timer and of the caller's signal. */
  release() {
    this.rest();
    this.caller?.removeEventListener("abort", this.#abort);
  }
}
