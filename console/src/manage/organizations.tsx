/** Organizations of the installation, for operators. */
import { useState } from "preact/hooks";
import { askControl, askData } from "../api/http";
import { session } from "../api/session";
import type { Capabilities, Organization } from "../api/types";
import { confirm, Dialog, useWork } from "../parts/dialog";
import { Menu } from "../parts/menu";
import { Time } from "../parts/show";
import { FailureBox, Shown, useLoaded } from "../parts/states";
import { ListTable } from "../parts/table";
import { tell } from "../parts/toast";
import { listAll } from "./lists";
import { Once } from "./once";

async function listTiers(): Promise<string[]> {
  const limits = (await askData<Capabilities>("/capabilities")).limits;
  const tiers = limits["tiers"];
  return tiers && typeof tiers === "object" ? Object.keys(tiers) : ["free", "pro", "unlimited"];
}

export function OrganizationsPage() {
  const [form, setForm] = useState<Organization | "new" | null>(null);
  const [made, setMade] = useState<Organization | null>(null);
  const loaded = useLoaded(() => listAll<Organization>("/v1/organizations"), []);
  const own = session.current.value?.organization;
  const remove = (one: Organization) =>
    confirm({
      title: `Delete ${one.name}`,
      action: "Delete the organization",
      name: one.name,
      text: <p>All of its databases, keys and data go with it. This cannot be undone.</p>,
      work: async () => {
        await askControl(`/v1/organizations/${one.id}`, { method: "DELETE" });
        tell(`${one.name} is deleted.`);
        loaded.reload();
      },
    });
  return (
    <div class="page">
      <div class="page-head">
        <h1>Organizations</h1>
        <button type="button" class="primary" onClick={() => setForm("new")}>
          New organization
        </button>
      </div>
      {made?.key && <Once secret={made.key} what={`The first key of ${made.name}`} onClose={() => setMade(null)} />}
      <Shown of={loaded} what="Reading the organizations">
        {(all) => (
          <ListTable head={["Name", "Id", "Tier", "Made", ""]}>
            {all.map((one) => (
              <tr key={one.id}>
                <td>
                  {one.name} {one.id === own && <span class="badge good">yours</span>}
                </td>
                <td class="mono">{one.id}</td>
                <td>
                  <span class="badge">{one.tier}</span>
                </td>
                <td>
                  <Time at={one.created_at} />
                </td>
                <td>
                  <Menu
                    label="Actions"
                    items={[
                      { title: "Change", run: () => setForm(one) },
                      { title: "Delete", isDangerous: true, isOff: one.id === own, run: () => remove(one) },
                    ]}
                  />
                </td>
              </tr>
            ))}
          </ListTable>
        )}
      </Shown>
      {form && (
        <OrganizationForm
          of={form}
          onClose={() => setForm(null)}
          onDone={(one) => {
            setForm(null);
            if (one.key) setMade(one);
            loaded.reload();
          }}
        />
      )}
    </div>
  );
}

function OrganizationForm({
  of,
  onClose,
  onDone,
}: {
  of: Organization | "new";
  onClose: () => void;
  onDone: (one: Organization) => void;
}) {
  const isNew = of === "new";
  const [name, setName] = useState(isNew ? "" : of.name);
  const [tier, setTier] = useState(isNew ? "free" : of.tier);
  const { failure, isBusy, run } = useWork();
  const tiers = useLoaded(listTiers, []);
  const submit = (event: Event) => {
    event.preventDefault();
    void run(async () => {
      const body = { name, tier };
      onDone(
        await askControl<Organization>(isNew ? "/v1/organizations" : `/v1/organizations/${of.id}`, {
          method: isNew ? "POST" : "PATCH",
          body,
        }),
      );
    });
  };
  return (
    <Dialog title={isNew ? "New organization" : `Change ${of.name}`} onClose={onClose}>
      <form class="form" onSubmit={submit}>
        <label class="field">
          <span>Name</span>
          <input
            class="mono"
            value={name}
            onInput={(event) => setName(event.currentTarget.value)}
            autofocus
            spellcheck={false}
          />
        </label>
        <label class="field">
          <span>Tier</span>
          <select value={tier} onChange={(event) => setTier(event.currentTarget.value)}>
            {[...new Set([tier, ...(tiers.value ?? [])])].map((one) => (
              <option key={one}>{one}</option>
            ))}
          </select>
        </label>
        {failure && <FailureBox failure={failure} />}
        <footer class="form-foot">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary" disabled={isBusy || !name}>
            {isNew ? "Make it" : "Change it"}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}
