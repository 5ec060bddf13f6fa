/** The database that the pages work with, and those there are to choose from. */
import { askControl, askData } from "../api/http";
import { session } from "../api/session";
import type { Organization } from "../api/types";
import { Store } from "../parts/store";

const KEPT = "tuplegate.database";

/** The chosen name; null is the organization's default, where its name is not known. */
export const database = new Store<string | null>(sessionStorage.getItem(KEPT));
export const databases = new Store<string[]>([]);

database.subscribe((name) => {
  if (name) sessionStorage.setItem(KEPT, name);
  else sessionStorage.removeItem(KEPT);
});

/** Find the databases of a new session, and choose one. */
export async function findDatabases(): Promise<void> {
  const own = session.current.value;
  if (!own) return;
  const { databases: listed = [] } = await askControl<Organization>("/v1/organization");
  const names = own.database ? [own.database] : listed.map((one) => one.name);
  const preferred = listed.find((one) => one.default)?.name ?? names[0] ?? null;
  databases.set(names);
  const chosen = database.value;
  if (own.database) database.set(own.database);
  else if (!chosen || (names.length > 0 && !names.includes(chosen))) database.set(preferred);
}

/** Try a name that was typed, and choose it if it can be used. */
export async function chooseDatabase(name: string): Promise<void> {
  await askData("/v1/query", { method: "POST", body: { sql: "select 1" }, database: name });
  databases.update((names) => (names.includes(name) ? names : [...names, name]));
  database.set(name);
}
