// Remembers how far the service was in the answers a client has seen, so that it never reads older data.

/** @typedef {import("../types/index.d.ts").Consistency} Consistency */

const HEADER = "Tuplegate-Position";
/** The service could not say how far it was. This counts as later than any other position. */
const UNKNOWN = "unknown";

/**
 * @param {Consistency | undefined} given
 * @returns {Consistency | undefined}
 */
export function checkConsistency(given) {
  if (given === undefined || given === "serializable" || given === "snapshot") return given;
  throw new TypeError(`consistency is ${JSON.stringify(given)}: it is "serializable" or "snapshot"`);
}

/** The latest position of all answers. */
export class Positions {
  /** @type {string | null} */
  #known = null;
  /** Answers whose position was unknown. */
  #unknowns = 0;
  /** How many of these are certain to be before the known position. */
  #settled = 0;

  /**
   * Return the headers that say how recent the answer must be; without a consistency the key decides.
   *
   * @param {Consistency | undefined} consistency
   */
  headers(consistency) {
    /** @type {Record<string, string>} */
    const made = consistency === undefined ? {} : { "Tuplegate-Consistency": consistency };
    const latest = this.#settled < this.#unknowns ? UNKNOWN : this.#known;
    if (consistency !== "serializable" && latest !== null) made[HEADER] = latest;
    return made;
  }

  /**
   * Return how many unknown positions the answer to a request is later than, if it is sent now.
   *
   * One that sends back `unknown` asks for data later than all of them. One that is noted while it is under way may
   * stand for a later write.
   *
   * @param {Record<string, string>} asked
   */
  countSettled(asked) {
    return asked[HEADER] === UNKNOWN ? this.#unknowns : 0;
  }

  /**
   * Note the position of an answer, and what `countSettled` said of its request. The greater text is the later
   * position.
   *
   * @param {string | null | undefined} position
   * @param {number} [settled]
   */
  note(position, settled = 0) {
    if (position === null || position === undefined) return;
    if (position === UNKNOWN) {
      this.#unknowns += 1;
      return;
    }
    this.#settled = Math.max(this.#settled, settled);
    if (this.#known === null || position > this.#known) this.#known = position;
  }

  /**
   * @param {Headers} headers
   * @param {number} settled
   */
  noteAnswer(headers, settled) {
    this.note(headers.get(HEADER), settled);
  }
}
