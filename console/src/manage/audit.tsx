/** Who did what on the control plane, newest first. */
import { useState } from "preact/hooks";
import { asFailure, askControl, type Failure } from "../api/http";
import type { AuditRecord, Page } from "../api/types";
import { Time } from "../parts/show";
import { Empty, FailureBox, Shown, useLoaded } from "../parts/states";
import { ListTable } from "../parts/table";

const PAGE = 100;

export function AuditPage() {
  const [typed, setTyped] = useState("");
  const [more, setMore] = useState<Page<AuditRecord> | null>(null);
  const [failure, setFailure] = useState<Failure | null>(null);
  const loaded = useLoaded(() => askControl<Page<AuditRecord>>(`/v1/audit?limit=${PAGE}`), []);
  const wanted = typed.toLowerCase();
  const fits = (entry: AuditRecord) =>
    [entry.action, entry.subject, entry.key ?? "", entry.address ?? ""].some((text) =>
      text.toLowerCase().includes(wanted),
    );
  const loadMore = async (first: Page<AuditRecord>) => {
    const cursor = (more ?? first).next_cursor;
    try {
      const page = await askControl<Page<AuditRecord>>(`/v1/audit?limit=${PAGE}&cursor=${encodeURIComponent(cursor!)}`);
      setMore({ items: [...(more?.items ?? []), ...page.items], next_cursor: page.next_cursor });
    } catch (error) {
      setFailure(asFailure(error));
    }
  };
  return (
    <div class="page">
      <div class="page-head">
        <h1>Audit</h1>
        <input
          type="search"
          placeholder="Filter"
          aria-label="Filter the audit"
          value={typed}
          onInput={(event) => setTyped(event.currentTarget.value)}
        />
      </div>
      {failure && <FailureBox failure={failure} />}
      <Shown of={loaded} what="Reading the audit">
        {(first) => {
          const all = [...first.items, ...(more?.items ?? [])].filter(fits);
          return (
            <>
              {all.length === 0 ? (
                <Empty title="Nothing here">
                  <p>No change fits.</p>
                </Empty>
              ) : (
                <AuditTable entries={all} />
              )}
              {(more ?? first).next_cursor && (
                <button type="button" onClick={() => void loadMore(first)}>
                  Older entries
                </button>
              )}
            </>
          );
        }}
      </Shown>
    </div>
  );
}

function AuditTable({ entries }: { entries: AuditRecord[] }) {
  return (
    <ListTable head={["When", "What", "Of", "Key", "Session", "From", "Request"]}>
      {entries.map((entry) => (
        <tr key={entry.id}>
          <td>
            <Time at={entry.at} />
          </td>
          <td>
            <span class="badge">{entry.action}</span>
          </td>
          <td class="mono">
            <bdi>{entry.subject}</bdi>
          </td>
          <td class="mono">{entry.key ?? "–"}</td>
          <td class="mono">{entry.session ?? "–"}</td>
          <td class="mono">{entry.address ?? "this machine"}</td>
          <td class="mono faint">{entry.request_id}</td>
        </tr>
      ))}
    </ListTable>
  );
}
