// Sends a single statement in the way that suits it, so that a lost answer never makes it write twice.

import { isLost, isSqlError, outcomeUnknown, TuplegateError } from "./errors.js";
import { Repeat } from "./retries.js";

/** @typedef {import("./transport.js").Transport} Transport */
/** @typedef {import("./transport.js").Call} Call */
/** @typedef {import("./transport.js").Answer} Answer */
/** @typedef {import("./retries.js").Course} Course */

/** SQLSTATE of a statement that cannot run inside a transaction block. */
const NO_BLOCK = "25001";
const READ_ONLY = "25006";

/** Return a new Idempotency-Key. */
export function makeKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * Send the call with an Idempotency-Key; it is repeated until its answer is known.
 *
 * @param {Transport} transport
 * @param {Call} call
 * @param {string} key
 * @param {Course} course
 */
export function sendKeyed(transport, call, key, course) {
  const headers = { ...call.headers, "Idempotency-Key": key };
  return transport.call({ ...call, headers, repeat: Repeat.KEYED }, course);
}

/**
 * Send the call with a new key, or without one where the statement cannot run in a transaction block.
 *
 * @param {Transport} transport
 * @param {Call} call
 * @param {Course} course
 */
export async function sendKeyedIfPossible(transport, call, course) {
  try {
    return await sendKeyed(transport, call, makeKey(), course);
  } catch (error) {
    if (!(error instanceof TuplegateError) || error.status !== 400 || error.sqlstate !== NO_BLOCK) throw error;
  }
  // The service has refused it, so nothing was run.
  return sendUnkeyed(transport, call, course);
}

/**
 * Send the call once. After a lost answer the outcome is unknown.
 *
 * @param {Transport} transport
 * @param {Call} call
 * @param {Course} course
 */
export async function sendUnkeyed(transport, call, course) {
  try {
    return await transport.call(call, course);
  } catch (error) {
    throw error instanceof TuplegateError && error.code === "answer_lost" ? explainUnknown(error) : error;
  }
}

/**
 * Send a statement that seems to read; after a lost answer, send the repetition, a read-only transaction.
 *
 * @param {Transport} transport
 * @param {Call} call
 * @param {Call} repetition
 * @param {Course} course
 * @returns {Promise<Answer>}
 */
export async function sendRead(transport, call, repetition, course) {
  let lost;
  try {
    return await transport.call(call, course);
  } catch (error) {
    if (!(error instanceof TuplegateError) || !isLost(error)) throw error;
    lost = error;
  }
  try {
    const answer = await transport.call(repetition, course);
    return { ...answer, body: answer.body.results[0] };
  } catch (error) {
    const isWrite = error instanceof TuplegateError && isSqlError(error) && error.sqlstate === READ_ONLY;
    throw isWrite ? explainUnknown(lost) : error;
  }
}

/** @param {TuplegateError} lost */
function explainUnknown(lost) {
  return outcomeUnknown(`${lost.message}; the statement may have been applied`, { cause: lost });
}
