/** Settings in force: the limits of the service, and those of the organization. */
import { askControl, askData } from "../api/http";
import type { CapabilitiesAnswer, OwnOrganization } from "../api/types";
import { database } from "../app/database";
import { formatBytes, formatCount } from "../parts/show";
import { Shown, useLoaded } from "../parts/states";
import { ListTable } from "../parts/table";
import { useStore } from "../parts/store";

function describe(name: string, value: unknown): string {
  if (value === null || value === undefined) return "no limit";
  if (typeof value === "number") {
    if (/bytes/.test(name)) return `${formatBytes(value)} (${formatCount(value)})`;
    return `${formatCount(value)}${/_ms/.test(name) ? " ms" : /_s$|seconds/.test(name) ? " s" : ""}`;
  }
  return name === "rate" ? describeRate(value as OwnOrganization["limits"]["rate"]) : String(value);
}

/** Return settings with those that are made of others taken apart. */
function flatten(values: object, prefix = ""): [string, unknown][] {
  return Object.entries(values).flatMap(([name, value]: [string, unknown]): [string, unknown][] => {
    const isGroup = typeof value === "object" && value !== null && name !== "rate";
    return isGroup ? flatten(value, `${prefix}${name}.`) : [[prefix + name, value]];
  });
}

function describeRate({ requests, window_seconds: seconds }: OwnOrganization["limits"]["rate"]): string {
  return requests === null ? "no limit" : `${formatCount(requests)} requests in ${formatCount(seconds)} s`;
}

export function SettingsPage() {
  const from = useStore(database);
  const loaded = useLoaded(async () => {
    const [capabilities, organization] = await Promise.all([
      askData<CapabilitiesAnswer>("/capabilities", { database: from }),
      askControl<OwnOrganization>("/v1/organization"),
    ]);
    return { capabilities, organization };
  }, [from]);
  return (
    <div class="page">
      <div class="page-head">
        <h1>Settings</h1>
        <p>What is in force now. An operator changes it with flags, variables or the file of the service.</p>
      </div>
      <Shown of={loaded} what="Reading the settings">
        {({ capabilities, organization }) => (
          <>
            <section>
              <h2>
                Organization {organization.name}, tier {organization.tier}
              </h2>
            </section>
            <SettingTable values={{ ...organization.limits }} />
            <section>
              <h2>Limits of a request</h2>
            </section>
            <SettingTable values={capabilities.limits} />
          </>
        )}
      </Shown>
    </div>
  );
}

function SettingTable({ values }: { values: Record<string, unknown> }) {
  return (
    <ListTable head={["Setting", "Value"]}>
      {flatten(values).map(([name, value]) => (
        <tr key={name}>
          <td class="mono any-break">{name}</td>
          <td class="mono">{describe(name, value)}</td>
        </tr>
      ))}
    </ListTable>
  );
}
