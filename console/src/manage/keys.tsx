/** Keys: make one and see it once, change, rotate, revoke. */
import { useState } from "preact/hooks";
import { askControl } from "../api/http";
import type { KeyMade, KeyRecord } from "../api/types";
import { confirm } from "../parts/confirm";
import { useWork } from "../parts/dialog";
import { Menu } from "../parts/menu";
import { Time } from "../parts/show";
import { FailureBox, Shown, useLoaded } from "../parts/states";
import { ListTable } from "../parts/table";
import { tell } from "../parts/toast";
import { KeyForm } from "./keyform";
import { listAll } from "./lists";
import { Once } from "./once";

const STATES: Record<string, string> = { active: "badge good", revoked: "badge bad", expired: "badge warn" };

export function KeysPage() {
  const [form, setForm] = useState<KeyRecord | "new" | null>(null);
  const [made, setMade] = useState<KeyMade | null>(null);
  const [showsAll, setShowsAll] = useState(false);
  const loaded = useLoaded(() => listAll<KeyRecord>("/v1/keys"), []);
  const { failure, run } = useWork();
  const rotate = (key: KeyRecord, grace: number) =>
    run(async () => {
      setMade(
        await askControl<KeyMade>(`/v1/keys/${key.id}/rotate`, { method: "POST", body: { grace_seconds: grace } }),
      );
      loaded.reload();
    });
  const finish = (key: KeyMade | null) => {
    setForm(null);
    setMade(key);
    loaded.reload();
  };
  const revoke = (key: KeyRecord) =>
    confirm({
      title: `Revoke ${key.name}`,
      action: "Revoke the key",
      name: key.name,
      text: (
        <p>
          Whoever uses it is refused within seconds, and its sessions and open transactions end. It cannot be made
          active again.
        </p>
      ),
      work: async () => {
        await askControl(`/v1/keys/${key.id}`, { method: "DELETE" });
        tell(`${key.name} is revoked.`);
        loaded.reload();
      },
    });
  return (
    <div class="page">
      <div class="page-head">
        <h1>Keys</h1>
        <div class="toolbar">
          <label class="faint">
            <input type="checkbox" checked={showsAll} onChange={(event) => setShowsAll(event.currentTarget.checked)} />{" "}
            also revoked and expired
          </label>
          <button type="button" class="primary" onClick={() => setForm("new")}>
            New key
          </button>
        </div>
      </div>
      {failure && <FailureBox failure={failure} />}
      {made && <Once secret={made.key} what={`The key ${made.name}`} onClose={() => setMade(null)} />}
      <Shown of={loaded} what="Reading the keys">
        {(all) => (
          <ListTable head={["Name", "Key", "Scopes", "Database", "Consistency", "State", "Last used", "Expires", ""]}>
            {all
              .filter((key) => showsAll || key.state === "active")
              .map((key) => (
                <KeyRow key={key.id} of={key} onForm={setForm} onRotate={rotate} onRevoke={revoke} />
              ))}
          </ListTable>
        )}
      </Shown>
      {form && <KeyForm of={form} onClose={() => setForm(null)} onDone={finish} />}
    </div>
  );
}

interface KeyRowProps {
  of: KeyRecord;
  onForm: (key: KeyRecord) => void;
  onRotate: (key: KeyRecord, grace: number) => Promise<void>;
  onRevoke: (key: KeyRecord) => void;
}

function KeyRow({ of: key, onForm, onRotate, onRevoke }: KeyRowProps) {
  const isActive = key.state === "active";
  return (
    <tr>
      <td>
        <bdi>{key.name}</bdi>
      </td>
      <td class="mono">{key.hint}</td>
      <td>
        {key.scopes.map((scope) => (
          <span class="badge" key={scope}>
            {scope}
          </span>
        ))}
      </td>
      <td class="mono">{key.database ?? "all"}</td>
      <td>{key.consistency}</td>
      <td>
        <span class={STATES[key.state] ?? "badge"}>{key.state}</span>
      </td>
      <td>
        <Time at={key.last_used_at} relative />
      </td>
      <td>
        <Time at={key.expires_at} />
      </td>
      <td>
        <Menu
          label="Actions"
          items={[
            { title: "Change", isOff: !isActive, run: () => onForm(key) },
            { title: "Rotate, at once", isOff: !isActive, run: () => void onRotate(key, 0) },
            { title: "Rotate, the old one works for an hour", isOff: !isActive, run: () => void onRotate(key, 3600) },
            { title: "Revoke", isDangerous: true, isOff: !isActive, run: () => onRevoke(key) },
          ]}
        />
      </td>
    </tr>
  );
}
