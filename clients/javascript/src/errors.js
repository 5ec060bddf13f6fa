// The one class of errors, and what tells them apart: `code`, and for SQL `sqlstate`. Pure.

/** @typedef {import("../types/index.d.ts").ErrorFields} ErrorFields */

/** How the service names the reason in the message of an aborted transaction. */
const REASON = /\(reason: (\w+)\)/;

/** Statuses whose errors are about the request, whatever SQLSTATE comes with them. */
const OF_REQUEST = new Set([401, 403, 404, 409, 410, 413, 429, 503]);

export class TuplegateError extends Error {
  /**
   * @param {string} message
   * @param {ErrorFields} fields
   */
  constructor(message, fields) {
    super(message, fields.cause === undefined ? undefined : { cause: fields.cause });
    this.name = "TuplegateError";
    this.code = fields.code;
    this.status = fields.status ?? null;
    this.sqlstate = fields.sqlstate ?? null;
    this.position = fields.position ?? null;
    this.hint = fields.hint ?? null;
    this.detail = fields.detail ?? null;
    this.statement = fields.statement ?? null;
    this.retryable = fields.retryable ?? false;
    this.retryAfterMs = fields.retryAfterMs ?? null;
    this.requestId = fields.requestId ?? null;
    this.idempotencyKey = fields.idempotencyKey ?? null;
    this.transactionId = fields.transactionId ?? null;
    this.reason = fields.reason ?? null;
    /** @type {import("../types/index.d.ts").FailureBody | null} */
    this.answer = fields.answer ?? null;
  }
}

/**
 * Return the error that an answer holds.
 *
 * @param {number} status
 * @param {import("../types/index.d.ts").FailureBody} answer
 * @param {string | null} requestId
 * @param {number | null} retryAfterMs
 */
export function makeError(status, answer, requestId, retryAfterMs) {
  const said = answer.error;
  const message = said.message || `the service answered with status ${status}`;
  return new TuplegateError(message, {
    code: said.code,
    status,
    sqlstate: said.sqlstate,
    position: said.position,
    hint: said.hint,
    detail: said.detail,
    statement: said.statement,
    retryable: said.retryable === true,
    retryAfterMs,
    requestId: answer.request_id ?? requestId,
    transactionId: answer.transaction_id,
    reason: said.code === "transaction_aborted" ? REASON.exec(message)?.[1] : null,
    answer,
  });
}

/**
 * Return the error of a request that found no connection: nothing was sent.
 *
 * @param {string} message
 * @param {Omit<ErrorFields, "code">} fields
 */
export function unreachable(message, fields) {
  return new TuplegateError(message, { code: "unreachable", ...fields });
}

/**
 * Return the error of a request that was sent, at least in part, and had no whole answer.
 *
 * @param {string} message
 * @param {Omit<ErrorFields, "code">} [fields]
 */
export function answerLost(message, fields) {
  return new TuplegateError(message, { code: "answer_lost", ...fields });
}

/**
 * Return the error of a request that may have been applied or not.
 *
 * @param {string} message
 * @param {Omit<ErrorFields, "code">} fields
 */
export function outcomeUnknown(message, fields) {
  return new TuplegateError(message, { code: "outcome_unknown", ...fields });
}

/**
 * Return whether the engine refused the statement: nothing of it was applied.
 *
 * @param {TuplegateError} error
 */
export function isSqlError(error) {
  if (error.code === "outcome_unknown" || error.code === "transaction_aborted") return false;
  if (error.status === null || OF_REQUEST.has(error.status)) return false;
  return error.sqlstate !== null || error.status === 200;
}

/**
 * Return whether the request may have been applied although its answer did not come.
 *
 * @param {TuplegateError} error
 */
export function isLost(error) {
  return error.code === "answer_lost" || error.code === "outcome_unknown";
}
