/** Sessions: the one of this page, and to admins the organization's others. */
import { askControl } from "../api/http";
import { session } from "../api/session";
import type { Session } from "../api/types";
import { confirm } from "../parts/dialog";
import { Time } from "../parts/show";
import { Shown, useLoaded } from "../parts/states";
import { ListTable } from "../parts/table";
import { tell } from "../parts/toast";
import { listAll } from "./lists";

interface Listed extends Session {
  key?: string;
}

/** Return the organization's sessions; to a key that is no admin's, only the own. */
async function listSessions(): Promise<Listed[]> {
  if (session.allows("admin")) return listAll<Listed>("/v1/sessions");
  return [(await askControl<{ session: Listed }>("/v1/session")).session];
}

export function SessionsPage() {
  const loaded = useLoaded(listSessions, []);
  const own = session.current.value?.id;
  const end = (one: Listed) =>
    confirm({
      title: "End this session",
      action: "End the session",
      text: <p>Whoever uses it has to sign in again.</p>,
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
          <ListTable head={["Session", "Key", "Scopes", "Database", "Opened", "Ends", ""]}>
            {all.map((one) => (
              <tr key={one.id}>
                <td class="mono">
                  {one.id} {one.id === own && <span class="badge good">this page</span>}
                </td>
                <td class="mono">{one.key ?? "–"}</td>
                <td>
                  {one.scopes.map((scope) => (
                    <span class="badge" key={scope}>
                      {scope}
                    </span>
                  ))}
                </td>
                <td class="mono">{one.database ?? "all"}</td>
                <td>
                  <Time at={one.created_at} />
                </td>
                <td>
                  <Time at={one.expires_at} relative />
                </td>
                <td>
                  {one.id === own ? (
                    <button type="button" class="small" onClick={() => void session.signOut()}>
                      Sign out
                    </button>
                  ) : (
                    <button type="button" class="small danger" onClick={() => end(one)}>
                      End
                    </button>
                  )}
                </td>
              </tr>
            ))}
          </ListTable>
        )}
      </Shown>
    </div>
  );
}
