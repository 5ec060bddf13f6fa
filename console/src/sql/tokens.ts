/** SQL cut into tokens, as far as the page has to know it: where texts, comments and statements begin and end. */

export type TokenKind = "space" | "comment" | "string" | "quoted" | "word" | "number" | "param" | "mark";

export interface Token {
  kind: TokenKind;
  text: string;
  from: number;
}

const DOLLAR = /\$(?:[A-Za-z_\u0080-\uffff][\w\u0080-\uffff]*)?\$/y;
/** Texts go on behind a line's end: what is between their parts. */
const BETWEEN = String.raw`[ \t\f\v]*(?:--[^\n\r]*)?[\n\r](?:\s|--[^\n\r]*[\n\r])*`;
const ESCAPED = String.raw`'(?:[^'\\]|\\[\s\S]|'')*(?:'|$)`;
const LITERAL = String.raw`'(?:[^']|'')*(?:'|$)`;
const PATTERNS: [TokenKind, RegExp][] = [
  ["space", /\s+/y],
  ["comment", /--[^\n]*/y],
  ["string", new RegExp(`[eE]${ESCAPED}(?:${BETWEEN}${ESCAPED})*`, "y")],
  ["string", new RegExp(`(?:[uU]&|[bBxXnN])?${LITERAL}(?:${BETWEEN}${LITERAL})*`, "y")],
  ["quoted", /(?:[uU]&)?"(?:[^"]|"")*(?:"|$)/y],
  ["param", /\$\d+/y],
  ["number", /\d[\w.]*|\.\d+/y],
  ["word", /[A-Za-z_\u0080-\uffff][\w$\u0080-\uffff]*/y],
  ["mark", /::|<=|>=|<>|!=|->>|->|#>>|#>|@>|<@|\|\||[\s\S]/y],
];

export function tokenize(sql: string): Token[] {
  const tokens: Token[] = [];
  for (let at = 0; at < sql.length;) {
    const token = readToken(sql, at);
    tokens.push(token);
    at += token.text.length;
  }
  return tokens;
}

function readToken(sql: string, from: number): Token {
  if (sql.startsWith("/*", from)) return { kind: "comment", text: sql.slice(from, endOfComment(sql, from)), from };
  DOLLAR.lastIndex = from;
  const tag = DOLLAR.exec(sql)?.[0];
  if (tag) {
    const end = sql.indexOf(tag, from + tag.length);
    return { kind: "string", text: sql.slice(from, end < 0 ? sql.length : end + tag.length), from };
  }
  for (const [kind, pattern] of PATTERNS) {
    pattern.lastIndex = from;
    const text = pattern.exec(sql)?.[0];
    if (text) return { kind, text, from };
  }
  return { kind: "mark", text: sql[from]!, from };
}

function endOfComment(sql: string, from: number): number {
  let depth = 0;
  const edges = /\/\*|\*\//g;
  edges.lastIndex = from;
  for (let edge = edges.exec(sql); edge; edge = edges.exec(sql)) {
    depth += edge[0] === "/*" ? 1 : -1;
    if (depth === 0) return edges.lastIndex;
  }
  return sql.length;
}

export interface Part {
  /** The statement without white space around it and without its semicolon. */
  sql: string;
  from: number;
  to: number;
  /** Parameters it has: the highest number of `$n`. */
  params: number;
}

/** Cut a text into its statements. A semicolon within BEGIN ATOMIC … END ends none. */
export function splitStatements(sql: string): Part[] {
  const parts: Part[] = [];
  let first: Token | null = null;
  let end = 0;
  let params = 0;
  let atomic = 0;
  let before = "";
  const close = () => {
    if (first) parts.push({ sql: sql.slice(first.from, end), from: first.from, to: end, params });
    first = null;
    params = 0;
    atomic = 0;
  };
  for (const token of tokenize(sql)) {
    if (token.kind === "space" || (token.kind === "comment" && !first)) continue;
    if (token.kind === "mark" && token.text === ";" && atomic === 0) {
      close();
      continue;
    }
    first ??= token;
    if (token.kind !== "comment") end = token.from + token.text.length;
    if (token.kind === "param") params = Math.max(params, Number(token.text.slice(1)));
    if (token.kind === "word") {
      const word = token.text.toLowerCase();
      if (word === "atomic" && before === "begin") atomic += 1;
      else if (atomic > 0 && word === "case") atomic += 1;
      else if (atomic > 0 && word === "end") atomic -= 1;
      before = word;
    }
  }
  close();
  return parts;
}

/** Return the statement at a place: the one it is in, or just behind. */
export function statementAt(sql: string, place: number): Part | null {
  const parts = splitStatements(sql);
  let found: Part | null = null;
  for (const part of parts) {
    if (part.from > place) {
      // Between two statements the one before counts, unless the place is on the line of the next.
      const isNextLine = sql.slice(place, part.from).includes("\n");
      return found && (isNextLine || place <= found.to + 1) ? found : part;
    }
    found = part;
  }
  return found;
}

/** Turn a position of the engine, which counts characters from 1, into an index of the text. */
export function indexOfPosition(sql: string, position: number): number {
  let index = 0;
  for (let counted = 1; counted < position && index < sql.length; counted++) {
    index += sql.codePointAt(index)! > 0xffff ? 2 : 1;
  }
  return index;
}

const READS = new Set(["select", "table", "values", "show", "explain"]);

/** Return whether a statement reads, as far as its words tell: a function that it calls may still write. */
export function isRead(sql: string): boolean {
  const words = tokenize(sql).filter((token) => token.kind === "word");
  const isInto = words.some((word) => word.text.toLowerCase() === "into");
  return READS.has(words[0]?.text.toLowerCase() ?? "") && !isInto;
}
