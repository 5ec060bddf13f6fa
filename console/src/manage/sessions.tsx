/** Sessions: the one of this page, and the organization's others where the service lists them. */
import { asFailure, askControl } from "../api/http";
import { session } from "../api/session";
import type { Session } from "../api/types";
import { confirm } from "../parts/dialog";
import { Time } from "../parts/show";
import { Shown, useLoaded } from "../parts/states";
import { tell } from "../parts/toast";
import { listAll } from "./lists";

interface Listed extends Session {
  key?: string;
  last_used_at?: string | null;
}

/** Return all sessions; only the own where the service, or the key, gives no list. */
async function listSessions(): Promise<Listed[]> {
  try {
    if (session.allows("admin")) return await listAll<Listed>("/v1/sessions");
  } catch (error) {
    if (asFailure(error).status !== 404 && asFailure(error).status !== 403) throw error;
  }
  return [(await askControl<{ session: Listed }>("/v1/session")).session];
}

export function SessionsPage() {
  const loaded = useLoaded(listSessions, []);
  const own = session.current.value?.id;
  const end = (one: Listed) =>
    confirm({
      title: "End this session", action: "End the session", text: <p>Whoever uses it has to sign in again.</p>,
      work: async () => {
        await askControl(`/v1/sessions/${one.id}`, { method: "DELETE" });
        tell("The session is ended.");
        loaded.reload();
      },
    });
  return (
    <div class="page">
      <div class="page-head">
        <h1>Sessions</h1>
        <p>A session stands for a key for a while. This page extends its own while you use it.</p>
      </div>
      <Shown of={loaded} what="Reading the sessions">
        {(all) => (
          <div class="table-wrap">
            <table class="list">
              <thead>
                <tr><th>Session</th><th>Key</th><th>Scopes</th><th>Database</th><th>Opened</th><th>Ends</th><th><span class="hidden">Actions</span></th></tr>
              </thead>
              <tbody>
                {all.map((one) => (
                  <tr key={one.id}>
                    <td class="mono">{one.id} {one.id === own && <span class="badge good">this page</span>}</td>
                    <td class="mono">{one.key ?? "–"}</td>
                    <td>{one.scopes.map((scope) => <span class="badge" key={scope}>{scope}</span>)}</td>
                    <td class="mono">{one.database ?? "all"}</td>
                    <td><Time at={one.created_at} /></td>
                    <td><Time at={one.expires_at} relative /></td>
                    <td>
                      {one.id === own
                        ? <button type="button" class="small" onClick={() => void session.signOut()}>Sign out</button>
                        : <button type="button" class="small danger" onClick={() => end(one)}>End</button>}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </Shown>
    </div>
  );
}
