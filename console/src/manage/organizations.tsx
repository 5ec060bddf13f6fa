/** Organizations of the installation, for operators. */
import { useState } from "preact/hooks";
import { askControl, askData } from "../api/http";
import { session } from "../api/session";
import type { CapabilitiesAnswer, OrganizationMade, OrganizationRecord } from "../api/types";
import { confirm } from "../parts/confirm";
import { Choice, FormDialog, NameField } from "../parts/form";
import { Menu } from "../parts/menu";
import { Time } from "../parts/show";
import { Shown, useLoaded } from "../parts/states";
import { ListTable } from "../parts/table";
import { tell } from "../parts/toast";
import { listAll } from "./lists";
import { Once } from "./once";

async function listTiers(): Promise<string[]> {
  const limits = (await askData<CapabilitiesAnswer>("/capabilities")).limits;
  const tiers = limits["tiers"];
  return tiers && typeof tiers === "object" ? Object.keys(tiers) : ["free", "pro", "unlimited"];
}

export function OrganizationsPage() {
  const [form, setForm] = useState<OrganizationRecord | "new" | null>(null);
  const [made, setMade] = useState<OrganizationMade | null>(null);
  const loaded = useLoaded(() => listAll<OrganizationRecord>("/v1/organizations"), []);
  const own = session.current.value?.organization;
  const remove = (one: OrganizationRecord) =>
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
      {made && <Once secret={made.key} what={`The first key of ${made.name}`} onClose={() => setMade(null)} />}
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
            setMade(one);
            loaded.reload();
          }}
        />
      )}
    </div>
  );
}

interface OrganizationFormProps {
  of: OrganizationRecord | "new";
  onClose: () => void;
  onDone: (made: OrganizationMade | null) => void;
}

function OrganizationForm({ of, onClose, onDone }: OrganizationFormProps) {
  const isNew = of === "new";
  const [name, setName] = useState(isNew ? "" : of.name);
  const [tier, setTier] = useState(isNew ? "free" : of.tier);
  const tiers = useLoaded(listTiers, []);
  const submit = async () => {
    const body = { name, tier };
    const path = isNew ? "/v1/organizations" : `/v1/organizations/${of.id}`;
    const answer = await askControl<OrganizationMade>(path, { method: isNew ? "POST" : "PATCH", body });
    onDone(isNew ? answer : null);
  };
  return (
    <FormDialog
      title={isNew ? "New organization" : `Change ${of.name}`}
      action={isNew ? "Make it" : "Change it"}
      isReady={name !== ""}
      onSubmit={submit}
      onClose={onClose}
    >
      <NameField value={name} onChange={setName} />
      <Choice
        label="Tier"
        value={tier}
        options={[...new Set([tier, ...(tiers.value ?? [])])].map((one) => [one, one] as const)}
        onChange={setTier}
      />
    </FormDialog>
  );
}
