/** The database that the pages work with, and those there are to choose from. */
import { askControl } from "../api/http";
import { session } from "../api/session";
import type { OwnOrganization } from "../api/types";
import { Store } from "../parts/store";

const KEPT = "tuplegate.database";

/** The chosen name; null is the organization's default, where its name is not known. */
export const database = new Store<string | null>(sessionStorage.getItem(KEPT));
export const databases = new Store<string[]>([]);
/** The name of the session's organization. */
export const organization = new Store("");

database.subscribe((name) => {
  if (name) sessionStorage.setItem(KEPT, name);
  else sessionStorage.removeItem(KEPT);
});

/** Find the databases of a new session, and choose one. */
export async function findDatabases(): Promise<void> {
  const own = session.current.value;
  if (!own) return;
  const { name, databases: listed } = await askControl<OwnOrganization>("/v1/organization");
  organization.set(name);
  const names = own.database ? [own.database] : listed.map((one) => one.name);
  const preferred = listed.find((one) => one.default)?.name ?? names[0] ?? null;
  databases.set(names);
  const chosen = database.value;
  if (own.database) database.set(own.database);
  else if (!chosen || (names.length > 0 && !names.includes(chosen))) database.set(preferred);
}
