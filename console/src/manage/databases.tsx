/** Databases of the organization: make, copy, rename, protect, dump, delete. */
import { useState } from "preact/hooks";
import { askControl, openControl } from "../api/http";
import type { DatabaseRecord } from "../api/types";
import { database, findDatabases } from "../app/database";
import { formatRoute, go } from "../app/router";
import { confirm } from "../parts/confirm";
import { useWork } from "../parts/dialog";
import { FormDialog, NameField } from "../parts/form";
import { Menu } from "../parts/menu";
import { formatBytes, saveFile, Time } from "../parts/show";
import { FailureBox, Shown, useLoaded } from "../parts/states";
import { ListTable } from "../parts/table";
import { tell } from "../parts/toast";
import { listAll } from "./lists";

type Form = { kind: "new" } | { kind: "clone"; of: string } | { kind: "rename"; of: string };

export function DatabasesPage() {
  const [form, setForm] = useState<Form | null>(null);
  const loaded = useLoaded(() => listAll<DatabaseRecord>("/v1/databases"), []);
  const { failure, run } = useWork();
  const renew = async () => {
    loaded.reload();
    await findDatabases();
  };
  const change = (name: string, body: object, told: string) =>
    run(async () => {
      await askControl(`/v1/databases/${name}`, { method: "PATCH", body });
      tell(told);
      await renew();
    });
  return (
    <div class="page">
      <div class="page-head">
        <h1>Databases</h1>
        <button type="button" class="primary" onClick={() => setForm({ kind: "new" })}>
          New database
        </button>
      </div>
      {failure && <FailureBox failure={failure} />}
      <Shown of={loaded} what="Reading the databases">
        {(all) => (
          <ListTable head={["Name", "State", "Size", "Made", "Engine", ""]} right={[2]}>
            {all.map((one) => (
              <tr key={one.id}>
                <td>
                  <button
                    type="button"
                    class="quiet small mono"
                    onClick={() => {
                      database.set(one.name);
                      go(formatRoute("data"));
                    }}
                  >
                    {one.name}
                  </button>
                  {one.default && <span class="badge">default</span>}{" "}
                  {one.delete_protection && <span class="badge good">protected</span>}
                </td>
                <td>
                  <span class={one.state === "active" ? "badge good" : "badge warn"}>{one.state}</span>
                </td>
                <td class="right">{formatBytes(one.size_bytes)}</td>
                <td>
                  <Time at={one.created_at} />
                </td>
                <td class="mono">{one.engine}</td>
                <td>
                  <Actions one={one} onForm={setForm} onChange={change} onGone={renew} />
                </td>
              </tr>
            ))}
          </ListTable>
        )}
      </Shown>
      {form && <DatabaseForm form={form} onClose={() => setForm(null)} onDone={renew} />}
    </div>
  );
}

interface ActionsProps {
  one: DatabaseRecord;
  onForm: (form: Form) => void;
  onChange: (name: string, body: object, told: string) => Promise<void>;
  onGone: () => Promise<void>;
}

function Actions({ one, onForm, onChange, onGone }: ActionsProps) {
  const { name } = one;
  const remove = () =>
    confirm({
      title: `Delete ${name}`,
      action: "Delete the database",
      name,
      text: <p>All of its data, its keys and their sessions go with it. This cannot be undone.</p>,
      work: async () => {
        await askControl(`/v1/databases/${name}`, { method: "DELETE" });
        tell(`${name} is deleted.`);
        await onGone();
      },
    });
  return (
    <Menu
      label="Actions"
      items={[
        { title: "Copy as a new database", run: () => onForm({ kind: "clone", of: name }) },
        { title: "Rename", run: () => onForm({ kind: "rename", of: name }) },
        {
          title: one.delete_protection ? "Unprotect" : "Protect",
          run: () =>
            void onChange(
              name,
              { delete_protection: !one.delete_protection },
              one.delete_protection ? `${name} can be deleted.` : `${name} is protected.`,
            ),
        },
        {
          title: "Make it the default",
          isOff: one.default,
          run: () => void onChange(name, { default: true }, `${name} is the default.`),
        },
        { title: "Download a dump", run: () => void dump(name) },
        { title: "Delete", isDangerous: true, isOff: one.default || one.delete_protection, run: remove },
      ]}
    />
  );
}

/** Fetch a dump. One that is cut off is no dump, and is not given. */
async function dump(name: string): Promise<void> {
  try {
    tell(`Dumping ${name}. The file comes when it is whole.`);
    const answer = await openControl(`/v1/databases/${name}/dump`);
    saveFile(`${name}.dump`, await answer.blob());
  } catch (error) {
    tell(`No dump: ${error instanceof Error ? error.message : String(error)}`, "failed");
  }
}

const NAMES: [string, string] = ["[a-z][a-z0-9_\\-]{0,62}", "Lower-case letters, digits, - and _, a letter first"];

function DatabaseForm({ form, onClose, onDone }: { form: Form; onClose: () => void; onDone: () => Promise<void> }) {
  const [name, setName] = useState("");
  const title = form.kind === "new" ? "New database" : form.kind === "clone" ? `Copy ${form.of}` : `Rename ${form.of}`;
  const submit = async () => {
    if (form.kind === "rename") await askControl(`/v1/databases/${form.of}`, { method: "PATCH", body: { name } });
    else {
      const body = form.kind === "clone" ? { name, clone_of: form.of } : { name };
      await askControl("/v1/databases", { method: "POST", body });
    }
    tell(form.kind === "rename" ? `${form.of} is now ${name}.` : `${name} is made.`);
    onClose();
    await onDone();
  };
  return (
    <FormDialog
      title={title}
      action={form.kind === "rename" ? "Rename" : "Make it"}
      isReady={name !== ""}
      onSubmit={submit}
      onClose={onClose}
    >
      <NameField value={name} onChange={setName} placeholder="staging" pattern={NAMES} />
      {form.kind === "clone" && <p class="faint">Requests to {form.of} wait while it is copied.</p>}
    </FormDialog>
  );
}
