/** How to reach the chosen database from elsewhere. */
import { useState } from "preact/hooks";
import { askControl, getConfig } from "../api/http";
import { session } from "../api/session";
import type { KeyMade } from "../api/types";
import { database } from "../app/database";
import { formatRoute } from "../app/router";
import { Once } from "../manage/once";
import { useWork } from "../parts/dialog";
import { CodeBlock, CopyButton } from "../parts/show";
import { FailureBox } from "../parts/states";
import { useStore } from "../parts/store";
import { TabList } from "../parts/tabs";
import { listSnippets } from "./snippets";

export function ConnectPage() {
  const chosen = useStore(database);
  const { data_url: url } = getConfig();
  const snippets = listSnippets(url, chosen);
  const [id, setId] = useState("curl");
  const snippet = snippets.find((one) => one.id === id) ?? snippets[0]!;
  return (
    <div class="page">
      <div class="page-head">
        <h1>Connect</h1>
        <p>
          Code that runs as it is, for the database <b class="mono">{chosen ?? "of your key"}</b>. Put the key into the
          variable <code>TUPLEGATE_API_KEY</code>.
        </p>
      </div>
      <div class="toolbar">
        <span class="faint">Address</span> <code>{url}</code> <CopyButton text={url} label="Copy the address" />
      </div>
      <NewKey />
      <TabList label="Ways to connect" isSmall tabs={snippets} chosen={snippet.id} onChoose={setId} />
      <div role="tabpanel" aria-label={snippet.title} class="form">
        <p>{snippet.about}</p>
        <CodeBlock code={snippet.code} label={`${snippet.title} code`} />
      </div>
    </div>
  );
}

/** Offer a key for the chosen database, to those who may make one. */
function NewKey() {
  const [made, setMade] = useState<KeyMade | null>(null);
  const { failure, isBusy, run } = useWork();
  const chosen = useStore(database);
  if (!session.allows("admin"))
    return <p class="faint">Use the key that you have signed in with, or ask for one of its own.</p>;
  const make = (scope: "read" | "write") =>
    run(async () => {
      const body = {
        name: `${scope} ${chosen ?? ""}`.trim(),
        scopes: [scope],
        ...(chosen ? { database: chosen } : {}),
      };
      setMade(await askControl<KeyMade>("/v1/keys", { method: "POST", body }));
    });
  return (
    <>
      <div class="toolbar">
        <button type="button" disabled={isBusy} onClick={() => void make("read")}>
          New key that reads
        </button>
        <button type="button" disabled={isBusy} onClick={() => void make("write")}>
          New key that writes
        </button>
        <a href={formatRoute("keys")}>All keys</a>
      </div>
      {failure && <FailureBox failure={failure} />}
      {made?.key && <Once secret={made.key} what={`The key ${made.name}`} onClose={() => setMade(null)} />}
    </>
  );
}
