// The rows of an answer, with columns, types and counts.

import { TuplegateError } from "./errors.js";
import { makeConverter } from "./values.js";

/** @typedef {import("../types/index.d.ts").RowMode} RowMode */
/** @typedef {import("../types/index.d.ts").ResultBody} ResultBody */

/**
 * Return the function that makes a row of its JSON array: an object by column name, or the array itself.
 *
 * @param {readonly string[]} columns
 * @param {readonly string[]} types
 * @param {RowMode} rowMode
 * @returns {(row: any[]) => any}
 */
export function makeRowReader(columns, types, rowMode) {
  const convert = makeConverter(types);
  if (rowMode === "arrays") return convert;
  // To assign to a property of that name would set the prototype.
  if (columns.includes("__proto__")) {
    return (row) => Object.fromEntries(convert(row).map((value, index) => [columns[index], value]));
  }
  return (row) => {
    const values = convert(row);
    /** @type {Record<string, unknown>} */
    const made = {};
    for (let i = 0; i < columns.length; i += 1) made[/** @type {string} */ (columns[i])] = values[i];
    return made;
  };
}

/** @template Row */
export class Result {
  /** @type {unknown} */
  #firstValue;

  /**
   * @param {ResultBody} body a result whose rows are arrays
   * @param {RowMode} rowMode
   * @param {number | undefined} rowsMax
   * @param {boolean} replayed
   */
  constructor(body, rowMode, rowsMax, replayed) {
    const arrays = /** @type {any[][]} */ (rowsMax === undefined ? body.rows : body.rows.slice(0, rowsMax));
    this.columns = body.columns;
    this.types = body.types;
    this.affectedRows = body.affected_rows;
    this.truncated = body.truncated === true || arrays.length < body.rows.length;
    this.notices = body.notices ?? [];
    this.timings = body.timings ?? null;
    this.replayed = replayed;
    if (arrays.length === 1) this.#firstValue = makeConverter(this.types.slice(0, 1))([arrays[0]?.[0]])[0];
    /** @type {Row[]} */
    this.rows = arrays.map(makeRowReader(this.columns, this.types, rowMode));
    // Rows that the caller has not limited must not pass for all rows.
    if (this.truncated && (rowsMax === undefined || arrays.length < rowsMax)) {
      console.warn("tuplegate: the answer was too large and its rows were cut; stream() gets all of them");
    }
  }

  [Symbol.iterator]() {
    return this.rows[Symbol.iterator]();
  }

  /** @returns {Row} */
  one() {
    if (this.rows.length !== 1) {
      throw new TuplegateError(`one row was expected, there are ${this.rows.length}`, { code: "not_one_row" });
    }
    return /** @type {Row} */ (this.rows[0]);
  }

  /** @returns {any} */
  value() {
    this.one();
    return this.#firstValue;
  }
}
