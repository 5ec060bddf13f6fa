/** The form of a new key, and of one that is changed. */
import { useState } from "preact/hooks";
import { askControl } from "../api/http";
import { session } from "../api/session";
import type { Key, Scope } from "../api/types";
import { databases } from "../app/database";
import { Dialog, useWork } from "../parts/dialog";
import { FailureBox } from "../parts/states";
import { useStore } from "../parts/store";
import { tell } from "../parts/toast";

const SCOPES: [Scope, string][] = [
  ["read", "statements that only read"],
  ["write", "read, and statements that write"],
  ["admin", "write, and managing databases and keys"],
  ["operator", "managing organizations"],
];
const EXPIRIES: [string, number | null][] = [
  ["never", null],
  ["in an hour", 3600],
  ["in a day", 86_400],
  ["in 30 days", 30 * 86_400],
  ["in a year", 365 * 86_400],
];
const KEEP = "keep";

export function KeyForm({ of, onClose, onMade }: { of: Key | "new"; onClose: () => void; onMade: (key: Key) => void }) {
  const isNew = of === "new";
  const [name, setName] = useState(isNew ? "" : of.name);
  const [scopes, setScopes] = useState<Scope[]>(isNew ? ["read"] : of.scopes);
  const [database, setDatabase] = useState("");
  const [expiry, setExpiry] = useState(isNew ? "never" : KEEP);
  const { failure, isBusy, run } = useWork();
  const names = useStore(databases);
  const seconds = EXPIRIES.find(([title]) => title === expiry)?.[1] ?? null;
  const submit = (event: Event) => {
    event.preventDefault();
    void run(async () => {
      if (isNew) {
        const body = { name, scopes, ...(database ? { database } : {}), ...(seconds ? { expires_in: seconds } : {}) };
        onMade(await askControl<Key>("/v1/keys", { method: "POST", body }));
        return;
      }
      const body = { name, scopes, ...(expiry === KEEP ? {} : { expires_in: seconds }) };
      onMade(await askControl<Key>(`/v1/keys/${of.id}`, { method: "PATCH", body }));
      tell(`${name} is changed.`);
    });
  };
  const toggle = (scope: Scope) =>
    setScopes(scopes.includes(scope) ? scopes.filter((one) => one !== scope) : [...scopes, scope]);
  return (
    <Dialog title={isNew ? "New key" : `Change ${of.name}`} onClose={onClose}>
      <form class="form" onSubmit={submit}>
        <label class="field">
          <span>Name</span>
          <input
            value={name}
            maxLength={200}
            onInput={(event) => setName(event.currentTarget.value)}
            autofocus
            placeholder="reports"
          />
        </label>
        <fieldset class="form">
          <legend class="faint">Scopes</legend>
          {SCOPES.filter(([scope]) => session.allows(scope)).map(([scope, what]) => (
            <label key={scope}>
              <input type="checkbox" checked={scopes.includes(scope)} onChange={() => toggle(scope)} /> <b>{scope}</b>{" "}
              <span class="faint">{what}</span>
            </label>
          ))}
        </fieldset>
        {isNew && (
          <label class="field">
            <span>Database</span>
            <select value={database} onChange={(event) => setDatabase(event.currentTarget.value)}>
              <option value="">all of the organization's</option>
              {names.map((one) => (
                <option key={one}>{one}</option>
              ))}
            </select>
          </label>
        )}
        <label class="field">
          <span>Expires</span>
          <select value={expiry} onChange={(event) => setExpiry(event.currentTarget.value)}>
            {!isNew && <option value={KEEP}>as it is</option>}
            {EXPIRIES.map(([title]) => (
              <option key={title}>{title}</option>
            ))}
          </select>
        </label>
        {failure && <FailureBox failure={failure} />}
        <footer class="form-foot">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary" disabled={isBusy || !name.trim() || scopes.length === 0}>
            {isNew ? "Make the key" : "Change it"}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}
