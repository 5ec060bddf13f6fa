/** The overview: what is asked of the service, how it does, and what its engine can do. */
import { useState } from "preact/hooks";
import { askControl, askData, asFailure, getConfig } from "../api/http";
import { session } from "../api/session";
import type {
  CapabilitiesAnswer,
  DatabaseRecord,
  Health,
  OwnOrganization,
  ProbeAnswer,
  UsageRecord,
} from "../api/types";
import { database } from "../app/database";
import { listAll } from "../manage/lists";
import { Dialog } from "../parts/dialog";
import { formatBytes, formatCount, formatMicros } from "../parts/show";
import { FailureBox, Shown, useLoaded } from "../parts/states";
import { useStore } from "../parts/store";
import { type Bar, Bars } from "./bars";
import { Installation } from "./installation";

const HOURS = 24;
const HOUR_MS = 3_600_000;

export function OverviewPage() {
  return (
    <div class="page">
      <div class="page-head">
        <h1>Overview</h1>
      </div>
      <HealthCards />
      {session.allows("admin") ? (
        <Usage />
      ) : (
        <p class="faint">Usage and sizes are shown to keys with the scope admin.</p>
      )}
      {session.allows("operator") ? (
        <Installation />
      ) : (
        <p class="faint">Latency is shown to keys with the scope operator: the service counts it for all together.</p>
      )}
      <Matrix />
    </div>
  );
}

type Seen = Omit<Health, "status"> & { status: Health["status"] | "unreachable" };

/** Ask for health; a failing service answers too, with another status. */
async function readHealth(base: string): Promise<Seen> {
  try {
    const answer = await fetch(`${base}/health`, { cache: "no-store", credentials: "omit" });
    return (await answer.json()) as Health;
  } catch {
    return { status: "unreachable", version: "", checks: {} };
  }
}

function HealthCards() {
  const from = useStore(database);
  const loaded = useLoaded(async () => {
    const [data, control, organization] = await Promise.all([
      readHealth(getConfig().data_url),
      readHealth(""),
      askControl<OwnOrganization>("/v1/organization"),
    ]);
    return { data, control, organization };
  }, [from]);
  return (
    <Shown of={loaded} what="Asking how it does">
      {({ data, control, organization }) => (
        <div class="cards">
          <HealthCard title="Data plane" health={data} />
          <HealthCard title="Control plane" health={control} />
          <div class="card">
            <span class="faint">Engine</span>
            <span class="card-number">{data.engine?.version ?? "–"}</span>
            <span class="faint">{data.engine?.kind ?? "it does not answer"}</span>
          </div>
          <div class="card">
            <span class="faint">Organization</span>
            <span class="card-number">{organization.name}</span>
            <span class="faint">
              {organization.tier},{" "}
              {organization.limits.rate.requests
                ? `${formatCount(organization.limits.rate.requests)} requests a minute`
                : "no limit of requests"}
            </span>
          </div>
        </div>
      )}
    </Shown>
  );
}

function HealthCard({ title, health }: { title: string; health: Seen }) {
  const tone = health.status === "ok" ? "good" : health.status === "degraded" ? "warn" : "bad";
  return (
    <div class="card">
      <span class="faint">{title}</span>
      <span>
        <span class={`badge ${tone}`}>{health.status}</span>
      </span>
      <span class="faint">
        {Object.entries(health.checks)
          .map(([name, state]) => `${name}: ${state}`)
          .join(", ")}
      </span>
    </div>
  );
}

function toBars(
  items: UsageRecord[],
  of: (item: UsageRecord) => number,
  bad: (item: UsageRecord) => number = () => 0,
): Bar[] {
  const now = Math.floor(Date.now() / HOUR_MS) * HOUR_MS;
  return Array.from({ length: HOURS }, (_, index) => {
    const at = now - (HOURS - 1 - index) * HOUR_MS;
    const hour = items.filter((item) => new Date(item.hour).getTime() === at);
    return {
      at: new Date(at),
      value: hour.reduce((sum, item) => sum + of(item), 0),
      bad: hour.reduce((sum, item) => sum + bad(item), 0),
    };
  });
}

function Usage() {
  const loaded = useLoaded(async () => {
    const [usage, databases, organization] = await Promise.all([
      listAll<UsageRecord>("/v1/usage"),
      listAll<DatabaseRecord>("/v1/databases"),
      askControl<OwnOrganization>("/v1/organization"),
    ]);
    return { usage, databases, quota: organization.limits.database_bytes ?? null };
  }, []);
  return (
    <Shown of={loaded} what="Reading the usage">
      {({ usage, databases, quota }) => (
        <>
          <div class="charts">
            <section>
              <h2>Requests, and those that failed</h2>
              <Bars
                bars={toBars(
                  usage,
                  (item) => item.requests,
                  (item) => item.errors,
                )}
                label="Requests"
              />
            </section>
            <section>
              <h2>Rows</h2>
              <Bars bars={toBars(usage, (item) => item.rows)} label="Rows" />
            </section>
            <section>
              <h2>Bytes answered</h2>
              <Bars bars={toBars(usage, (item) => item.bytes)} label="Bytes" format={formatBytes} />
            </section>
          </div>
          <section>
            <h2>Size of databases</h2>
            <ul class="sizes">
              {databases.map((one) => (
                <li key={one.id}>
                  <span class="mono">{one.name}</span>
                  <progress
                    max={quota ?? Math.max(1, ...databases.map((other) => other.size_bytes ?? 0))}
                    value={one.size_bytes ?? 0}
                    aria-label={`Size of ${one.name}`}
                  />
                  <span class="faint">
                    {formatBytes(one.size_bytes)}
                    {quota ? ` of ${formatBytes(quota)}` : ", no quota"}
                  </span>
                </li>
              ))}
            </ul>
          </section>
        </>
      )}
    </Shown>
  );
}

function Matrix() {
  const from = useStore(database);
  const [probe, setProbe] = useState<string | null>(null);
  const loaded = useLoaded(() => askData<CapabilitiesAnswer>("/capabilities", { database: from }), [from]);
  return (
    <section>
      <h2>What the engine can do</h2>
      <Shown of={loaded} what="Running the probes, the first time they are asked for">
        {({ probes }) => (
          <div class="matrix">
            {[...new Set(probes.map((one) => one.group))].map((group) => (
              <div key={group} class="card">
                <h3>{group.replaceAll("_", " ")}</h3>
                <ul>
                  {probes
                    .filter((one) => one.group === group)
                    .map((one) => (
                      <li key={one.name}>
                        <span
                          aria-label={one.supported ? "yes" : "no"}
                          role="img"
                          class={one.supported ? "yes" : "bad"}
                        >
                          {one.supported ? "✓" : "✗"}
                        </span>
                        <button type="button" onClick={() => setProbe(one.name)}>
                          {one.title}
                        </button>
                      </li>
                    ))}
                </ul>
              </div>
            ))}
          </div>
        )}
      </Shown>
      {probe && <ProbeDialog name={probe} onClose={() => setProbe(null)} />}
    </section>
  );
}

function ProbeDialog({ name, onClose }: { name: string; onClose: () => void }) {
  const loaded = useLoaded(
    () => askData<ProbeAnswer>(`/capabilities/${encodeURIComponent(name)}`, { database: database.value }),
    [name],
  );
  return (
    <Dialog title={loaded.value?.title ?? name} onClose={onClose} wide>
      {loaded.failure ? (
        <FailureBox failure={asFailure(loaded.failure)} />
      ) : (
        <Shown of={loaded} what="Running the probe">
          {(run) => (
            <ol class="probe">
              {run.statements.map((one, at) => (
                <li key={at}>
                  <code>{one.sql}</code>
                  <span class="faint">
                    {formatMicros(one.exec_us)}
                    {one.error
                      ? `, ${JSON.stringify(one.error)}`
                      : one.rows?.length
                        ? `: ${JSON.stringify(one.rows)}`
                        : ""}
                  </span>
                </li>
              ))}
            </ol>
          )}
        </Shown>
      )}
    </Dialog>
  );
}
