// Converts values both ways: JSON of an answer to JavaScript by column type, and parameters to JSON. Pure.
//
// The client requests int8 and numeric as strings, so that no digit is lost. What no JavaScript type holds exactly
// stays text: numeric, dates and times with their microseconds, intervals.

/** @typedef {(value: any) => any} Convert */

/** @type {Record<string, Convert>} */
const CONVERTERS = { int8: readInteger, float4: Number, float8: Number, bytea: readBytes };

/** @param {string} text */
function readInteger(text) {
  const number = Number(text);
  return Number.isSafeInteger(number) ? number : BigInt(text);
}

/** @param {string} text `\x` and two digits for each byte */
function readBytes(text) {
  const bytes = new Uint8Array((text.length - 2) / 2);
  for (let i = 0; i < bytes.length; i += 1) bytes[i] = Number.parseInt(text.slice(2 * i + 2, 2 * i + 4), 16);
  return bytes;
}

/**
 * Return the function that converts JSON values of this type; undefined if they need no conversion.
 *
 * @param {string} type
 * @returns {Convert | undefined}
 */
function findConverter(type) {
  const element = type.endsWith("[]") ? type.slice(0, -2) : type;
  const convert = Object.hasOwn(CONVERTERS, element) ? CONVERTERS[element] : undefined;
  if (convert === undefined || element === type) return convert;
  /** @type {Convert} */
  const convertPart = (part) =>
    part === null ? null : Array.isArray(part) ? part.map(convertPart) : convert(part);
  return convertPart;
}

/**
 * Return the function that converts a row, a JSON array, in place.
 *
 * @param {readonly string[]} types
 * @returns {(row: any[]) => any[]}
 */
export function makeConverter(types) {
  /** @type {[number, Convert][]} */
  const converters = [];
  types.forEach((type, index) => {
    const convert = findConverter(type);
    if (convert !== undefined) converters.push([index, convert]);
  });
  return (row) => {
    for (const [index, convert] of converters) {
      if (row[index] !== null) row[index] = convert(row[index]);
    }
    return row;
  };
}

/**
 * Return the parameters as a JSON array.
 *
 * @param {unknown} params
 */
export function writeParams(params) {
  if (!Array.isArray(params)) {
    throw new TypeError(
      "params is an array of values, one for each placeholder $1, $2, …;" +
        ` it is ${describe(params)}. A single value is given as [value].`,
    );
  }
  return `[${Array.from(params, (value, index) => writeParam(value, index + 1)).join(",")}]`;
}

/**
 * @param {unknown} value
 * @param {number} number
 */
function writeParam(value, number) {
  try {
    return write(value);
  } catch (error) {
    throw error instanceof TypeError ? new TypeError(`parameter $${number}: ${error.message}`) : error;
  }
}

/**
 * Return the value as JSON. Infinities and NaN are strings, which the engine reads.
 *
 * @param {unknown} value
 * @returns {string}
 */
function write(value) {
  switch (typeof value) {
    case "string":
    case "boolean":
      return JSON.stringify(value);
    case "number":
      if (!Number.isFinite(value)) return `"${value}"`;
      return Object.is(value, -0) ? "-0" : String(value);
    case "bigint":
      return String(value);
    case "object":
      return value === null ? "null" : writeObject(value);
    default:
      throw new TypeError(`${describe(value)} cannot be sent; NULL is null`);
  }
}

/**
 * @param {any} value
 * @returns {string}
 */
function writeObject(value) {
  if (value instanceof Date) return writeDate(value);
  if (value instanceof Uint8Array || value instanceof DataView) return writeBytes(value);
  if (value instanceof ArrayBuffer) return writeBytes(new Uint8Array(value));
  if (Array.isArray(value) || ArrayBuffer.isView(value)) {
    return `[${Array.from(/** @type {Iterable<unknown>} */ (value), write).join(",")}]`;
  }
  if (typeof value.toJSON === "function") return write(value.toJSON());
  const kind = Object.getPrototypeOf(value);
  // A Map or a class of the caller's own would silently become {}.
  if (kind !== null && Object.getPrototypeOf(kind) !== null) {
    throw new TypeError(`${describe(value)} cannot be sent; convert it to text, a number, an array or a plain object`);
  }
  const parts = [];
  for (const [name, part] of Object.entries(value)) {
    if (part !== undefined) parts.push(`${JSON.stringify(name)}:${write(part)}`);
  }
  return `{${parts.join(",")}}`;
}

/** @param {Date} date */
function writeDate(date) {
  if (Number.isNaN(date.getTime())) throw new TypeError("the Date is invalid");
  return `"${date.toISOString()}"`;
}

/** @param {Uint8Array | DataView} view */
function writeBytes(view) {
  const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
  return `"\\\\x${Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")}"`;
}

/** @param {any} value */
function describe(value) {
  if (value === null || value === undefined) return String(value);
  if (typeof value !== "object") return `a ${typeof value}`;
  return `of the class ${value.constructor?.name ?? "Object"}`;
}
