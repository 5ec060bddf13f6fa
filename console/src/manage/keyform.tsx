/** The form of a new key, and of one that is changed. */
import { useState } from "preact/hooks";
import { askControl } from "../api/http";
import { session } from "../api/session";
import type { KeyMade, KeyRecord, Scope } from "../api/types";
import { databases } from "../app/database";
import { Choice, FormDialog, NameField } from "../parts/form";
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

const CONSISTENCIES: [string, string][] = [
  ["serializable", "serializable: the newest state, on the primary"],
  ["snapshot", "snapshot: a replica may answer, up to seconds behind"],
];

interface KeyFormProps {
  of: KeyRecord | "new";
  onClose: () => void;
  onDone: (made: KeyMade | null) => void;
}

export function KeyForm({ of, onClose, onDone }: KeyFormProps) {
  const isNew = of === "new";
  const [name, setName] = useState(isNew ? "" : of.name);
  const [scopes, setScopes] = useState(isNew ? ["read"] : of.scopes);
  const [database, setDatabase] = useState("");
  const [expiry, setExpiry] = useState(isNew ? "never" : KEEP);
  const [consistency, setConsistency] = useState(isNew ? "serializable" : of.consistency);
  const names = useStore(databases);
  const seconds = EXPIRIES.find(([title]) => title === expiry)?.[1] ?? null;
  const submit = async () => {
    const body = { name, scopes, consistency, ...(expiry === KEEP ? {} : { expires_in: seconds }) };
    if (isNew) {
      const made = { ...body, database: database || null };
      onDone(await askControl<KeyMade>("/v1/keys", { method: "POST", body: made }));
      return;
    }
    await askControl(`/v1/keys/${of.id}`, { method: "PATCH", body });
    tell(`${name} is changed.`);
    onDone(null);
  };
  const toggle = (scope: Scope) =>
    setScopes(scopes.includes(scope) ? scopes.filter((one) => one !== scope) : [...scopes, scope]);
  return (
    <FormDialog
      title={isNew ? "New key" : `Change ${of.name}`}
      action={isNew ? "Make the key" : "Change it"}
      isReady={name.trim() !== "" && scopes.length > 0}
      onSubmit={submit}
      onClose={onClose}
    >
      <NameField value={name} onChange={setName} placeholder="reports" />
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
        <Choice
          label="Database"
          value={database}
          options={[["", "all of the organization's"], ...names.map((one) => [one, one] as const)]}
          onChange={setDatabase}
        />
      )}
      <Choice
        label="Expires"
        value={expiry}
        options={[
          ...(isNew ? [] : [[KEEP, "as it is"] as const]),
          ...EXPIRIES.map(([title]) => [title, title] as const),
        ]}
        onChange={setExpiry}
      />
      <Choice label="Consistency" value={consistency} options={CONSISTENCIES} onChange={setConsistency} />
    </FormDialog>
  );
}
