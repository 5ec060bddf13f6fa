// The client of the data plane, with calls about the caller's own session and organization.

import { checkUrl } from "./addresses.js";
import { ControlPlane } from "./control.js";
import { makeKey, sendKeyed, sendKeyedIfPossible, sendRead, sendUnkeyed } from "./delivery.js";
import { outcomeUnknown, TuplegateError } from "./errors.js";
import { OpenTransaction, readTransaction, STATEMENT_OPTIONS } from "./open_transaction.js";
import { checkConsistency } from "./positions.js";
import { canRunAgain } from "./progress.js";
import { checkCount, checkOptions, checkTime, writeQueryBody, writeTransactionBody } from "./requests.js";
import { Result } from "./result.js";
import { Course, pause, Repeat } from "./retries.js";
import { dropStreamHint, seemsToRead } from "./statements.js";
import { RowStream } from "./stream.js";
import { Transport } from "./transport.js";

/** @typedef {import("../types/index.d.ts").ClientOptions} ClientOptions */
/** @typedef {import("../types/index.d.ts").QueryOptions} QueryOptions */
/** @typedef {import("../types/index.d.ts").StreamOptions} StreamOptions */
/** @typedef {import("../types/index.d.ts").TransactionOptions} TransactionOptions */
/** @typedef {import("../types/index.d.ts").BeginOptions} BeginOptions */
/** @typedef {import("../types/index.d.ts").RunOptions} RunOptions */
/** @typedef {import("../types/index.d.ts").SessionOptions} SessionOptions */
/** @typedef {import("../types/index.d.ts").CallOptions} CallOptions */
/** @typedef {import("../types/index.d.ts").UsageOptions} UsageOptions */
/** @typedef {import("../types/index.d.ts").Statement} Statement */
/** @typedef {import("../types/index.d.ts").Transaction} Transaction */
/** @typedef {import("../types/index.d.ts").Session} Session */
/** @typedef {import("../types/service.d.ts").SessionRecord} SessionRecord */
/** @typedef {import("../types/service.d.ts").UsageRecord} UsageRecord */
/** @typedef {import("../types/service.d.ts").OwnOrganization} OwnOrganization */
/** @typedef {import("../types/service.d.ts").TransactionState} TransactionState */
/** @typedef {import("./transport.js").Call} Call */

const CLIENT_OPTIONS = ["controlUrl", "database", "timeoutMs", "retries", "consistency", "fetch"];
const QUERY_OPTIONS = [...STATEMENT_OPTIONS, "idempotent", "idempotencyKey", "consistency"];
const STREAM_OPTIONS = [...STATEMENT_OPTIONS, "consistency"];
const OUTCOME_OPTIONS = ["idempotencyKey", "transactionId", "consistency"];
const TRANSACTION_OPTIONS = ["readOnly", "timeoutMs", "rowMode", "signal", ...OUTCOME_OPTIONS];
const BEGIN_OPTIONS = ["readOnly", "timeoutMs", "idleTimeoutMs", "signal"];

export class Client {
  #transport;
  #control;
  #timeoutMs;
  #consistency;
  /** @type {Record<string, string>} */
  #headers;

  /**
   * @param {string} url
   * @param {string} token
   * @param {ClientOptions} [options]
   */
  constructor(url, token, options = {}) {
    checkOptions(options, CLIENT_OPTIONS);
    this.url = checkUrl(url);
    if (typeof token !== "string" || token === "") {
      throw new TypeError("there is no token: give an API key or the token of a session as the second argument");
    }
    if (!/^[!-~]+$/.test(token)) throw new TypeError("the token has characters that no token has");
    this.#timeoutMs = checkTime("timeoutMs", options.timeoutMs ?? 60_000);
    this.#consistency = checkConsistency(options.consistency);
    this.#headers = options.database === undefined ? {} : { "Tuplegate-Database": options.database };
    // Looked up with each request, so that whoever replaces the global one is heard.
    const fetch = options.fetch ?? ((resource, init) => globalThis.fetch(resource, init));
    this.#transport = new Transport(token, checkCount("retries", options.retries ?? 5, 0), fetch);
    const controlUrl = options.controlUrl === undefined ? undefined : checkUrl(options.controlUrl);
    this.#control = new ControlPlane(this.#transport, this.url, controlUrl, this.#timeoutMs);
  }

  // -- statements

  /**
   * @param {string} sql
   * @param {readonly unknown[]} [params]
   * @param {QueryOptions} [options]
   * @returns {Promise<Result<any>>}
   */
  async query(sql, params = [], options = {}) {
    checkOptions(options, QUERY_OPTIONS);
    const { maxRows, rowMode = "objects", idempotent = true, idempotencyKey } = options;
    const timeoutMs = this.#chooseTime(options.timeoutMs);
    const transport = this.#transport;
    const course = transport.startCourse(timeoutMs);
    const statement = dropStreamHint(sql);
    const body = writeQueryBody(statement, params, timeoutMs, maxRows);
    const call = this.#makeCall("POST", "/v1/query", body, this.#readHeaders(options.consistency), options.signal);
    let answer;
    if (idempotencyKey !== undefined) {
      answer = await sendKeyed(transport, call, idempotencyKey, course);
    } else if (seemsToRead(statement)) {
      const again = writeTransactionBody([{ sql: statement, params }], timeoutMs, true);
      const repetition = { ...call, url: `${this.url}/v1/transaction`, body: again, repeat: Repeat.HARMLESS };
      answer = await sendRead(transport, call, repetition, course);
    } else if (idempotent) {
      answer = await sendKeyedIfPossible(transport, call, course);
    } else {
      answer = await sendUnkeyed(transport, call, course);
    }
    return new Result(answer.body, rowMode, maxRows, answer.replayed);
  }

  /**
   * @param {string} sql
   * @param {readonly unknown[]} [params]
   * @param {StreamOptions} [options]
   * @returns {RowStream<any>}
   */
  stream(sql, params = [], options = {}) {
    checkOptions(options, STREAM_OPTIONS);
    const { maxRows, rowMode = "objects", signal } = options;
    const timeoutMs = this.#chooseTime(options.timeoutMs);
    const headers = { ...this.#readHeaders(options.consistency), Accept: "application/x-ndjson" };
    const body = writeQueryBody(sql, params, timeoutMs, maxRows);
    const call = this.#makeCall("POST", "/v1/query", body, headers, signal);
    const transport = this.#transport;
    return new RowStream(
      {
        start: () => transport.open(call, transport.startCourse(timeoutMs)),
        signal,
        notePosition: (position) => transport.positions.note(position),
      },
      rowMode,
    );
  }

  /**
   * @param {readonly Statement[]} statements
   * @param {TransactionOptions} [options]
   * @returns {Promise<Transaction>}
   */
  async transaction(statements, options = {}) {
    checkOptions(options, TRANSACTION_OPTIONS);
    const { readOnly = false, rowMode = "objects", idempotencyKey, transactionId } = options;
    const timeoutMs = this.#chooseTime(options.timeoutMs);
    const headers = this.#readHeaders(options.consistency);
    /** @type {import("./retries.js").Repeat} */
    let repeat = readOnly ? Repeat.HARMLESS : Repeat.KEYED;
    if (transactionId !== undefined) {
      if (idempotencyKey !== undefined) throw new TypeError("give transactionId or idempotencyKey, not both");
      headers["Tuplegate-Transaction-Id"] = transactionId;
      repeat = Repeat.NEVER;
    } else if (!readOnly || idempotencyKey !== undefined) {
      headers["Idempotency-Key"] = idempotencyKey ?? makeKey();
    }
    const body = writeTransactionBody(statements, timeoutMs, readOnly);
    const call = { ...this.#makeCall("POST", "/v1/transaction", body, headers, options.signal), repeat };
    try {
      const answer = await this.#transport.call(call, this.#transport.startCourse(timeoutMs));
      return readTransaction(answer, rowMode);
    } catch (error) {
      const isLost = error instanceof TuplegateError && error.code === "answer_lost";
      if (!isLost || transactionId === undefined) throw error;
      const message = `${error.message}; ${transactionId} may have been committed`;
      throw outcomeUnknown(message, { transactionId, cause: error });
    }
  }

  // -- open transactions

  /** @param {BeginOptions} [options] */
  begin(options = {}) {
    checkOptions(options, BEGIN_OPTIONS);
    const { readOnly = false, idleTimeoutMs, signal } = options;
    return new OpenTransaction(this.#transport, {
      url: this.url,
      headers: this.#headers,
      readOnly,
      timeoutMs: this.#chooseTime(options.timeoutMs),
      idleTimeoutMs: idleTimeoutMs === undefined ? undefined : checkTime("idleTimeoutMs", idleTimeoutMs),
      callTimeoutMs: this.#timeoutMs,
      signal,
    });
  }

  /**
   * @template T
   * @param {(transaction: OpenTransaction) => Promise<T> | T} work
   * @param {RunOptions} [options]
   * @returns {Promise<T>}
   */
  async run(work, options = {}) {
    checkOptions(options, [...BEGIN_OPTIONS, "attempts"]);
    const { attempts = 5, ...opening } = options;
    const course = new Course(Infinity, checkCount("attempts", attempts, 1) - 1);
    for (;;) {
      const opened = this.begin(opening);
      try {
        const made = await work(opened);
        if (["new", "open", "failed"].includes(opened.state)) await opened.commit();
        return made;
      } catch (error) {
        await opened.giveUp();
        if (!(error instanceof TuplegateError) || !canRunAgain(error)) throw error;
        const pauseMs = course.pauseMs(error, performance.now(), Math.random());
        if (pauseMs === null) throw error;
        await pause(pauseMs, options.signal);
      }
    }
  }

  /**
   * @param {string} id
   * @param {CallOptions} [options]
   * @returns {Promise<TransactionState["state"]>}
   */
  async transactionState(id, options = {}) {
    return (await this.#ask("GET", `/v1/transaction/${encodeURIComponent(id)}`, options)).state;
  }

  /**
   * @param {string} id
   * @param {CallOptions} [options]
   * @returns {Promise<TransactionState["state"]>}
   */
  async abortTransaction(id, options = {}) {
    // Aborting twice is the same as once.
    return (await this.#ask("POST", `/v1/transaction/${encodeURIComponent(id)}/abort`, options)).state;
  }

  // -- who is asking

  /**
   * @param {SessionOptions} [options]
   * @returns {Promise<Session>}
   */
  async createSession(options = {}) {
    checkOptions(options, ["scopes", "database", "expiresIn", "signal"]);
    const { scopes, database, expiresIn: expires_in, signal } = options;
    const opened = await this.#control.send("POST", "/v1/session", { scopes, database, expires_in }, signal);
    return { ...opened.session, token: opened.token };
  }

  /**
   * @param {CallOptions} [options]
   * @returns {Promise<SessionRecord>}
   */
  async whoAmI(options = {}) {
    checkOptions(options, ["signal"]);
    return (await this.#control.get("/v1/session", options.signal)).session;
  }

  /**
   * @param {CallOptions} [options]
   * @returns {Promise<SessionRecord>}
   */
  async refreshSession(options = {}) {
    checkOptions(options, ["signal"]);
    return (await this.#control.send("POST", "/v1/session/refresh", null, options.signal)).session;
  }

  /**
   * @param {CallOptions} [options]
   * @returns {Promise<void>}
   */
  async endSession(options = {}) {
    checkOptions(options, ["signal"]);
    await this.#control.send("DELETE", "/v1/session", null, options.signal);
  }

  /**
   * @param {CallOptions} [options]
   * @returns {Promise<OwnOrganization>}
   */
  async organization(options = {}) {
    checkOptions(options, ["signal"]);
    return this.#control.get("/v1/organization", options.signal);
  }

  /**
   * @param {UsageOptions} [options]
   * @returns {Promise<UsageRecord[]>}
   */
  async usage(options = {}) {
    checkOptions(options, ["since", "until", "signal"]);
    const { since, until, signal } = options;
    return this.#control.list("/v1/usage", { since: since?.toISOString(), until: until?.toISOString() }, signal);
  }

  // -- requests

  /**
   * @param {string} method
   * @param {string} path
   * @param {CallOptions} options
   */
  async #ask(method, path, options) {
    checkOptions(options, ["signal"]);
    const call = this.#makeCall(method, path, null, this.#headers, options.signal);
    const course = this.#transport.startCourse(this.#timeoutMs);
    return (await this.#transport.call({ ...call, repeat: Repeat.HARMLESS }, course)).body;
  }

  /**
   * @param {string} method
   * @param {string} path
   * @param {string | null} body
   * @param {Record<string, string>} headers
   * @param {AbortSignal | undefined} signal
   * @returns {Call}
   */
  #makeCall(method, path, body, headers, signal) {
    return { method, url: this.url + path, body, headers, repeat: Repeat.NEVER, signal };
  }

  /**
   * Return the headers of a request that a replica may answer.
   *
   * @param {import("../types/index.d.ts").Consistency | undefined} given
   */
  #readHeaders(given) {
    const consistency = checkConsistency(given) ?? this.#consistency;
    return { ...this.#headers, ...this.#transport.positions.headers(consistency) };
  }

  /** @param {number | undefined} given */
  #chooseTime(given) {
    return given === undefined ? this.#timeoutMs : checkTime("timeoutMs", given);
  }
}
