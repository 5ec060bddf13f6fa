// Sends requests to the control plane. A change is not repeated after a lost answer.

import { readControlUrl } from "./addresses.js";
import { outcomeUnknown, TuplegateError } from "./errors.js";
import { Repeat } from "./retries.js";

/** @typedef {import("./transport.js").Transport} Transport */

const PAGE = 100;

export class ControlPlane {
  #transport;
  #dataUrl;
  #timeoutMs;
  /** @type {Promise<string> | null} */
  #url;

  /**
   * @param {Transport} transport
   * @param {string} dataUrl
   * @param {string | undefined} given without it, the service is asked for the address once
   * @param {number} timeoutMs
   */
  constructor(transport, dataUrl, given, timeoutMs) {
    this.#transport = transport;
    this.#dataUrl = dataUrl;
    this.#timeoutMs = timeoutMs;
    this.#url = given === undefined ? null : Promise.resolve(given);
  }

  /** Return the address of the control plane. */
  async findUrl() {
    this.#url ??= this.#askUrl();
    try {
      return await this.#url;
    } catch (error) {
      this.#url = null; // the next call asks again
      throw error;
    }
  }

  async #askUrl() {
    const banner = await this.#ask(`${this.#dataUrl}/`, undefined);
    return readControlUrl(banner, this.#dataUrl);
  }

  /**
   * @param {string} path
   * @param {AbortSignal | undefined} signal
   * @returns {Promise<any>}
   */
  async get(path, signal) {
    return this.#ask((await this.findUrl()) + path, signal);
  }

  /**
   * @param {string} method
   * @param {string} path
   * @param {object | null} body
   * @param {AbortSignal | undefined} signal
   * @returns {Promise<any>}
   */
  async send(method, path, body, signal) {
    const url = (await this.findUrl()) + path;
    const written = body === null ? null : JSON.stringify(body);
    const call = { method, url, body: written, headers: {}, repeat: Repeat.NEVER, signal };
    try {
      return (await this.#transport.call(call, this.#transport.startCourse(this.#timeoutMs))).body;
    } catch (error) {
      if (!(error instanceof TuplegateError) || error.code !== "answer_lost") throw error;
      throw outcomeUnknown(`${error.message}; it may have been done`, { cause: error });
    }
  }

  /**
   * Return the items of all pages.
   *
   * @param {string} path
   * @param {Record<string, string | undefined>} asked
   * @param {AbortSignal | undefined} signal
   * @returns {Promise<any[]>}
   */
  async list(path, asked, signal) {
    const items = [];
    const query = new URLSearchParams({ limit: String(PAGE) });
    for (const [name, value] of Object.entries(asked)) if (value !== undefined) query.set(name, value);
    for (;;) {
      const page = await this.get(`${path}?${query}`, signal);
      items.push(...page.items);
      if (!page.next_cursor) return items;
      query.set("cursor", page.next_cursor);
    }
  }

  /**
   * @param {string} url
   * @param {AbortSignal | undefined} signal
   */
  async #ask(url, signal) {
    const call = { method: "GET", url, body: null, headers: {}, repeat: Repeat.HARMLESS, signal };
    return (await this.#transport.call(call, this.#transport.startCourse(this.#timeoutMs))).body;
  }
}
