/** Sessions: the one of this page, and to admins the organization's others. */
import { askControl } from "../api/http";
import { session } from "../api/session";
import { signOut } from "../app/signin";
import type { KeyRecord, ListedSession, SessionRecord } from "../api/types";
import { confirm } from "../parts/confirm";
import { Time } from "../parts/show";
import { Shown, useLoaded } from "../parts/states";
import { ListTable } from "../parts/table";
import { tell } from "../parts/toast";
import { listAll } from "./lists";

interface OpenSession extends SessionRecord {
  key: KeyRecord | undefined;
}

/** Return the organization's sessions with their keys; to a key that is no admin's, only the own. */
async function listSessions(): Promise<OpenSession[]> {
  if (!session.allows("admin"))
    return [{ ...(await askControl<{ session: SessionRecord }>("/v1/session")).session, key: undefined }];
  const [sessions, keys] = await Promise.all([listAll<ListedSession>("/v1/sessions"), listAll<KeyRecord>("/v1/keys")]);
  return sessions.map((one) => ({ ...one, key: keys.find((key) => key.id === one.key) }));
}

export function SessionsPage() {
  const loaded = useLoaded(listSessions, []);
  const own = session.current.value?.id;
  const end = (one: OpenSession) =>
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
          <ListTable head={["Session", "Key", "Key last used", "Scopes", "Database", "Opened", "Ends", ""]}>
            {all.map((one) => (
              <SessionRow key={one.id} one={one} isOwn={one.id === own} onEnd={() => end(one)} />
            ))}
          </ListTable>
        )}
      </Shown>
    </div>
  );
}

function SessionRow({ one, isOwn, onEnd }: { one: OpenSession; isOwn: boolean; onEnd: () => void }) {
  return (
    <tr>
      <td class="mono">
        {one.id} {isOwn && <span class="badge good">this page</span>}
      </td>
      <td title={one.key?.hint}>
        <bdi>{one.key?.name ?? "–"}</bdi>
      </td>
      <td>{one.key ? <Time at={one.key.last_used_at} relative /> : "–"}</td>
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
        {isOwn ? (
          <button type="button" class="small" onClick={signOut}>
            Sign out
          </button>
        ) : (
          <button type="button" class="small danger" onClick={onEnd}>
            End
          </button>
        )}
      </td>
    </tr>
  );
}
