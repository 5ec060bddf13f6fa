// Sends requests by `fetch`, and repeats a call where that is safe.
//
// A lost answer is the hard case. A request that changes nothing, or that has an Idempotency-Key or a sequence within
// its transaction, is sent again. For any other, the caller is told that the outcome is unknown.

import { answerLost, isLost, isSqlError, makeError, outcomeUnknown, TuplegateError, unreachable } from "./errors.js";
import { Leash } from "./leash.js";
import { Positions } from "./positions.js";
import { isSettled } from "./progress.js";
import { Course, nothingWasApplied, pause, Repeat } from "./retries.js";

/**
 * One request. A repetition sends the same bytes.
 *
 * @typedef {object} Call
 * @property {string} method
 * @property {string} url
 * @property {string | null} body
 * @property {Record<string, string>} headers
 * @property {Repeat} repeat
 * @property {AbortSignal | undefined} signal
 */

/**
 * @typedef {object} Answer
 * @property {any} body
 * @property {boolean} replayed the answer of an earlier request with the same key, or the same sequence
 */

/** @typedef {{ response: Response, leash: Leash }} OpenAnswer */

/** The service ends a statement at its limit; after this much longer the answer counts as lost. */
const ANSWER_GRACE_MS = 5000;
/** A live stream sends something every 15 seconds. */
const SILENCE_MS = 60_000;
const STREAM_TYPE = "application/x-ndjson";

// What runtimes say of a request that found no connection; what they do not tell counts as lost. Browsers never tell.
const CONNECTING = new Set(["connect", "getaddrinfo"]);
const NO_CONNECTION = new Set(["ECONNREFUSED", "ENOTFOUND", "UND_ERR_CONNECT_TIMEOUT", "ConnectionRefused"]);
// Deno sends a request again by itself if the connection ends before the answer, unless the body is a stream.
const RESENDS = "Deno" in globalThis;
const NO_CONNECTION_TEXT = /client error \(Connect\)/;
const UNTRUSTED = /CERT|SELF_SIGNED|UNABLE_TO_VERIFY|invalid peer certificate/;

export class Transport {
  #token;
  #retries;
  #fetch;

  /**
   * @param {string} token
   * @param {number} retries
   * @param {typeof fetch} fetch
   */
  constructor(token, retries, fetch) {
    this.#token = token;
    this.#retries = retries;
    this.#fetch = fetch;
    this.positions = new Positions();
  }

  /** The header that carries the token. */
  get authorization() {
    return `Bearer ${this.#token}`;
  }

  /** @param {number} timeoutMs */
  startCourse(timeoutMs) {
    return new Course(performance.now() + timeoutMs, this.#retries);
  }

  /**
   * Send the call and return a successful answer; throw the error of any other.
   *
   * @param {Call} call
   * @param {Course} course
   * @returns {Promise<Answer>}
   */
  async call(call, course) {
    let inDoubt = false;
    for (;;) {
      try {
        return await this.#sendOnce(call, course);
      } catch (error) {
        // The engine's error is final. On a repetition, a success of the first request would have been replayed.
        if (!(error instanceof TuplegateError) || isSqlError(error)) throw error;
        const lost = isLost(error);
        inDoubt ||= lost;
        const again = nothingWasApplied(error) || (lost && call.repeat !== Repeat.NEVER);
        if (call.repeat === Repeat.SEQUENCED && isSettled(error) && !lost) throw error;
        const pauseMs = again ? course.pauseMs(error, performance.now(), Math.random()) : null;
        if (pauseMs === null) throw inDoubt ? explainDoubt(call, error) : error;
        await pause(pauseMs, call.signal);
      }
    }
  }

  /**
   * Send the call and return the head of a stream. It is repeated only if nothing can have run, or it changes nothing.
   *
   * @param {Call} call
   * @param {Course} course
   * @returns {Promise<OpenAnswer>}
   */
  async open(call, course) {
    for (;;) {
      try {
        return await this.#openOnce(call, course);
      } catch (error) {
        if (!(error instanceof TuplegateError)) throw error;
        const lost = error.code === "answer_lost";
        if (lost && call.repeat === Repeat.NEVER) throw outcomeUnknown(error.message, { cause: error });
        const again = lost || nothingWasApplied(error);
        const pauseMs = again ? course.pauseMs(error, performance.now(), Math.random()) : null;
        if (pauseMs === null) throw error;
        await pause(pauseMs, call.signal);
      }
    }
  }

  /**
   * @param {Call} call
   * @param {Course} course
   */
  async #sendOnce(call, course) {
    const leash = new Leash(call.signal, remainingMs(course));
    try {
      const response = await this.#send(call, leash);
      return decode(response, await readText(response, leash));
    } finally {
      leash.release();
    }
  }

  /**
   * @param {Call} call
   * @param {Course} course
   */
  async #openOnce(call, course) {
    const leash = new Leash(call.signal, SILENCE_MS);
    try {
      const response = await this.#send(call, leash);
      if (response.headers.get("content-type")?.startsWith(STREAM_TYPE)) return { response, leash };
      leash.extend(remainingMs(course));
      decode(response, await readText(response, leash));
      throw explainForeign(response, `${new URL(call.url).origin} did not answer with a stream`);
    } catch (error) {
      leash.release();
      throw error;
    }
  }

  /**
   * Send the call and return the head of the answer; the body is still to be read.
   *
   * @param {Call} call
   * @param {Leash} leash
   */
  async #send(call, leash) {
    /** @type {Record<string, string>} */
    const headers = { Authorization: this.authorization, ...call.headers };
    if (call.body !== null) headers["Content-Type"] = "application/json";
    const settled = this.positions.countSettled(call.headers);
    try {
      const fetch = this.#fetch;
      // A redirect is not followed: the token is sent nowhere unasked.
      const init = { method: call.method, headers, signal: leash.signal, redirect: /** @type {const} */ ("manual") };
      const response = await fetch(call.url, { ...init, ...makeBody(call) });
      this.positions.noteAnswer(response.headers, settled);
      return response;
    } catch (error) {
      throw explainFailure(new URL(call.url).origin, leash, error);
    }
  }
}

/**
 * Return the body for `fetch`; of a request that must be sent once, in a form that the runtime does not send again.
 *
 * @param {Call} call
 */
function makeBody({ body, repeat }) {
  if (!RESENDS || body === null || repeat !== Repeat.NEVER) return { body };
  return { body: new Blob([body]).stream(), duplex: "half" };
}

/** @param {Course} course */
function remainingMs(course) {
  return Math.max(course.deadline - performance.now(), 0) + ANSWER_GRACE_MS;
}

/**
 * Read the body. The time is for all of it, however slowly it arrives.
 *
 * @param {Response} response
 * @param {Leash} leash
 */
async function readText(response, leash) {
  try {
    return await response.text();
  } catch (error) {
    leash.caller?.throwIfAborted();
    const message = leash.expired ? "the answer did not end in time" : "the connection was lost within the answer";
    throw answerLost(message, { cause: error });
  }
}

/**
 * Decode the answer, and throw the error that it holds.
 *
 * @param {Response} response
 * @param {string} text
 * @returns {Answer}
 */
function decode(response, text) {
  const { status, headers } = response;
  const body = parse(text);
  if (typeof body !== "object" || body === null) {
    // Not every runtime notices that an answer is shorter than its head says.
    const isOurs = response.ok && headers.get("content-type")?.startsWith("application/json");
    throw isOurs ? answerLost("the answer was cut off") : explainForeign(response);
  }
  if (typeof body.error === "object" && body.error !== null) {
    throw makeError(status, body, headers.get("x-request-id"), readRetryAfterMs(headers));
  }
  // Health answers 503 with its checks.
  if (!response.ok && !("checks" in body)) throw explainForeign(response);
  return { body, replayed: headers.has("idempotency-replayed") || headers.has("tuplegate-replayed") };
}

/**
 * @param {string} text
 * @returns {any}
 */
function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** @param {Headers} headers */
function readRetryAfterMs(headers) {
  const seconds = headers.get("retry-after");
  const read = seconds === null ? Number.NaN : Number(seconds);
  return Number.isFinite(read) ? Math.max(read * 1000, 0) : null;
}

/**
 * Return what a failed `fetch` means: the caller's own reason, no connection, or a lost answer.
 *
 * @param {string} origin
 * @param {Leash} leash
 * @param {any} error
 */
function explainFailure(origin, leash, error) {
  if (leash.caller?.aborted) return leash.caller.reason;
  if (leash.expired) return answerLost(`${origin} did not answer in time`, { cause: error });
  const cause = error?.cause ?? error;
  const said = String(cause?.message || cause?.code || error?.message || error);
  const isUntrusted = UNTRUSTED.test(`${cause?.code} ${said}`);
  const isWithoutConnection = CONNECTING.has(cause?.syscall) || NO_CONNECTION.has(cause?.code);
  if (isUntrusted || isWithoutConnection || NO_CONNECTION_TEXT.test(said)) {
    const trust = "Its certificate is not trusted. In Node, NODE_EXTRA_CA_CERTS names a file with its authority.";
    // A certificate does not become trusted by asking again.
    return unreachable(`${origin} cannot be reached: ${said}`, {
      hint: isUntrusted ? trust : "Is the service running?",
      retryable: !isUntrusted,
      cause: error,
    });
  }
  return answerLost(`the connection to ${origin} was lost before the answer: ${said}`, { cause: error });
}

/**
 * Return the error for a response that is not from the service, but from a proxy or something else.
 *
 * @param {Response} response
 * @param {string} [message]
 */
function explainForeign(response, message) {
  const { status, url } = response;
  const host = url ? new URL(url).host : "the address";
  const said = message ?? `${host} answered with status ${status} and nothing that a Tuplegate service says`;
  // A proxy lost the service, perhaps before and perhaps after the request arrived.
  if ([502, 503, 504].includes(status)) return answerLost(said, { status });
  const location = response.headers.get("location");
  const redirects = location ? `It redirects to ${location}` : "It redirects";
  const hint =
    location || response.type === "opaqueredirect"
      ? `${redirects}, where the token is not sent unasked. Give the address that answers itself.`
      : "Is this the address of a Tuplegate service?";
  return new TuplegateError(said, { code: "foreign_answer", status, hint });
}

/**
 * Return the error of a call that ends after an answer was lost.
 *
 * @param {Call} call
 * @param {TuplegateError} error
 */
function explainDoubt(call, error) {
  const message = `the answer was lost and could not be asked for again: ${error.message}`;
  if (call.repeat === Repeat.KEYED) {
    return outcomeUnknown(message, {
      idempotencyKey: call.headers["Idempotency-Key"],
      hint: "The same call with this idempotencyKey runs at most once.",
      requestId: error.requestId,
      cause: error,
    });
  }
  return call.repeat === Repeat.SEQUENCED && !isLost(error) ? answerLost(message, { cause: error }) : error;
}
