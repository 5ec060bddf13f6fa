/** SQL written anew: a line for each clause, lists indented, words in lower case. Nothing but white space and the case of
 * keywords changes. */
import { type Token, tokenize } from "./tokens";

const CLAUSES = new Set([
  "select",
  "from",
  "where",
  "having",
  "limit",
  "offset",
  "values",
  "set",
  "returning",
  "window",
  "union",
  "intersect",
  "except",
  "with",
]);
const TWO_WORDS =
  /^(group|order) by$|^(left|right|full|inner|cross|natural) (outer )?join$|^insert into$|^delete from$|^on conflict$|^partition by$/;
const JOINS = new Set(["join", "left", "right", "full", "inner", "cross", "natural"]);
const KEYWORDS = new Set(
  (
    "select from where having limit offset values set returning window union intersect except with all group order by left right full inner cross " +
    "natural outer join insert into update delete on conflict do nothing as and or not in is null like ilike between exists case when then else end " +
    "asc desc nulls first last distinct create table view index primary key references default unique check constraint alter drop add column " +
    "cascade using over partition rows range recursive lateral true false if begin commit explain analyze"
  ).split(" "),
);
const BREAK_LISTS_OVER = 60;

interface Frame {
  /** Indent of the clauses within these brackets. */
  indent: number;
  isQuery: boolean;
  clause: string;
  breaks: boolean;
}

export function formatSql(sql: string): string {
  const tokens = tokenize(sql);
  return new Writer(tokens).write();
}

class Writer {
  #tokens: Token[];
  #text = "";
  #frames: Frame[] = [{ indent: 0, isQuery: true, clause: "", breaks: true }];
  #betweens = 0;

  constructor(tokens: Token[]) {
    this.#tokens = tokens;
  }

  write(): string {
    let hadSpace = false;
    this.#tokens.forEach((token, at) => {
      if (token.kind === "space") {
        hadSpace = true;
        return;
      }
      this.#token(token, at, hadSpace);
      hadSpace = false;
    });
    return (
      this.#text
        .replace(/[ \t]+$/gm, "")
        .replace(/\n{3,}/g, "\n\n")
        .trim() + "\n"
    );
  }

  get #frame(): Frame {
    return this.#frames.at(-1)!;
  }

  #token(token: Token, at: number, hadSpace: boolean): void {
    if (token.kind === "comment") return this.#comment(token, at);
    if (token.kind === "word") return this.#word(token, at, hadSpace);
    if (token.text === "(") return this.#open(at, hadSpace);
    if (token.text === ")") return this.#close();
    if (token.text === ",") {
      this.#text = this.#text.trimEnd() + ",";
      if (this.#frame.breaks && ["select", "set", "values", "with"].includes(this.#frame.clause))
        this.#line(this.#frame.indent + 1);
      else this.#text += " ";
      return;
    }
    if (token.text === ";") {
      this.#text = this.#text.trimEnd() + ";\n\n";
      this.#frames = [{ indent: 0, isQuery: true, clause: "", breaks: true }];
      return;
    }
    this.#put(token.text, hadSpace);
  }

  #comment(token: Token, at: number): void {
    const before = this.#tokens[at - 1];
    const ownLine = !before || (before.kind === "space" && before.text.includes("\n"));
    if (ownLine && this.#text.trim()) this.#line(this.#frame.indent);
    else if (this.#text && !/\s$/.test(this.#text)) this.#text += " ";
    this.#text += token.text;
    if (token.text.startsWith("--") || ownLine) this.#line(this.#frame.indent);
    else this.#text += " ";
  }

  #word(token: Token, at: number, hadSpace: boolean): void {
    const word = token.text.toLowerCase();
    const isKeyword = KEYWORDS.has(word) && this.#tokens[at - 1]?.text !== ".";
    const two = `${word} ${this.#nextWord(at)}`;
    const three = `${two} ${this.#nextWord(at, 2)}`;
    const startsTwo = TWO_WORDS.test(two) || TWO_WORDS.test(three);
    const follows = this.#frame.clause;
    if (isKeyword && this.#frame.isQuery && word === "between") this.#betweens += 1;
    if (
      isKeyword &&
      this.#frame.isQuery &&
      (CLAUSES.has(word) || startsTwo || (JOINS.has(word) && !this.#isWithinJoin()))
    ) {
      if (
        this.#text.trim() &&
        !/\n\s*$/.test(this.#text) &&
        !(word === "from" && /\b(delete|distinct)\s*$/i.test(this.#text))
      )
        this.#line(this.#frame.indent);
      this.#frame.clause = word;
      if (word === "select") this.#frame.breaks = this.#isLong(at);
    } else if (
      isKeyword &&
      this.#frame.isQuery &&
      (word === "and" || word === "or") &&
      ["where", "having", "join", "on", "left", "right", "inner"].includes(follows)
    ) {
      if (word === "and" && this.#betweens > 0) this.#betweens -= 1;
      else this.#line(this.#frame.indent + 1);
    }
    this.#put(isKeyword ? word : token.text, hadSpace);
    if (
      word === "select" &&
      isKeyword &&
      this.#frame.breaks &&
      this.#frame.isQuery &&
      this.#nextWord(at) !== "distinct"
    )
      this.#line(this.#frame.indent + 1);
  }

  #isWithinJoin(): boolean {
    return /\b(left|right|full|inner|cross|natural|outer)\s*$/i.test(this.#text);
  }

  #open(at: number, hadSpace: boolean): void {
    const isQuery = ["select", "with", "values"].includes(this.#nextWord(at));
    this.#put("(", hadSpace);
    const indent = isQuery ? this.#lineIndent() + 1 : this.#frame.indent;
    this.#frames.push({ indent, isQuery, clause: "", breaks: false });
    if (isQuery) this.#line(indent);
  }

  #close(): void {
    const frame = this.#frame;
    if (this.#frames.length > 1) this.#frames.pop();
    if (frame.isQuery) this.#line(frame.indent - 1);
    this.#text = frame.isQuery ? this.#text : this.#text.trimEnd();
    this.#text += ")";
  }

  #lineIndent(): number {
    const line = this.#text.slice(this.#text.lastIndexOf("\n") + 1);
    return (line.length - line.trimStart().length) / 2;
  }

  /** Return whether the list of a SELECT is too long for its line. */
  #isLong(at: number): boolean {
    let length = 0;
    let depth = 0;
    let commas = 0;
    for (const token of this.#tokens.slice(at + 1)) {
      if (token.text === "(") depth += 1;
      if (token.text === ")" && --depth < 0) break;
      if (depth === 0 && (token.text === ";" || (token.kind === "word" && token.text.toLowerCase() === "from"))) break;
      if (depth === 0 && token.text === ",") commas += 1;
      length += token.kind === "space" ? 1 : token.text.length;
    }
    return commas > 0 && length > BREAK_LISTS_OVER;
  }

  #nextWord(at: number, skip = 1): string {
    let left = skip;
    for (const token of this.#tokens.slice(at + 1, at + 8)) {
      if (token.kind === "space" || token.kind === "comment") continue;
      left -= 1;
      if (left === 0) return token.kind === "word" ? token.text.toLowerCase() : "";
    }
    return "";
  }

  #put(text: string, hadSpace: boolean): void {
    if (hadSpace && this.#text && !/[\s(]$/.test(this.#text)) this.#text += " ";
    this.#text += text;
  }

  #line(indent: number): void {
    this.#text = `${this.#text.trimEnd()}\n${"  ".repeat(indent)}`;
  }
}
