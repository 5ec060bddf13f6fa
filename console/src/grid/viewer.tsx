/** One value in full: JSON and arrays as a tree, bytes in hexadecimal, text as it is. */
import { useState } from "preact/hooks";
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
  onClose: () => void;
}

export function Viewer({ value, name, type, onClose }: ViewerProps) {
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
      <p class="faint">{describeValue(value, type)}</p>
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
  if (kind === "array") return `An array of ${formatCount((value as Value[]).length)}`;
  if (kind === "bytes") return formatBytes((String(value).length - 2) / 2);
  if (kind === "json") return Array.isArray(value) ? `A list of ${formatCount(value.length)}` : `JSON, ${typeof value}`;
  const moment = /^timestamptz$|^timestamp$|^date$/.test(type) ? new Date(String(value)) : null;
  if (moment && !Number.isNaN(moment.getTime())) {
    return type === "timestamptz"
      ? `${moment.toLocaleString()} in your zone, ${formatRelative(moment)}`
      : formatRelative(moment);
  }
  return typeof value === "string" ? `${formatCount(value.length)} characters` : "";
}

function ValueBody({ value, type }: { value: Value; type: string }) {
  const kind = kindOf(value, type);
  if (kind === "null") return <span class="null">NULL</span>;
  if (kind === "json" || kind === "array") return <Tree value={value} depth={0} />;
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

function Tree({ value, depth, name }: { value: Value; depth: number; name?: string }) {
  const [shown, setShown] = useState(ITEMS_SHOWN);
  const label = name === undefined ? null : <span class="tree-name">{name}: </span>;
  if (value === null || typeof value !== "object") {
    return (
      <div class="tree-leaf">
        {label}
        <span class={`tree-${value === null ? "null" : typeof value}`}>
          {typeof value === "string" ? JSON.stringify(value.slice(0, TEXT_SHOWN)) : String(value)}
        </span>
      </div>
    );
  }
  const entries = Object.entries(value);
  const [open, close] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  if (entries.length === 0)
    return (
      <div class="tree-leaf">
        {label}
        {open}
        {close}
      </div>
    );
  return (
    <details open={depth < 2} class="tree">
      <summary>
        {label}
        <span class="faint">
          {open}
          {formatCount(entries.length)}
          {close}
        </span>
      </summary>
      <div class="tree-items">
        {entries.slice(0, shown).map(([key, item]) => (
          <Tree key={key} name={key} value={item} depth={depth + 1} />
        ))}
        {entries.length > shown && (
          <button type="button" class="small" onClick={() => setShown(shown * 10)}>
            {formatCount(entries.length - shown)} more
          </button>
        )}
      </div>
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
