/** One value in full: JSON and arrays as a tree, bytes in hexadecimal, text as it is. */
import { useMemo, useState } from "preact/hooks";
import { Json, splitJson, writeJson } from "../api/json";
import type { Value } from "../api/types";
import { copyText } from "../parts/toast";
import { formatBytes, formatCount, formatRelative, saveFile } from "../parts/show";
import { kindOf, valueText } from "./values";

const TEXT_SHOWN = 100_000;
const BYTES_SHOWN = 4_096;
const ITEMS_SHOWN = 100;

interface ViewerProps {
  value: Value;
  name: string;
  type: string;
  /** What to say of a NULL, where it is not certain that it is one. */
  nullText?: string;
  onClose: () => void;
}

export function Viewer({ value, name, type, nullText, onClose }: ViewerProps) {
  const text = valueText(value);
  return (
    <aside class="viewer" aria-label={`Value of ${name}`}>
      <header>
        <h3 title={name}>
          <bdi>{name}</bdi>
        </h3>
        <span class="faint">{type}</span>
        <button type="button" class="quiet icon" aria-label="Close the value" onClick={onClose}>
          ×
        </button>
      </header>
      <p class="faint">{value === null && nullText ? nullText : describeValue(value, type)}</p>
      <div class="viewer-value" tabIndex={0}>
        <ValueBody value={value} type={type} />
      </div>
      {value !== null && (
        <footer>
          <button type="button" class="small" onClick={() => void copyText(text)}>
            Copy
          </button>
          <button
            type="button"
            class="small"
            onClick={() => saveFile(`${name.replace(/\W+/g, "_") || "value"}.txt`, new Blob([text]))}
          >
            Save as a file
          </button>
        </footer>
      )}
    </aside>
  );
}

function describeValue(value: Value, type: string): string {
  const kind = kindOf(value, type);
  if (kind === "null") return "NULL: there is no value";
  if (value === "") return "An empty text";
  if (kind === "bytes") return formatBytes((String(value).length - 2) / 2);
  if (kind === "array" || kind === "json") return describeJson(writeJson(value), kind === "array");
  const moment = /^timestamptz$|^timestamp$|^date$/.test(type) ? new Date(String(value)) : null;
  if (moment && !Number.isNaN(moment.getTime())) {
    return type === "timestamptz"
      ? `${moment.toLocaleString()} in your zone, ${formatRelative(moment)}`
      : formatRelative(moment);
  }
  return typeof value === "string" ? `${formatCount(value.length)} characters` : "";
}

function describeJson(text: string, isArray: boolean): string {
  const parts = splitJson(text);
  if (!parts) return `JSON, ${leafKind(text)}`;
  if (parts.names) return `JSON, an object of ${formatCount(parts.items.length)}`;
  return `${isArray ? "An array" : "JSON, a list"} of ${formatCount(parts.items.length)}`;
}

function leafKind(text: string): "string" | "boolean" | "null" | "number" {
  if (text.startsWith('"')) return "string";
  return text === "null" ? "null" : /^[tf]/.test(text) ? "boolean" : "number";
}

function ValueBody({ value, type }: { value: Value; type: string }) {
  const kind = kindOf(value, type);
  if (kind === "null") return <span class="null">NULL</span>;
  if (value instanceof Json || Array.isArray(value)) return <Tree text={writeJson(value)} depth={0} />;
  if (kind === "bytes") return <pre>{hexDump(String(value))}</pre>;
  const text = valueText(value);
  return (
    <pre class="wrapped" dir="auto">
      {text.slice(0, TEXT_SHOWN)}
      {text.length > TEXT_SHOWN && (
        <span class="faint">{`\n… and ${formatCount(text.length - TEXT_SHOWN)} more characters: copy it, or save it as a file`}</span>
      )}
    </pre>
  );
}

/** JSON as a tree. A part is split when it is opened, and shown as the text that came. */
function Tree({ text, depth, name }: { text: string; depth: number; name?: string }) {
  const [shown, setShown] = useState(ITEMS_SHOWN);
  const [isOpen, setOpen] = useState(depth < 2);
  const parts = useMemo(() => splitJson(text), [text]);
  const label = name === undefined ? null : <span class="tree-name">{name}: </span>;
  if (!parts || parts.items.length === 0) {
    return (
      <div class="tree-leaf">
        {label}
        <span class={parts ? "" : `tree-${leafKind(text)}`}>{text.slice(0, TEXT_SHOWN)}</span>
      </div>
    );
  }
  const { names, items } = parts;
  return (
    <details open={isOpen} class="tree" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        {label}
        <span class="faint">
          {names ? "{" : "["}
          {formatCount(items.length)}
          {names ? "}" : "]"}
        </span>
      </summary>
      {isOpen && (
        <div class="tree-items">
          {items.slice(0, shown).map((item, at) => (
            <Tree key={at} name={names ? names[at]! : String(at)} text={item} depth={depth + 1} />
          ))}
          {items.length > shown && (
            <button type="button" class="small" onClick={() => setShown(shown * 10)}>
              {formatCount(items.length - shown)} more
            </button>
          )}
        </div>
      )}
    </details>
  );
}

/** Bytes in lines of sixteen, with their letters beside them. */
function hexDump(hex: string): string {
  const digits = hex.replace(/^\\x/, "").slice(0, BYTES_SHOWN * 2);
  const lines: string[] = [];
  for (let at = 0; at < digits.length; at += 32) {
    const pairs = digits.slice(at, at + 32).match(/../g) ?? [];
    const letters = pairs.map((pair) => String.fromCharCode(parseInt(pair, 16)).replace(/[^\x20-\x7e]/, "·")).join("");
    lines.push(`${(at / 2).toString(16).padStart(6, "0")}  ${pairs.join(" ").padEnd(47)}  ${letters}`);
  }
  if (hex.length - 2 > digits.length) lines.push("…");
  return lines.join("\n");
}
