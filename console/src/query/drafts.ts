/** What is written in the editor, the queries that were saved and those that ran. Kept in this browser, never sent, and
 * shown in the organization alone that they were written in.
 *
 * The module is loaded with the query page, so that the organization is known.
 */
import { session } from "../api/session";
import { keepStore } from "../parts/store";

export interface Draft {
  id: string;
  name: string;
  sql: string;
}

export interface Saved {
  id: string;
  name: string;
  sql: string;
}

export interface Ran {
  sql: string;
  at: string;
  database: string | null;
  ms: number;
  rows: number;
  problem: string | null;
}

const HISTORY_MAX = 200;
const HISTORY_SQL_MAX = 20_000;

const nameOf = (what: string) => `${what}.${session.organization ?? ""}`;

export const drafts = keepStore<Draft[]>(nameOf("drafts"), [{ id: "1", name: "Query 1", sql: "" }]);
export const chosenDraft = keepStore<string>(nameOf("draft"), "1");
export const saved = keepStore<Saved[]>(nameOf("saved"), []);
export const ran = keepStore<Ran[]>(nameOf("history"), []);

export function currentDraft(): Draft {
  return drafts.value.find((one) => one.id === chosenDraft.value) ?? drafts.value[0]!;
}

/** Open a text in a tab of its own; an empty tab, or one with the same text, is used instead of a new one. */
export function openDraft(sql: string, name?: string): void {
  const same =
    drafts.value.find((one) => one.sql === sql && sql) ??
    (currentDraft().sql.trim() === "" ? currentDraft() : undefined);
  if (same) {
    changeDraft(same.id, sql, name);
    chosenDraft.set(same.id);
    return;
  }
  const numbers = drafts.value.map((one) => Number(one.id) || 0);
  const id = String(Math.max(0, ...numbers) + 1);
  drafts.update((all) => [...all, { id, name: name ?? `Query ${id}`, sql }]);
  chosenDraft.set(id);
}

export function addDraft(): void {
  const id = String(Math.max(0, ...drafts.value.map((one) => Number(one.id) || 0)) + 1);
  drafts.update((all) => [...all, { id, name: `Query ${id}`, sql: "" }]);
  chosenDraft.set(id);
}

export function changeDraft(id: string, sql: string, name?: string): void {
  drafts.update((all) => all.map((one) => (one.id === id ? { ...one, sql, name: name ?? one.name } : one)));
}

/** Close a tab and return a function that brings it back. */
export function closeDraft(id: string): () => void {
  const before = drafts.value;
  const at = before.findIndex((one) => one.id === id);
  const rest = before.filter((one) => one.id !== id);
  drafts.set(rest.length ? rest : [{ id: "1", name: "Query 1", sql: "" }]);
  if (chosenDraft.value === id) chosenDraft.set((drafts.value[Math.max(0, at - 1)] ?? drafts.value[0]!).id);
  return () => {
    drafts.set(before);
    chosenDraft.set(id);
  };
}

export function noteRun(entry: Ran): void {
  if (entry.sql.length > HISTORY_SQL_MAX) return;
  ran.update((all) =>
    [entry, ...all.filter((one) => one.sql !== entry.sql || one.database !== entry.database)].slice(0, HISTORY_MAX),
  );
}

export function saveQuery(name: string, sql: string): void {
  saved.update((all) =>
    [...all.filter((one) => one.name !== name), { id: crypto.randomUUID(), name, sql }].sort((a, b) =>
      a.name.localeCompare(b.name),
    ),
  );
}
