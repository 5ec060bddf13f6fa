/** Sign in with a key, which is exchanged for a session at once and then forgotten. */
import { useState } from "preact/hooks";
import { asFailure, askControl } from "../api/http";
import { endSession, lastOrganization, type Opened, session } from "../api/session";
import type { OwnOrganization } from "../api/types";
import { decodePart, formatRoute, parseRoute, replaceAddress, route } from "./router";
import { confirm } from "../parts/confirm";
import { Dialog, useWork } from "../parts/dialog";
import { FailureBox } from "../parts/states";
import { Store, useStore } from "../parts/store";
import { organization } from "./database";
import { hasUnsent } from "./unsent";

export function KeyForm({ action = "Sign in" }: { action?: string }) {
  const [key, setKey] = useState("");
  const { failure, isBusy, run } = useWork();
  const submit = (event: Event) => {
    event.preventDefault();
    const typed = key.trim();
    if (typed)
      void run(async () => {
        await session.openWithKey(typed);
        setKey("");
      });
  };
  return (
    <form onSubmit={submit} class="form">
      <label class="field">
        <span>API key</span>
        <input
          type="password"
          class="mono"
          value={key}
          placeholder="svc_k_…"
          autocomplete="off"
          spellcheck={false}
          autofocus
          onInput={(event) => setKey(event.currentTarget.value)}
          aria-describedby="key-help"
        />
      </label>
      {failure && <FailureBox failure={failure} />}
      <button type="submit" class="primary" disabled={isBusy || !key.trim()}>
        {isBusy ? "Signing in…" : action}
      </button>
      <p id="key-help" class="faint">
        The key is exchanged for a session and not kept.
      </p>
    </form>
  );
}

export function SignIn({ problem }: { problem: string | null }) {
  return (
    <main class="signin">
      <div class="signin-card">
        <h1 class="brand">
          <Mark /> Tuplegate
        </h1>
        {problem && (
          <p class="failure" role="alert">
            {problem}
          </p>
        )}
        <KeyForm />
        <hr />
        <p class="faint">
          The first start of the service printed a key. On the service's machine, <code>tuplegate console</code> opens
          this page signed in, and <code>tuplegate key create</code> makes another key.
        </p>
      </div>
    </main>
  );
}

/** Sign out; where something is not sent yet, ask first, since it goes too. */
export function signOut(): void {
  if (!hasUnsent()) {
    void session.signOut();
    return;
  }
  confirm({
    title: "Sign out",
    action: "Drop them and sign out",
    text: <p>There are edits of rows that are not applied. They are dropped when you sign out.</p>,
    work: () => session.signOut(),
  });
}

/** The product's sign. */
export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 32 32" width="22" height="22" aria-hidden="true">
      <rect width="32" height="32" rx="7" class="mark-ground" />
      <path d="M9 10h14M9 16h9M9 22h14" class="mark-lines" />
      <circle cx="23" cy="16" r="2.4" class="mark-dot" />
    </svg>
  );
}

/** A code that came while somebody was signed in: a link of others must not replace their session unasked. */
const offeredCode = new Store<string | null>(null);

/** A session of another organization than the one that this browser knows: its reader is asked before it is taken up. */
const offeredSession = new Store<{ opened: Opened; name: string } | null>(null);

/** Take a one-time code from the address, and remove it there. */
export function takeCode(): string | null {
  const match = /^#code=([^&]+)/.exec(location.hash);
  if (!match?.[1]) return null;
  replaceAddress(formatRoute("query"));
  route.set(parseRoute(location.hash));
  return decodePart(match[1]);
}

/** Open the session of a code, or offer to. Return what went wrong. */
export async function redeemCode(code: string): Promise<string | null> {
  if (session.current.value) {
    offeredCode.set(code);
    return null;
  }
  try {
    const opened = await session.exchangeCode(code);
    const known = session.organization ?? lastOrganization();
    if (known === null || known === opened.session.organization) await session.take(opened);
    else {
      const { name } = await askControl<OwnOrganization>("/v1/organization", { token: opened.token });
      offeredSession.set({ opened, name });
    }
    return null;
  } catch (error) {
    return asFailure(error).message;
  }
}

/** Also take a code that comes while the page is open. */
export function followCodes(): void {
  window.addEventListener("hashchange", () => {
    const code = takeCode();
    if (code) void redeemCode(code);
  });
}

/** Sessions per tab would let any link open a tab in somebody else's organization, which looks like one's own. */
export function OtherOrganizationDialog() {
  const offered = useStore(offeredSession);
  const { failure, isBusy, run } = useWork();
  if (!offered) return null;
  const { opened, name } = offered;
  const refuse = () => {
    offeredSession.set(null);
    void endSession(opened.token);
  };
  const accept = () =>
    run(async () => {
      offeredSession.set(null);
      await session.take(opened);
    });
  return (
    <Dialog title="Sign in to another organization?" onClose={refuse}>
      <p>
        The link that you followed signs you in to <b>{name}</b>. It is not the organization that you were signed in to
        last. Go on only if the link is yours: what you do then is done in <b>{name}</b>, and can be read there.
      </p>
      {failure && <FailureBox failure={failure} />}
      <footer class="form-foot">
        <button type="button" class="primary" onClick={refuse}>
          Do not sign in
        </button>
        <button type="button" disabled={isBusy} onClick={() => void accept()}>
          Sign in to {name}
        </button>
      </footer>
    </Dialog>
  );
}

export function CodeDialog() {
  const code = useStore(offeredCode);
  const name = useStore(organization);
  const { failure, isBusy, run } = useWork();
  if (!code) return null;
  const stay = () => offeredCode.set(null);
  const change = () =>
    run(async () => {
      const opened = await session.exchangeCode(code);
      stay();
      await session.take(opened);
    });
  return (
    <Dialog title="Sign in as another?" onClose={stay}>
      <p>
        The link that you followed has a code to sign in with. You are signed in to <b>{name}</b>. Go on only if the
        code is yours: what you do then is done in the organization of whoever made it.
      </p>
      {failure && <FailureBox failure={failure} />}
      <footer class="form-foot">
        <button type="button" class="primary" onClick={stay}>
          Stay signed in
        </button>
        <button type="button" disabled={isBusy} onClick={() => void change()}>
          Use the code
        </button>
      </footer>
    </Dialog>
  );
}
