// Guesses from its first words whether a statement only reads. Pure.
//
// A wrong guess does no harm. A statement that seems to read is sent without an Idempotency-Key, which would slow it
// down, and is repeated in a read-only transaction, where the engine refuses writes. One that seems to write gets a
// key.

const READ_KEYWORDS = new Set(["select", "values", "table", "show", "explain"]);
/** A statement that begins with WITH may write if it has one of these anywhere. */
const WRITE_KEYWORDS = /\b(?:insert|update|delete|merge|into)\b/i;
const BLANK = /[\s;(]/;
const WORD = /[A-Za-z]+/y;
const HINT = "/*+ STREAM */";

/** @param {string} sql */
export function seemsToRead(sql) {
  const keyword = findKeyword(sql);
  return READ_KEYWORDS.has(keyword) || (keyword === "with" && !WRITE_KEYWORDS.test(sql));
}

/**
 * Return the first word of the statement in lower case; empty if it begins with none.
 *
 * @param {string} sql
 */
export function findKeyword(sql) {
  WORD.lastIndex = skipToWord(sql);
  return WORD.exec(sql)?.[0].toLowerCase() ?? "";
}

/** @param {string} sql */
function skipToWord(sql) {
  let at = 0;
  while (at < sql.length) {
    if (BLANK.test(sql.charAt(at))) at += 1;
    else if (sql.startsWith("--", at)) at = endOfLine(sql, at);
    else if (sql.startsWith("/*", at)) {
      const end = sql.indexOf("*/", at + 2);
      // A comment within a comment is not worth the search: the statement gets a key.
      if (end < 0 || sql.slice(at + 2, end).includes("/*")) return sql.length;
      at = end + 2;
    } else return at;
  }
  return at;
}

/**
 * @param {string} sql
 * @param {number} at
 */
function endOfLine(sql, at) {
  const length = sql.slice(at).search(/[\n\r]/);
  return length < 0 ? sql.length : at + length;
}

/**
 * Replace the stream hint by blanks: the called method decides whether the answer is streamed.
 *
 * @param {string} sql
 */
export function dropStreamHint(sql) {
  if (typeof sql !== "string") return sql; // it is refused where it is written
  const start = sql.length - sql.trimStart().length;
  if (!sql.startsWith(HINT, start)) return sql;
  return sql.slice(0, start) + " ".repeat(HINT.length) + sql.slice(start + HINT.length);
}
