/** JSON as the text that came: JavaScript's own numbers would lose digits, and its objects the order of their keys. */

export class Json {
  readonly text: string;

  constructor(text: string) {
    this.text = text;
  }
}

/** Take a text as JSON where it is such. */
export function asJson(text: string): Json | string {
  try {
    JSON.parse(text);
    return new Json(text);
  } catch {
    return text;
  }
}

export interface JsonParts {
  /** The names in an object, as they are without quotes; null for a list. */
  names: string[] | null;
  /** The values, each as its text. */
  items: string[];
}

/** Split a list or an object into its parts; null where the text is neither. The text must be valid JSON. */
export function splitJson(text: string): JsonParts | null {
  let at = skipSpace(text, 0);
  const isObject = text[at] === "{";
  if (!isObject && text[at] !== "[") return null;
  const names: string[] = [];
  const items: string[] = [];
  for (at = skipSpace(text, at + 1); text[at] !== "]" && text[at] !== "}"; at = skipSpace(text, at)) {
    if (text[at] === ",") at = skipSpace(text, at + 1);
    if (isObject) {
      const end = skipString(text, at);
      names.push(JSON.parse(text.slice(at, end)) as string);
      at = skipSpace(text, skipSpace(text, end) + 1);
    }
    const end = skipValue(text, at);
    items.push(text.slice(at, end));
    at = end;
  }
  return { names: isObject ? names : null, items };
}

/** Return the value of a name in an object, as its text. */
export function findPart(text: string, name: string): string | undefined {
  const parts = splitJson(text);
  return parts?.items[parts.names?.indexOf(name) ?? -1];
}

function skipSpace(text: string, from: number): number {
  let at = from;
  while (at < text.length && text.charCodeAt(at) <= 0x20) at += 1;
  if (at >= text.length) throw new SyntaxError("The JSON ends too early.");
  return at;
}

/** Return where the string ends that begins at a place. */
function skipString(text: string, from: number): number {
  for (let end = text.indexOf('"', from + 1); end >= 0; end = text.indexOf('"', end + 1)) {
    let before = end - 1;
    while (text[before] === "\\") before -= 1;
    if ((end - before) % 2 === 1) return end + 1;
  }
  throw new SyntaxError("A string in the JSON does not end.");
}

/** Return where the value ends that begins at a place. */
function skipValue(text: string, from: number): number {
  let depth = 0;
  for (let at = from; at < text.length; at++) {
    const letter = text[at]!;
    if (letter === '"') {
      at = skipString(text, at) - 1;
      if (depth === 0) return at + 1;
    } else if (letter === "{" || letter === "[") depth += 1;
    else if (letter === "}" || letter === "]") {
      if (depth === 0) return at;
      depth -= 1;
      if (depth === 0) return at + 1;
    } else if (depth === 0 && (letter === "," || letter <= " ")) return at;
  }
  return text.length;
}

/** Write a value as JSON. What is JSON already stays as it is. */
export function writeJson(value: unknown): string {
  if (value instanceof Json) return value.text;
  if (Array.isArray(value)) return `[${value.map(writeJson).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value ?? null);
  const given = Object.entries(value).filter(([, item]) => item !== undefined);
  return `{${given.map(([name, item]) => `${JSON.stringify(name)}:${writeJson(item)}`).join(",")}}`;
}
