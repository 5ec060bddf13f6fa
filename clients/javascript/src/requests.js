// Writes the bodies of requests as JSON text, once, so that a repetition sends the same bytes. Checks options. Pure.

import { writeParams } from "./values.js";

/** @typedef {import("../types/index.d.ts").Statement} Statement */

const TIMEOUT_MS_MAX = 86_400_000;
// Rows come as arrays, so that no column is lost, and numbers that a double could not hold as strings.
const SHAPE = '"row_mode":"arrays","big_numbers":"string"';

/**
 * @param {string} sql
 * @param {unknown} params
 * @param {number} timeoutMs
 * @param {number | undefined} maxRows
 */
export function writeQueryBody(sql, params, timeoutMs, maxRows) {
  const bound = maxRows === undefined ? "" : `"max_rows":${checkCount("maxRows", maxRows, 0)},`;
  return `{${writeSql(sql, params)},${bound}${writeTimeout("timeout_ms", timeoutMs)},${SHAPE}}`;
}

/**
 * @param {readonly Statement[]} statements
 * @param {number} timeoutMs
 * @param {boolean} readOnly
 */
export function writeTransactionBody(statements, timeoutMs, readOnly) {
  if (!Array.isArray(statements)) {
    throw new TypeError("statements is an array: of SQL, or of { sql, params }");
  }
  const written = statements.map(writeStatement).join(",");
  return `{"statements":[${written}],"read_only":${readOnly},${writeTimeout("timeout_ms", timeoutMs)},${SHAPE}}`;
}

/**
 * Write the body that begins an open transaction; `timeoutMs` is for all of it.
 *
 * @param {Statement | undefined} first
 * @param {number} timeoutMs
 * @param {number | undefined} idleTimeoutMs
 * @param {boolean} readOnly
 */
export function writeBeginBody(first, timeoutMs, idleTimeoutMs, readOnly) {
  const statement = first === undefined ? "" : `"statement":${writeStatement(first)},`;
  const idle = idleTimeoutMs === undefined ? "" : `${writeTimeout("idle_timeout_ms", idleTimeoutMs)},`;
  return `{${statement}${idle}"read_only":${readOnly},${writeTimeout("timeout_ms", timeoutMs)},${SHAPE}}`;
}

/**
 * @param {Statement | undefined} last
 * @param {number} timeoutMs
 */
export function writeCommitBody(last, timeoutMs) {
  const statement = last === undefined ? "" : `"statement":${writeStatement(last)},`;
  return `{${statement}${writeTimeout("timeout_ms", timeoutMs)},${SHAPE}}`;
}

/**
 * Add its sequence within the transaction to the body of a request.
 *
 * @param {string} body
 * @param {number} sequence
 */
export function addSequence(body, sequence) {
  return `{"sequence":${sequence},${body.slice(1)}`;
}

/** @param {Statement} statement */
function writeStatement(statement) {
  if (typeof statement === "string") return JSON.stringify(statement);
  if (typeof statement !== "object" || statement === null) {
    throw new TypeError("a statement is SQL, or { sql, params }");
  }
  return `{${writeSql(statement.sql, statement.params ?? [])}}`;
}

/**
 * @param {unknown} sql
 * @param {unknown} params
 */
function writeSql(sql, params) {
  if (typeof sql !== "string") throw new TypeError(`sql is a string, not a value of type ${typeof sql}`);
  return `"sql":${JSON.stringify(sql)},"params":${writeParams(params)}`;
}

/**
 * @param {string} name
 * @param {number} timeoutMs
 */
function writeTimeout(name, timeoutMs) {
  return `"${name}":${Math.min(Math.max(Math.trunc(timeoutMs), 1), TIMEOUT_MS_MAX)}`;
}

/**
 * Return the whole number, if it is one.
 *
 * @param {string} name
 * @param {unknown} given
 * @param {number} least
 */
export function checkCount(name, given, least) {
  if (!Number.isSafeInteger(given) || Number(given) < least) {
    throw new TypeError(`${name} is ${String(given)}: it is a whole number, at least ${least}`);
  }
  return Number(given);
}

/**
 * Return the time, if it is one.
 *
 * @param {string} name
 * @param {unknown} given
 */
export function checkTime(name, given) {
  if (typeof given !== "number" || !(given > 0)) {
    throw new TypeError(`${name} is ${String(given)}: it is a number of milliseconds, more than 0`);
  }
  return given;
}

/**
 * Refuse options that the call does not know: a misspelt one must not be left out silently.
 *
 * @param {object} options
 * @param {readonly string[]} known
 */
export function checkOptions(options, known) {
  if (typeof options !== "object" || options === null) {
    throw new TypeError(`the options are an object with some of ${known.join(", ")}`);
  }
  for (const name of Object.keys(options)) {
    if (!known.includes(name)) throw new TypeError(`there is no option ${name}; there are ${known.join(", ")}`);
  }
}
