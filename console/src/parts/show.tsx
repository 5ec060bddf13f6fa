/** Small things that are shown everywhere: times, sizes, counts, buttons that copy. */
import { copyText } from "./toast";

const FORMAT = new Intl.DateTimeFormat(undefined, {
  year: "numeric",
  month: "short",
  day: "numeric",
  hour: "2-digit",
  minute: "2-digit",
});
const STEPS: [number, Intl.RelativeTimeFormatUnit][] = [
  [60, "second"],
  [3600, "minute"],
  [86_400, "hour"],
  [86_400 * 30, "day"],
  [86_400 * 365, "month"],
  [Infinity, "year"],
];
const RELATIVE = new Intl.RelativeTimeFormat(undefined, { numeric: "auto" });

export function formatRelative(moment: Date, now = Date.now()): string {
  const seconds = (moment.getTime() - now) / 1000;
  let unit = 1;
  for (const [bound, name] of STEPS) {
    if (Math.abs(seconds) < bound) return RELATIVE.format(Math.round(seconds / unit), name);
    unit = bound;
  }
  return moment.toISOString();
}

/** A time in the reader's zone; UTC shows on hover. */
export function Time({ at, relative }: { at: string | null; relative?: boolean }) {
  if (!at) return <span class="faint">never</span>;
  const moment = new Date(at);
  if (Number.isNaN(moment.getTime())) return <span>{at}</span>;
  return (
    <time
      dateTime={at}
      title={`${moment
        .toISOString()
        .replace("T", " ")
        .replace(/\.\d+Z$/, "")} UTC`}
    >
      {relative ? formatRelative(moment) : FORMAT.format(moment)}
    </time>
  );
}

export function formatBytes(bytes: number | null | undefined): string {
  if (bytes === null || bytes === undefined) return "–";
  let value = bytes;
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (value < 1000 || unit === "TB") return `${unit === "B" ? value : value.toFixed(value < 10 ? 1 : 0)} ${unit}`;
    value /= 1000;
  }
  return "";
}

const COUNT = new Intl.NumberFormat("en");

export function formatCount(count: number): string {
  return COUNT.format(count);
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${formatCount(count)} ${count === 1 ? one : many}`;
}

export function formatMicros(us: number): string {
  if (us < 1000) return `${Math.round(us)} µs`;
  if (us < 1_000_000) return `${(us / 1000).toFixed(us < 10_000 ? 1 : 0)} ms`;
  return `${(us / 1_000_000).toFixed(2)} s`;
}

export function CopyButton({ text, label = "Copy" }: { text: string; label?: string }) {
  return (
    <button type="button" class="small" onClick={() => void copyText(text)}>
      {label}
    </button>
  );
}

/** Code that can be copied. */
export function CodeBlock({ code, label }: { code: string; label: string }) {
  return (
    <div class="code-block">
      <pre tabIndex={0} aria-label={label}>
        <code>{code}</code>
      </pre>
      <CopyButton text={code} />
    </div>
  );
}

/** Give the reader a file. */
export function saveFile(name: string, content: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  window.setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
